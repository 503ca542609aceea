"""Judged runs in which every kind of violation stands that a checker can report.

What clients saw comes from golden histories (tests/histories), side by side under keys of their
own; the nodes' logs are made here. Checkers judge them and pages show them as of any run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from shaketable.checkers.engine.judge import CheckJob
from shaketable.checkers.engine.local import run_local
from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.plugins import FaultWindow, Promises
from shaketable.harness.contracts.verdict import Verdict
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.schema import EVENTS, OPERATIONS
from shaketable.harness.judging import judge
from tests.support import anomaly_histories, checker_histories, logs_gone_wrong
from tests.support.checker_histories import Op

HISTORIES: Final = Path(__file__).parent.parent / "histories"
NODES: Final = ("n0", "n1", "n2")
MS: Final = 1_000_000
S: Final = 1_000 * MS
TICK_NS: Final = 5 * MS
"""How long one unit of time of a golden history lasts."""
FIRST_NS: Final = 2 * S
PAUSE_NS: Final = 400 * MS
"""From the begin of one golden history to the next, or the end of one that is in real time."""
QUIET_NS: Final = 15 * S
"""Those in real time begin when the partition is long over."""
IN_QUIET: Final = ("queue-locks", "found-by-key")
"""Checkers that judge in quiet times alone."""
WINDOW: Final = FaultWindow(0, "partition", "isolate leader n0", 4 * S, 7 * S, True, "90 kB held")
ELECTED_NS: Final = 5 * S
"""When n1 came to lead, which the partition let happen."""
LOGS: Final = ("linearizable-log", "log-anomalies", "cycles", "transaction-cycles")
GROUPS: Final = (
    "group-delivery",
    "consumer-offsets",
    "delayed-messages",
    "found-by-key",
    "held-polls",
    "push-delivery",
    "queue-owners",
    "queue-locks",
    "refusals",
    "retried-messages",
    "tag-selection",
)
OBJECTS: Final = ("set-full", "total-queue", "counter", "unique-ids", "linearizable-register")
NODE_LOGS: Final = ("durability", "committed-prefix")
DOES: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    LOGS: ("append", "read", "end", "send", "poll"),
    GROUPS: ("send", "poll", "commit", "fetch", "delay"),
    OBJECTS: ("read", "write", "add", "enqueue", "dequeue", "drain", "generate"),
    NODE_LOGS: ("append",),
}
"""What clients do in a run that these checkers judge: all of it is promised to be linearizable."""


PROMISED_APART: Final[dict[tuple[str, ...], frozenset[str]]] = {
    GROUPS: frozenset(
        {
            "early-delivery",
            "early-answer",
            "late-delivery",
            "wrong-attempt",
            "two-owners",
            "needless-redelivery",
            "duplicate-delivery",
            "unwanted-tag",
            "missed-tag",
            "unwanted-key",
            "missed-key",
            "not-refused",
            "wrong-refusal",
            "no-answer",
            "lock-overlap",
        }
    ),
    OBJECTS: frozenset({"duplicated-element"}),
}
"""What no linearizable operation excludes."""


@dataclass(frozen=True, slots=True)
class Golden:
    """A golden history that one checker calls invalid, and the kinds that it shows.

    Its units of time are `tick_ns` long; one that is in real time comes behind all others.
    """

    name: str
    checker: str
    kinds: frozenset[str]
    rows: tuple[Op, ...]

    @property
    def tick_ns(self) -> int:
        """How long a unit of time lasts here."""
        return 1 if self.rows[-1]["call_ns"] >= MS else TICK_NS

    @property
    def span_ns(self) -> int:
        """From its begin to the begin of the next one."""
        last = max(max(row["call_ns"], row["return_ns"] or 0) for row in self.rows)
        return max(PAUSE_NS, last * self.tick_ns + PAUSE_NS if self.tick_ns == 1 else 0)


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run's folder with its results, ready for its pages to be written."""

    folder: Path
    verdicts: tuple[Verdict, ...]
    rows: tuple[Op, ...]

    def kinds(self) -> set[str]:
        """Which kinds of violations were found."""
        return {finding.kind for verdict in self.verdicts for finding in verdict.findings}


def goldens(checkers: Iterable[str]) -> list[Golden]:
    """Return golden histories, no more than are needed to show every kind of these checkers."""
    wanted, chosen = set(checkers), []
    seen: set[tuple[str, str]] = set()
    # Those that show one thing alone come first: their pages are about nothing else.
    order = sorted(_goldens(), key=lambda one: (one.tick_ns == 1, len(one.kinds), one.name))
    for golden in order:
        shown = {(golden.checker, kind) for kind in golden.kinds}
        if golden.checker in wanted and not shown <= seen:
            seen |= shown
            chosen.append(golden)
    return chosen


def _goldens() -> Iterator[Golden]:
    for path in sorted(HISTORIES.glob("*.txt")):
        text = path.read_text()
        outcome, *kinds = text.splitlines()[0].removeprefix("#").split()
        if outcome == "invalid":
            rows = checker_histories.parse(text)
            yield Golden(path.stem, "linearizable-log", frozenset(kinds), tuple(rows))
    for folder in ("anomalies", "registers"):
        for path in sorted((HISTORIES / folder).glob("*.txt")):
            text = path.read_text()
            checker, outcome, *kinds = text.splitlines()[0].removeprefix("#").split()
            if outcome == "invalid":
                rows = anomaly_histories.parse(text)
                yield Golden(path.stem, checker, frozenset(kinds), tuple(rows))


def promised(checkers: tuple[str, ...]) -> Promises:
    """Return what a target promises that keeps everything, to be judged by these checkers."""
    return Promises(
        durable_under=frozenset({WINDOW.name}),
        linearizable=frozenset(DOES[checkers]),
        committed_prefix=checkers is NODE_LOGS,
        excludes=PROMISED_APART.get(checkers, frozenset()),
    )


def run_of_histories(folder: Path, checkers: tuple[str, ...]) -> JudgedRun:
    """Make a run in which golden histories of these checkers follow each other, and judge it."""
    by_checker: dict[str, list[Op]] = {}
    first_op, begin_ns = 0, FIRST_NS
    for number, golden in enumerate(goldens(checkers)):
        if golden.tick_ns == 1 or golden.checker in IN_QUIET:
            begin_ns = max(begin_ns, QUIET_NS)
        rows = list(_placed(golden, begin_ns, first_op, 4 * number))
        begin_ns += golden.span_ns
        first_op = rows[-1]["op"] + 2
        by_checker.setdefault(golden.checker, []).extend(rows)
    verdicts: list[Verdict] = []
    for name, rows in sorted(by_checker.items()):
        verdicts += run_local(_job(folder, rows, (name,), promises=promised(checkers)))
    rows = [row for _, mine in sorted(by_checker.items()) for row in mine]
    return _finished(folder, rows, verdicts, checkers)


def run_of_logs(folder: Path) -> JudgedRun:
    """Make a run after which the nodes' logs hold every wrong that is known, and judge it."""
    rows = [
        checker_histories.op(
            2 * number, "append", call, call + 3 * MS, input=append.value, offset=append.offset,
            key=append.key, node=append.node, process=number % 5,
        )
        for number, append in enumerate(logs_gone_wrong.APPENDS)
        for call in (append.call_ns,)
    ]  # fmt: skip
    rows.append(
        checker_histories.op(
            2 * len(rows), "append", ELECTED_NS, None, "info", key=logs_gone_wrong.APPENDS[0].key,
            input=logs_gone_wrong.REPLACING, error="timed out after 1.0 s", node="n1", process=4,
        )
    )  # fmt: skip
    logs = dict.fromkeys(NODES, folder)
    job = _job(
        folder, rows, NODE_LOGS, promises=promised(NODE_LOGS),
        read_log=logs_gone_wrong.read_log, logs=logs, committed=logs_gone_wrong.COMMITTED,
    )  # fmt: skip
    judged = _finished(folder, rows, run_local(job), NODE_LOGS)
    judge.save_log_entries(RunFolder(folder), job, judged.verdicts)
    return judged


def _placed(golden: Golden, begin_ns: int, first_op: int, first_process: int) -> Iterator[Op]:
    """Yield a golden history's operations at a time, and under keys, of their own."""
    for row in golden.rows:
        call_ns = begin_ns + row["call_ns"] * golden.tick_ns
        returns = row["return_ns"]
        yield row | {
            "op": first_op + 2 * row["op"],
            "process": first_process + row["process"],
            "key": f"{golden.name}/{row['key']}",
            "call_ns": call_ns,
            "return_ns": None if returns is None else begin_ns + returns * golden.tick_ns,
            # Who was cut off goes on answering whom it can reach.
            "node": "n0" if call_ns < WINDOW.stop_ns else "n1",
        }


def _job(folder: Path, rows: Iterable[Op], checkers: tuple[str, ...], **more: Any) -> CheckJob:
    plugins = [discovery.get("checkers", name) for name in checkers]
    more = {"windows": (WINDOW,), "nodes": NODES, **more}
    scratch = folder.parent / "judged" / checkers[0]
    scratch.mkdir(parents=True, exist_ok=True)
    return checker_histories.job(scratch, rows, plugins, **more)


def _finished(
    folder: Path, rows: list[Op], verdicts: Iterable[Verdict], checkers: tuple[str, ...]
) -> JudgedRun:
    """Write what a run leaves behind, beside its verdicts."""
    run = RunFolder(folder)
    run.operations.mkdir(parents=True)
    table = pa.Table.from_pylist(rows, OPERATIONS)
    ordered = table.sort_by([("key", "ascending"), ("call_ns", "ascending")])
    pq.write_table(ordered, run.operations / "part-0.parquet")
    _write_course(run, max(row["call_ns"] for row in rows) + S)
    campaign = Campaign(name="every-kind", seed="7", faults=("partition",))
    judge.write_results(
        run,
        judge.Results(
            campaign, promised(checkers), tuple(verdicts), (WINDOW,), None,
            "./shaketable run --seed 7", "local",
        ),
    )  # fmt: skip
    return JudgedRun(folder, tuple(verdicts), tuple(rows))


def _write_course(run: RunFolder, end_ns: int) -> None:
    """Write how the run went: its phases, the partition, who led, the nodes' own words."""
    told = {
        "fault": 0, "phase": "start", "description": WINDOW.description,
        "plan": {"victims": ["n0"], "leader": "n0"},
    }  # fmt: skip
    over = {
        **told,
        "phase": "stop",
        "took_effect": True,
        "evidence": WINDOW.evidence,
        "measures": {},
    }
    events = []
    for time_ns, value in ((WINDOW.start_ns, told), (WINDOW.stop_ns, over)):
        event = dict.fromkeys(EVENTS.names)
        event.update(
            index=time_ns, time_ns=time_ns, process=-1, type="info", f=WINDOW.name,
            value=json.dumps(value),
        )  # fmt: skip
        events.append(event)
    pq.write_table(pa.Table.from_pylist(events, EVENTS), run.events_parquet)
    status = [(S, node, "leader" if node == "n0" else "follower", 1) for node in NODES]
    status += [(ELECTED_NS, "n1", "leader", 2), (ELECTED_NS, "n2", "follower", 2)]
    status += [(WINDOW.stop_ns, "n0", "follower", 2)]
    run.status_jsonl.write_text(
        "".join(
            json.dumps({"time_ns": time_ns, "node": node, "role": role, "term": term}) + "\n"
            for time_ns, node, role, term in status
        )
    )
    facts = {
        "status": "complete", "name": "every-kind", "seed": "7", "world": "process",
        "target": "dledger", "mutant": None, "workload": "log", "nodes": list(NODES),
        "faults": [WINDOW.name], "command": ["./shaketable", "run", "--seed", "7"],
        "phases": [{"name": "chaos", "start_ns": 0, "stop_ns": end_ns}],
        "clock": {"unix_ns": 1_000 * S, "utc_offset_s": 0},
    }  # fmt: skip
    run.run_json.write_text(json.dumps(facts))
    run.campaign_toml.write_text('name = "every-kind"\nseed = "7"\n')
    run.drain_json.write_text(json.dumps({"nodes": {}}))
    for node in NODES:
        run.node(node).mkdir(parents=True)
        run.node_log(node).write_text(
            "1970-01-01T00:16:45.000 level=INFO event=role role=leader term=2 leader=n1\n"
        )


RUNS: Final[dict[str, Callable[[Path], JudgedRun]]] = {
    "logs": partial(run_of_histories, checkers=LOGS),
    "groups": partial(run_of_histories, checkers=GROUPS),
    "objects": partial(run_of_histories, checkers=OBJECTS),
    "nodes": run_of_logs,
}
"""Runs by what is wrong in them; together they show every kind."""

"""Realistic run folders, written by hand-made simulation: clean, invalid, interrupted, empty."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shaketable.harness.history.schema import EVENTS, OPERATIONS

MS = 1_000_000
S = 1_000 * MS
QUEUES = 4


@dataclass(slots=True)
class Sample:
    """A run folder in the making. A small model of a group: appends wait while no one leads."""

    folder: Path
    seed: int = 7
    clients: int = 10
    duration_ns: int = 40 * S
    pace_ns: int = 25 * MS
    topic: str = "shaketable"
    campaign: str = "first-shake"
    mutant: str | None = None
    # (name, description, start, stop, stall after the effect, took effect, evidence)
    faults: list[tuple[str, str, int, int, int, bool, str]] = field(default_factory=list)
    lost_in_fault: int | None = None
    operations: list[dict] = field(default_factory=list)
    lost: list[dict] = field(default_factory=list)

    def play(self) -> Sample:
        rng = Random(self.seed)
        ends = dict.fromkeys(range(QUEUES), 0)
        ready = {client: rng.randrange(self.pace_ns) for client in range(self.clients)}
        process = {client: client for client in range(self.clients)}
        value, index = 0, 0
        while True:
            client = min(ready, key=lambda name: ready[name])
            call = ready[client]
            if call >= self.duration_ns:
                break
            queue = rng.randrange(QUEUES)
            key = f"{self.topic}/{queue}"
            append = rng.random() < 0.7
            took = int(rng.lognormvariate(1.1, 0.5) * MS)
            stalled, lossy = self._stalled_until(call), self._loses(call)
            outcome, error = "ok", None
            if stalled and not lossy:
                if rng.random() < 0.3:
                    outcome, error = "info", "timed out after 1.0 s: no answer from n0"
                    took = S
                elif rng.random() < 0.3:
                    outcome, error, took = "fail", "not the leader, and no leader is known", 3 * MS
                else:
                    took += stalled - call
            row = dict.fromkeys(OPERATIONS.names)
            row.update(
                op=index,
                process=process[client],
                f="append" if append else "read",
                key=key,
                call_ns=call,
                return_ns=None if outcome == "info" else call + took,
                outcome=outcome,
                error=error,
                node="n0" if lossy else "n1",
            )
            if append:
                row["input"] = value
                value += 1
                if outcome == "ok":
                    row["offset"] = ends[queue]
                    ends[queue] += 1
                    if lossy:
                        self.lost.append(row)
            else:
                row["offset"] = max(0, ends[queue] - rng.randrange(1, 5))
                row["output"] = row["offset"] * QUEUES if outcome == "ok" and ends[queue] else None
            self.operations.append(row)
            index += 2
            if outcome == "info":
                process[client] += self.clients
            ready[client] = call + took + rng.randrange(2 * self.pace_ns)
        return self

    def _stalled_until(self, time_ns: int) -> int | None:
        for _, _, start, _, stall, _, _ in self.faults:
            if start <= time_ns < start + stall:
                return start + stall
        return None

    def _loses(self, time_ns: int) -> bool:
        if self.lost_in_fault is None:
            return False
        _, _, start, _, stall, _, _ = self.faults[self.lost_in_fault]
        return start <= time_ns < start + stall

    def table(self) -> pa.Table:
        table = pa.Table.from_pylist(self.operations, schema=OPERATIONS)
        return table.sort_by([("key", "ascending"), ("call_ns", "ascending")])

    def write_history(self) -> None:
        operations = self.folder / "history" / "operations"
        operations.mkdir(parents=True)
        table = self.table()
        half = table.num_rows // 2
        pq.write_table(table.slice(0, half), operations / "part-0.parquet")
        pq.write_table(table.slice(half), operations / "part-1.parquet")
        rows = []
        for number, (name, what, start, stop, _, took_effect, evidence) in enumerate(self.faults):
            words = what.split()
            plan = {"victims": words[-1:], "leader": words[-1]} if "leader" in words else {}
            value = {"fault": number, "phase": "start", "plan": plan, "description": what}
            rows.append(self._event(start, name, value))
            value = {
                **value,
                "phase": "stop",
                "took_effect": took_effect,
                "evidence": evidence,
                "measures": {},
            }
            rows.append(self._event(stop, name, value))
        rows.sort(key=lambda row: row["time_ns"])
        pq.write_table(
            pa.Table.from_pylist(rows, schema=EVENTS), self.folder / "history" / "events.parquet"
        )
        (self.folder / "history.jsonl").write_text('{"index": 0}\n')

    def _event(self, time_ns: int, name: str, value: dict) -> dict:
        event = dict.fromkeys(EVENTS.names)
        event.update(
            index=10**9 + time_ns, time_ns=time_ns, process=-1, type="info", f=name,
            value=json.dumps(value),
        )  # fmt: skip
        return event

    def write_status(self) -> None:
        rows = []
        leader, term = 0, 1

        def say(time_ns: int, silent: int | None = None) -> None:
            for node in range(3):
                role = "leader" if node == leader else "follower"
                if node == silent:
                    row = dict.fromkeys(("role", "term", "leader"))
                else:
                    row = {"role": role, "term": term, "leader": f"n{leader}"}
                rows.append({"time_ns": time_ns, "node": f"n{node}", **row,
                             "committed_index": 10, "end_index": 12})  # fmt: skip

        say(200 * MS)
        for _, what, start, stop, stall, _, _ in self.faults:
            if "leader" in what:
                old = leader
                leader, term = (leader + 1) % 3, term + 1
                rows.append({"time_ns": start + 100 * MS, "node": f"n{old}", "role": None})
                say(start + stall, silent=old)
                say(stop + 200 * MS)
        (self.folder / "status.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.write_samples()
        answer = {"role": "follower", "term": term, "leader": f"n{leader}",
                  "committed_index": 4711, "end_index": 4712}  # fmt: skip
        nodes = {f"n{node}": dict(answer, node=f"n{node}") for node in range(3)}
        nodes[f"n{leader}"]["role"] = "leader"
        nodes[f"n{(leader + 2) % 3}"] = None
        (self.folder / "drain.json").write_text(json.dumps({"nodes": nodes}))

    def write_samples(self) -> None:
        """Each node's log grows; the last one is slow, and the first one's clock is ahead."""
        with (self.folder / "samples.jsonl").open("w") as file:
            for number, time_ns in enumerate(range(0, self.duration_ns, S // 2)):
                for node in range(3):
                    committed = number * (20 - 3 * (node == 2))
                    row = {
                        "time_ns": time_ns + node * MS, "node": f"n{node}",
                        "committed_index": committed, "end_index": committed + 1,
                        "wall_offset_ms": 250.0 if node == 0 and 20 < number < 30 else 0.2,
                        "monotonic_offset_ms": 0.1, "doubt_ms": 0.4,
                    }  # fmt: skip
                    file.write(json.dumps(row) + "\n")

    def write_facts(self) -> None:
        end = self.duration_ns
        phases = [
            {"name": "setup", "start_ns": 0, "stop_ns": 1 * S},
            {"name": "steady", "start_ns": 1 * S, "stop_ns": 6 * S},
            {"name": "chaos", "start_ns": 6 * S, "stop_ns": end - 6 * S},
            {"name": "heal", "start_ns": end - 6 * S, "stop_ns": end - 3 * S},
            {"name": "drain", "start_ns": end - 3 * S, "stop_ns": end},
        ]
        run = {
            "status": "complete", "name": self.campaign, "seed": str(self.seed),
            "world": "process", "target": "dledger", "mutant": self.mutant, "workload": "log",
            "nodes": ["n0", "n1", "n2"], "faults": sorted({fault[0] for fault in self.faults}),
            "phases": phases, "segments": {"worker-0.seg": 10},
            "command": ["./shaketable", "run", "--faults", "kill,pause,partition", "--seed", "7"],
            "promises": {
                "durable_under": ["kill", "pause", "partition"],
                "linearizable": ["append", "read", "end"], "committed_prefix": True, "note": "",
                "fails_over": True, "failover_goals_s": [1.0, 2.0],
            },
            "versions": {"python": "3.11.7", "shaketable": "0.1.0"},
        }  # fmt: skip
        (self.folder / "run.json").write_text(json.dumps(run))
        (self.folder / "campaign.toml").write_text(f'name = "x"\nseed = "{self.seed}"\n')
        for node in range(3):
            log = self.folder / "nodes" / f"n{node}" / "node.log"
            log.parent.mkdir(parents=True)
            log.write_text("started\n")

    def write_results(self, results: dict) -> None:
        (self.folder / "results.json").write_text(json.dumps(results))


def checker(valid: object, summary: str, findings: list = (), **more: object) -> dict:
    verdict = {
        "valid": valid, "summary": summary, "counts": {}, "findings": list(findings),
        "findings_total": len(findings), "observed": [], "data": {},
    }  # fmt: skip
    return {**verdict, **more}


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[[], Path]:
    def make() -> Path:
        folder = tmp_path / "store" / "first-shake" / "20261121T091104.000Z"
        folder.mkdir(parents=True)
        return folder

    return make


@pytest.fixture
def clean_run(make_folder: Callable[[], Path]) -> Sample:
    sample = Sample(
        make_folder(),
        faults=[
            ("kill", "kill leader n0", 8 * S, 11 * S, 600 * MS, True, "n0 died, incarnation 0"),
            ("partition", "isolate n2", 14 * S, 17 * S, 0, True, "18,220 bytes held on 4 links"),
            ("pause", "pause leader n1", 20 * S, 22 * S, 900 * MS, True, "state T for 2.0 s"),
            ("partition", "one-way n2 -> n0", 25 * S, 28 * S, 0, False, "no byte was held"),
        ],
    ).play()
    sample.write_history()
    sample.write_status()
    sample.write_facts()
    sample.write_results(
        {
            "valid": True, "seed": str(sample.seed),
            "checkers": {
                "linearizable-log": checker(
                    True, "4 queues are linearizable", counts={"operations": 12345, "queues": 4}
                ),
                "durability": checker(
                    True, "8,123 acknowledged appends stand on every node",
                    counts={"acknowledged": 8123, "lost": 0},
                ),
                "stats": checker(True, "enough happened inside the faults"),
            },
        }
    )  # fmt: skip
    return sample


@pytest.fixture
def invalid_run(make_folder: Callable[[], Path]) -> Sample:
    sample = Sample(
        make_folder(),
        mutant="ack-before-quorum",
        lost_in_fault=1,
        faults=[
            ("kill", "kill n2", 8 * S, 11 * S, 0, True, "n2 died, incarnation 0"),
            ("partition", "isolate leader n0", 14 * S, 20 * S, 2 * S, True, "90 kB held"),
            ("pause", "pause n1", 24 * S, 26 * S, 0, True, "state T for 2.0 s"),
        ],
    ).play()
    sample.write_history()
    sample.write_status()
    sample.write_facts()
    findings = [
        {
            "kind": "lost-append",
            "message": f"{row['key']}: the append of {row['input']} (op {row['op']}), acknowledged "
            f"by n0 at offset {row['offset']} after {row['return_ns'] / S:.3f} s under partition 1 "
            "(isolate leader n0), is lost: 0 of 3 nodes hold it; n0 has nothing there; n1 has "
            f"{row['input'] + 5} (op 9, entry 40) there.",
            "key": row["key"], "offset": row["offset"], "operations": [row["op"]],
            "details": {
                "value": row["input"], "process": row["process"], "acknowledged_by": "n0",
                "acknowledged_ns": row["return_ns"], "fault": 1,
                "faults": ["partition 1 (isolate leader n0)"],
                "instead": {
                    "n0": "nothing",
                    "n1": f"{row['input'] + 5} (op 9, entry 40)",
                    "n2": f"{row['input'] + 5} (op 9, entry 40)",
                },
                "held_by": [], "value_stands_at": {"n1": [4, 5], "n2": [4]},
            },
        }
        for row in sample.lost
    ]  # fmt: skip
    append = sample.lost[0]
    late = next(
        row for row in sample.operations
        if row["f"] == "read" and row["key"] == append["key"] and row["call_ns"] > 36 * S
    )  # fmt: skip
    contradiction = {
        "kind": "wrong-read", "key": append["key"], "offset": append["offset"],
        "message": f"offset {append['offset']} of {append['key']} holds {append['input']} for one "
        "client and another value for a later reader",
        "operations": [append["op"], late["op"]], "details": {},
    }  # fmt: skip
    sample.write_results(
        {
            "valid": False, "seed": str(sample.seed),
            "checkers": {
                "stats": checker(True, "enough happened inside the faults"),
                "durability": checker(
                    False, f"{len(findings)} acknowledged appends are lost", findings[:200],
                    findings_total=len(findings) + 55,
                    counts={"acknowledged": 8123, "lost": len(findings)},
                    observed=[{"kind": "duplicate", "message": "value 12 stands twice",
                               "key": "shaketable/1", "offset": 9, "operations": [],
                               "details": {}}],
                ),
                "linearizable-log": checker(False, "1 queue is not linearizable", [contradiction]),
                "broken": checker("unknown", "the checker failed: KeyError: 'x'",
                                  data={"traceback": "Traceback\n  KeyError: 'x'"}),
            },
        }
    )  # fmt: skip
    return sample


@pytest.fixture
def interrupted_run(make_folder: Callable[[], Path]) -> Sample:
    """The harness was killed while a fault was on: the last files are cut or were never made."""
    sample = Sample(
        make_folder(),
        duration_ns=15 * S,
        faults=[("pause", "pause leader n0", 8 * S, 11 * S, 900 * MS, True, "state T")],
    ).play()
    sample.write_history()
    sample.write_status()
    part = sample.folder / "history" / "operations" / "part-1.parquet"
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    status = sample.folder / "status.jsonl"
    status.write_text(status.read_text()[:-25])
    (sample.folder / "drain.json").write_text('{"nodes": {"n0": {"ro')
    events = sample.folder / "history" / "events.parquet"
    table = pq.read_table(events)
    pq.write_table(table.slice(0, 1), events)
    (sample.folder / "campaign.toml").write_text('seed = 7\ntarget = "dledger"\nnodes = 3\n')
    return sample


@pytest.fixture
def empty_run(make_folder: Callable[[], Path]) -> Path:
    return make_folder()


HOSTILE = "</script><script>window.hostile=1</script><img src=x onerror=window.hostile=2>{{ 7*7 }}"


@pytest.fixture
def hostile_run(make_folder: Callable[[], Path]) -> Sample:
    """Every text that a system under test or a user can choose is an attack on the page."""
    sample = Sample(
        make_folder(),
        topic=HOSTILE,
        campaign=HOSTILE,
        mutant=HOSTILE,
        duration_ns=6 * S,
        faults=[(HOSTILE, HOSTILE, 1 * S, 2 * S, 300 * MS, True, HOSTILE)],
    ).play()
    for row in sample.operations:
        row["node"] = HOSTILE
        row["error"] = HOSTILE if row["error"] else None
    sample.write_history()
    sample.write_facts()
    (sample.folder / "status.jsonl").write_text(
        json.dumps({"time_ns": 5, "node": HOSTILE, "role": HOSTILE, "term": 3}) + "\n"
    )
    (sample.folder / "drain.json").write_text(json.dumps({"nodes": {HOSTILE: {"role": HOSTILE}}}))
    row = sample.operations[0]
    finding = {
        "kind": HOSTILE, "message": HOSTILE, "key": row["key"], "offset": row["offset"],
        "operations": [row["op"]], "details": {"instead": {HOSTILE: HOSTILE}, HOSTILE: HOSTILE},
    }  # fmt: skip
    verdict = checker(False, HOSTILE, [finding], counts={HOSTILE: 1}, observed=[finding],
                      data={"traceback": HOSTILE})  # fmt: skip
    sample.write_results({"valid": False, "seed": HOSTILE, "checkers": {HOSTILE: verdict}})
    return sample

"""Build the view model from a run folder, complete or not: what is missing becomes a note.

A killed run may lack some of the files; none of them is ever a traceback.
"""

from __future__ import annotations

import json
import math
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shaketable.harness.contracts.finding_kinds import FINDING_KINDS
from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.promises import RAISED_BY_HAND
from shaketable.harness.history.export import GIVEN_UP, fault_windows
from shaketable.harness.history.schema import EVENTS, NEMESIS_PROCESS, OPERATIONS
from shaketable.reports import finding_texts
from shaketable.reports.availability import (
    Availability,
    ClientActivity,
    Goals,
    PhaseSpan,
    active_until,
    availability,
    kills_leader,
    phase_spans,
    recovery_times,
)
from shaketable.reports.elections import aimed_plans, elections, leader_changes, role_spans
from shaketable.reports.gating.run_measures import NOT_JUDGED, Losses, losses
from shaketable.reports.plain_json import listed, mapping
from shaketable.reports.plotting.series import Sampled, read_samples
from shaketable.reports.run_page.chosen_operations import named_operations
from shaketable.reports.run_page.violations import (
    OperationLookup,
    group_findings,
    kind_totals,
    promise_rows,
    promised,
)
from shaketable.reports.run_view import (
    CheckerView,
    DrainRow,
    FaultRow,
    RoleSpan,
    RunView,
    StatsRow,
)
from shaketable.reports.violation_page.building import with_pages

VERDICTS: Mapping[bool | str, str] = {True: "VALID", False: "INVALID", "unknown": "UNKNOWN"}

PROBLEMS_MAX = 20
"""Problems noted by the run itself (such as a node that exited) that are shown."""

ERRORS_MAX: Final = 30
"""Different error texts that are listed."""

NOT_KNOWN = "not known"
OTHER_FAMILY = "other"
NO_KIND = len(FINDING_KINDS) + 1
RULES = "invariants"
"""The checker of whether the nodes kept their own invariants (harness.judging.invariants)."""
EXPLAINS_LAST = ("stats", "vacuity")
"""Checkers whose UNKNOWN explains least, the least first: other problems may be its cause."""


def build_view(folder_path: Path) -> RunView:
    """Read a run folder into the view model of its report.

    Missing and damaged parts are listed in the view's `notes`.

    Raises:
        NotADirectoryError: there is no such folder.
    """
    files = read_run(folder_path)
    end_ns = _end_ns(files)
    notes = list(files.notes)
    windows = _windows(files, end_ns, notes)
    lanes = role_spans(files.status, end_ns)
    results: Mapping[str, Any] = files.results or {}
    checkers = with_pages(_checkers(results, OperationLookup(files.operations, windows)))
    unavailable = mapping(files.run.get("faults_unavailable"))
    sampled = read_samples(files.samples)
    notes += _run_notes(files, results, sampled)
    available = availability(files.operations, _client_activity(files))
    lost = losses(results) if results else NOT_JUDGED
    promises = results.get("promises") or _fact(files, "promises")
    verdict = _verdict(results)
    nodes = _nodes(files, [lane.node for lane in lanes])
    return RunView(
        folder=str(folder_path),
        name=str(_fact(files, "name") or folder_path.resolve().parent.name),
        started=_started(files),
        verdict=verdict,
        why=_why(verdict, results, checkers),
        target=str(_fact(files, "target") or NOT_KNOWN),
        world=str(_fact(files, "world") or NOT_KNOWN),
        mutant=_fact(files, "mutant") or None,
        workload=str(_fact(files, "workload") or NOT_KNOWN),
        seed=_seed(files),
        faults_asked=_faults_asked(files),
        faults_unavailable=tuple((str(f), str(why)) for f, why in unavailable.items()),
        families=families(results),
        nodes=nodes,
        command=_command(files, _seed(files)),
        promises=promised(promises),
        duration_ns=end_ns,
        outcomes=count_outcomes(files.operations),
        leader_changes=_leader_changes(lanes),
        failover_goals_s=_failover_goals(files, promises),
        notes=tuple(notes),
        faults=_faults(
            files, windows, lanes, len(nodes), available, lost, fails_over=_fails_over(promises)
        ),
        phases=phase_spans(files.run.get("phases"), end_ns),
        lanes=lanes,
        checkers=checkers,
        stats=stats_rows(files.operations, windows),
        errors=error_texts(files.operations),
        drain=drain_rows(files.drain),
        files=existing_files(folder_path),
        operations=files.operations,
        versions=dict(mapping(files.run.get("versions"))),
        why_kinds=_why_kinds(verdict, results, checkers),
        observed=_observed(checkers, promises),
        op_timeout_s=_seconds(_fact(files, "op_timeout")),
        memory=_memory(files.run.get("memory")),
        promise_rows=promise_rows(promises, checkers),
        availability=available,
        losses=lost,
        sampled=sampled,
        named=named_operations(results),
        mutant_breaks=str(files.run.get("mutant_breaks") or ""),
        linearizable=_linearizable(promises),
        promise_note=_own_note(promises),
    )


def _faults_asked(files: RunFiles) -> tuple[str, ...]:
    asked = _fact(files, "faults_asked", "faults")
    return (NOT_KNOWN,) if asked is None else _names(asked)


def _run_notes(files: RunFiles, results: Mapping[str, Any], sampled: Sampled) -> list[str]:
    """Return what the run and its judging noted, and how many samples were malformed."""
    incomplete = results.get("incomplete")
    notes = [f"the history is incomplete: {incomplete}"] if incomplete else []
    unavailable = mapping(files.run.get("faults_unavailable"))
    notes += [f"fault {fault} is not available: {why}" for fault, why in unavailable.items()]
    notes += [str(problem) for problem in files.run.get("problems") or ()][:PROBLEMS_MAX]
    if left_out := sampled.left_out:
        notes.append(f"samples.jsonl has {left_out} row(s) that are no samples, left out here")
    return notes


def _linearizable(promises: object) -> frozenset[str]:
    return frozenset(map(str, listed(mapping(promises).get("linearizable"))))


def _own_note(promises: object) -> str:
    """Return the target's own note; "" if it is held to another target's promises."""
    note = str(mapping(promises).get("note") or "").rstrip(".")
    return "" if note.startswith(RAISED_BY_HAND) else note


def _seed(files: RunFiles) -> str:
    seed = _fact(files, "seed")
    return NOT_KNOWN if seed is None else str(seed)


def _leader_changes(lanes: Sequence[RoleSpan]) -> int | None:
    is_known = any(span.term or span.role == "leader" for span in lanes)
    return leader_changes(lanes) if is_known else None


def _fact(files: RunFiles, *names: str) -> Any:
    """Return a fact from the first source that has it: run, results, campaign (any table)."""
    campaign_tables = [table for table in files.campaign.values() if isinstance(table, dict)]
    for name in names:
        for source in (files.run, files.results or {}, files.campaign, *campaign_tables):
            if source.get(name) is not None:
                value = source[name]
                return value.get("name") if isinstance(value, dict) and "name" in value else value
    return None


def _windows(files: RunFiles, end_ns: int, notes: list[str]) -> tuple[FaultWindow, ...]:
    try:
        return fault_windows(files.nemesis, end_ns)
    except (ValueError, KeyError, TypeError) as error:
        notes.append(f"the faults of history/events.parquet make no sense: {error}")
        return ()


def _fails_over(promises: object) -> bool:
    """Return whether another node takes over from a killed leader (contracts.promises)."""
    said = mapping(promises)
    fails_over = said.get("fails_over")
    return bool(said.get("committed_prefix", True) if fails_over is None else fails_over)


def _failover_goals(files: RunFiles, promises: object) -> Goals:
    """Return the goals of the target's promises; runs of old have them beside the times."""
    measured = mapping((files.results or {}).get("failover"))
    older = [measured.get("goal_median_s"), measured.get("goal_p99_s")]
    goals = mapping(promises).get("failover_goals_s") or older
    match goals:
        case [int() | float() as median_s, int() | float() as p99_s]:
            both = (float(median_s), float(p99_s))
            return both if all(0 <= each < math.inf for each in both) else None
    return None


def _faults(
    files: RunFiles,
    windows: Sequence[FaultWindow],
    lanes: Sequence[RoleSpan],
    nodes: int,
    available: Availability | None,
    lost: Losses,
    *,
    fails_over: bool,
) -> tuple[FaultRow, ...]:
    """Join each fault with the group's recovery from it and its cost."""
    plans = aimed_plans(files.nemesis)
    followed = elections(lanes, windows, plans, nodes)
    recoveries = recovery_times(files.operations, windows, _client_activity(files))
    rows = []
    for window, recovery in zip(windows, recoveries, strict=True):
        election = followed.get(window.fault)
        took_ns = None if election is None else election.took_ns
        killed = fails_over and kills_leader(window, plans.get(window.fault, {}), nodes)
        rows.append(
            FaultRow(
                window,
                recovery,
                election is not None,
                took_ns,
                killed,
                None if available is None else available.lost_ns(window.from_ns, recovery.until_ns),
                lost.by_fault.get(window.fault, 0),
            )
        )
    return tuple(rows)


def _client_activity(files: RunFiles) -> ClientActivity | None:
    """Return when clients worked, if the run has phases."""
    phases = phase_spans(files.run.get("phases"), _end_ns(files))
    until_ns = active_until(phases, _seconds(_fact(files, "time_limit")))
    return None if until_ns is None else ClientActivity(until_ns, files.given_up)


def _seconds(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]  # a number, as tested


def _memory(memory: object) -> tuple[tuple[str, int, int, int], ...]:
    """Return (name, first, last, most) in bytes for each process; empty for older runs."""
    used = {str(name): mapping(of) for name, of in mapping(memory).items()}
    return tuple(
        (name, int(of["first"]), int(of["last"]), int(of["most"]))
        for name, of in used.items()
        if all(isinstance(of.get(key), int) for key in ("first", "last", "most"))
    )


def _verdict(judged: Mapping[str, Any]) -> str:
    valid = judged.get("valid")
    return VERDICTS.get(valid, "UNKNOWN") if isinstance(valid, bool | str) else "UNKNOWN"


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip() not in ("", "none"))
    if isinstance(value, Mapping):
        return tuple(str(word) for word in value)
    return tuple(str(word) for word in value) if isinstance(value, Sequence) else ()


def _end_ns(files: RunFiles) -> int:
    """Return the end of the run: the latest time in any file."""
    columns = (files.operations["call_ns"], files.operations["return_ns"], files.nemesis["time_ns"])
    times = [pc.max(column).as_py() or 0 for column in columns]
    times += [int(row["time_ns"]) for row in files.status if "time_ns" in row]
    phases: tuple[PhaseSpan, ...] = phase_spans(files.run.get("phases"), 0)
    times += [max(phase.start_ns, phase.stop_ns) for phase in phases]
    return max(times)


def _started(files: RunFiles) -> str:
    """Return the start of the run, UTC, from run.json, else the folder's name."""
    started = files.run.get("started") or files.run.get("started_utc")
    return str(started or files.folder.resolve().name)


def _nodes(files: RunFiles, seen: Iterable[str]) -> tuple[str, ...]:
    nodes = _fact(files, "nodes")
    if isinstance(nodes, int):
        return tuple(f"n{number}" for number in range(nodes))
    named = _names(nodes) or tuple(mapping(files.drain.get("nodes")))
    return tuple(sorted(set(named or seen)))


def _command(files: RunFiles, seed: str) -> str:
    """Return the command line of the run, with its seed even if that was chosen at random."""
    if repeat := (files.results or {}).get("repeat"):
        return str(repeat)
    command = _fact(files, "command")
    if isinstance(command, list):
        command = shlex.join(map(str, command))
    text = str(command) if command else f"{PROGRAM} run {files.folder / 'campaign.toml'}"
    if "--seed" not in text and seed != NOT_KNOWN:
        text += f" --seed {shlex.quote(seed)}"
    return text


def _why(verdict: str, results: Mapping[str, Any], checkers: Sequence[CheckerView]) -> str:
    """Return one sentence on what decided the verdict, the gravest first."""
    if stated := results.get("why"):
        return str(stated)
    if not results:
        return "nothing was judged: the run has no results.json that can be read"
    if verdict == "VALID":
        return "all checks passed: every promise that was tested held"
    decisive = [checker for checker in checkers if checker.verdict == verdict]
    if not decisive:
        return "no checker reported more"
    if verdict == "UNKNOWN":  # the summaries have the reason for UNKNOWN, not the findings
        return _summaries(sorted(decisive, key=_explains))
    # The summary of a broken invariant is more specific than its kind.
    rules = [checker.summary for checker in decisive if checker.name == RULES]
    others = [checker for checker in decisive if checker.name != RULES]
    found = finding_texts.summarize(
        finding_texts.merge_totals(checker.totals for checker in others)
    )
    silent = _summaries(checker for checker in others if not checker.totals)
    return "; ".join(part for part in (*rules, found, silent) if part)


def _explains(checker: CheckerView) -> int:
    """Return the rank of a checker's UNKNOWN as an explanation, the best first."""
    if checker.name == "run-as-planned":
        return -1
    return EXPLAINS_LAST[::-1].index(checker.name) + 1 if checker.name in EXPLAINS_LAST else 0


def _observed(checkers: Sequence[CheckerView], promises: object) -> str:
    """Return what was found that was never promised, and what the target documents about it."""
    totals = finding_texts.merge_totals(checker.observed_totals for checker in checkers)
    if not totals:
        return ""
    documented = mapping(promises).get("documented")
    text = finding_texts.summarize(totals)
    return f"{text}. Documented: {documented}" if documented else text


def _why_kinds(verdict: str, results: Mapping[str, Any], checkers: Sequence[CheckerView]) -> str:
    """Return the decisive checkers' own summaries, where `why` has short texts in their place."""
    decisive = [
        checker
        for checker in checkers
        if checker.verdict == verdict and checker.totals and checker.name != RULES
    ]
    return _summaries(decisive) if verdict == "INVALID" and not results.get("why") else ""


def _summaries(checkers: Iterable[CheckerView]) -> str:
    return "; ".join(f"{checker.name}: {checker.summary}" for checker in checkers)


def _checkers(results: Mapping[str, Any], lookup: OperationLookup) -> tuple[CheckerView, ...]:
    """Return the checkers, the gravest first: by verdict, then by findings."""
    views = [
        _checker(str(name), mapping(verdict), lookup)
        for name, verdict in mapping(results.get("checkers")).items()
    ]
    return tuple(sorted(views, key=_gravity))


def _gravity(checker: CheckerView) -> tuple[int, int]:
    gravest = min((finding_texts.rank(kind) for kind, _ in checker.totals), default=NO_KIND)
    return ("INVALID", "UNKNOWN", "VALID").index(checker.verdict), gravest


def _checker(name: str, verdict: Mapping[str, Any], lookup: OperationLookup) -> CheckerView:
    findings = list(verdict.get("findings") or ())
    observed = list(verdict.get("observed") or ())
    data = mapping(verdict.get("data"))
    crash = data.get("traceback") or verdict.get("traceback")
    totals = kind_totals(verdict)
    return CheckerView(
        name=name,
        verdict=_verdict(verdict),
        summary=str(verdict.get("summary") or ""),
        counts=tuple(
            (str(key).replace("_", " "), number_text(value))
            for key, value in mapping(verdict.get("counts")).items()
        ),
        groups=group_findings(findings, totals, lookup, name),
        findings_total=int(verdict.get("findings_total") or len(findings)),
        findings_kept=len(findings),
        observed=group_findings(observed, {}, lookup, name),
        crash=None if crash is None else str(crash),
        totals=tuple(totals.items()),
        resolved=tuple(map(str, data.get("closed") or ())),
        observed_totals=tuple(
            (str(kind), int(count)) for kind, count in mapping(data.get("observed")).items()
        ),
    )


def number_text(value: object) -> str:
    """Print a number with thousands separators; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


# Counts and lists: operations by outcome, errors, the nodes' last status, files, fault families.


def count_outcomes(operations: pa.Table) -> tuple[int, int, int]:
    """Count operations that ended ok, fail and info."""
    counts = Counter(
        {row["values"]: row["counts"] for row in pc.value_counts(operations["outcome"]).to_pylist()}
    )
    return counts["ok"], counts["fail"], counts["info"]


def stats_rows(operations: pa.Table, windows: Sequence[FaultWindow]) -> tuple[StatsRow, ...]:
    """Count operations by f and outcome, inside and outside of fault windows (by their call)."""
    if operations.num_rows == 0:
        return ()
    calls = operations["call_ns"]
    inside = pc.less(calls, 0)  # false everywhere
    for window in windows:
        during = pc.and_(
            pc.greater_equal(calls, window.start_ns), pc.less_equal(calls, window.stop_ns)
        )
        inside = pc.or_(inside, during)
    grouped = (
        pa.table({"f": operations["f"], "outcome": operations["outcome"], "inside": inside})
        .group_by(["f", "outcome", "inside"])
        .aggregate([([], "count_all")])
        .to_pylist()
    )
    counts = {(row["f"], row["inside"], row["outcome"]): row["count_all"] for row in grouped}
    return tuple(
        StatsRow(f, "inside faults" if place else "outside faults", *cells)
        for f in sorted({row["f"] for row in grouped})
        for place in (False, True)
        if any(cells := [counts.get((f, place, outcome), 0) for outcome in ("ok", "fail", "info")])
    )


def error_texts(operations: pa.Table) -> tuple[tuple[str, str, int], ...]:
    """Count errors by outcome and text, the most frequent first."""
    failed = operations.filter(pc.is_valid(operations["error"]))
    rows = failed.group_by(["outcome", "error"]).aggregate([([], "count_all")]).to_pylist()
    rows.sort(key=lambda row: (-row["count_all"], row["error"]))
    shown = [(row["outcome"], row["error"], row["count_all"]) for row in rows[:ERRORS_MAX]]
    if rest := rows[ERRORS_MAX:]:
        shown.append(("", f"{len(rest)} other texts", sum(row["count_all"] for row in rest)))
    return tuple(shown)


def drain_rows(drain: Mapping[str, Any]) -> tuple[DrainRow, ...]:
    """Return the status that each node reported while draining."""
    rows = []
    for node, answer in sorted(mapping(drain.get("nodes")).items()):
        status = mapping(answer)
        rows.append(
            DrainRow(
                node=str(node),
                role=status.get("role"),
                term=status.get("term") or None,
                leader=status.get("leader"),
                committed_index=_index(status.get("committed_index")),
                end_index=_index(status.get("end_index")),
            )
        )
    return tuple(rows)


def _index(value: object) -> int | None:
    """Return an index of `contracts.plugins.NodeStatus`; None for one that is not shown."""
    return value if isinstance(value, int) and value >= 0 else None


def existing_files(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the relative paths and descriptions of files to open, those that exist."""
    named = [
        ("campaign.toml", "the campaign as resolved, seed included"),
        ("schedule.json", "the faults as drawn, with their times"),
        ("results.json", "the verdicts with their evidence"),
        ("history.jsonl", "every event, one a line"),
        ("history/events.parquet", "every event, as a table"),
        ("history/operations", "every operation, as Parquet"),
        ("faults.jsonl", "the ledger of faults"),
        ("status.jsonl", "changes of the nodes' roles and terms"),
        (
            "samples.jsonl",
            "how far the nodes' logs were and what their clocks showed, now and then",
        ),
        ("drain.json", "what the nodes reported while draining"),
        ("run.json", "facts of the run"),
        ("memory.jsonl", "what the harness and its workers had of memory"),
        ("shaketable.log", "the harness's log"),
        ("junit.xml", "the verdicts for CI"),
    ]
    files = [(path, what) for path, what in named if (folder / path).exists()]
    logs = sorted(folder.glob("nodes/*/node.log"))
    files += [(log.relative_to(folder).as_posix(), f"log of {log.parent.name}") for log in logs]
    return tuple(files)


def families(results: Mapping[str, Any]) -> tuple[tuple[str, int, int], ...]:
    """Return (family, took effect, injected) by family; empty for results of older versions."""
    took_effect: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for of_fault in mapping(mapping(results.get("faults")).get("by_name")).values():
        family = str(of_fault["family"]) if "family" in mapping(of_fault) else OTHER_FAMILY
        took_effect[family] += int(mapping(of_fault).get("took_effect") or 0)
        done[family] += int(mapping(of_fault).get("done") or 0)
    return tuple((family, took_effect[family], done[family]) for family in sorted(done))


# The folder is read.

Json = dict[str, Any]
Part = TypeVar("Part")

REBUILD = "`shaketable analyze` on this folder rebuilds it"
"""Advice for a missing part that the recorded segments can restore."""

NEMESIS_COLUMNS = ["time_ns", "process", "f", "value"]

SAMPLES_MAX = 200_000
"""Rows of samples.jsonl that are read: as many as a run writes."""

NOTES_MAX = 20
"""Further notes are only counted."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The parts of a run folder, each empty if its file is missing or damaged."""

    folder: Path
    run: Json
    campaign: Json
    results: Json | None
    operations: pa.Table
    nemesis: pa.Table
    given_up: pa.Table
    status: tuple[Json, ...]
    samples: tuple[Json, ...]
    drain: Json
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Reader:
    """Reads parts of the folder and collects notes about missing and damaged ones."""

    folder: Path
    notes: list[str] = field(default_factory=list)

    def part(self, name: str, read: Callable[[Path], Part], absent: Part, consequence: str) -> Part:
        path = self.folder / name
        if not path.exists():
            self.notes.append(f"{name} is missing: {consequence}")
            return absent
        if not (path.is_file() or path.is_dir()):  # reading a pipe would block
            self.notes.append(f"{name} is no regular file: {consequence}")
            return absent
        try:
            return read(path)
        except pa.ArrowException:
            why = "it is cut, or no Parquet file"
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = _first_line(error)
        self.notes.append(f"{name} cannot be read ({why}): {consequence}")
        return absent

    def lines(self, path: Path) -> tuple[Json, ...]:
        """Read JSON lines; skip damaged ones, such as the cut last line of a killed writer."""
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
        rows, damaged = [], 0
        for text in texts:
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except ValueError:
                row = None
            if isinstance(row, dict):
                rows.append(row)
            else:
                damaged += 1
        if damaged:
            self.notes.append(f"{path.name} has {damaged} cut or damaged line(s), left out here")
        return tuple(rows)

    def operations(self, directory: Path) -> pa.Table:
        """Read operations/*.parquet file by file: one damaged file does not hide the rest."""
        tables = []
        for path in sorted(directory.glob("*.parquet")):
            name = f"history/operations/{path.name}"
            table = self.part(
                name, _read_operations, None, f"its operations are left out; {REBUILD}"
            )
            if table is not None:
                tables.append(table)
        return pa.concat_tables(tables) if tables else OPERATIONS.empty_table()


def read_run(folder: Path) -> RunFiles:
    """Read a run folder.

    Raises:
        NotADirectoryError: there is no such folder.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a run's folder: there is no such directory")
    reader = _Reader(folder)
    part = reader.part
    absent: Json = {}
    run = part("run.json", _read_json, absent, "the facts of the run are not known here")
    if run and run.get("status") not in (None, "complete"):
        reader.notes.append(f"the run's status is {run['status']!r}: it did not come to its end")
    return RunFiles(
        folder=folder,
        run=run,
        campaign=part("campaign.toml", _read_toml, absent, "what was requested is not known here"),
        results=part("results.json", _read_json, None, f"nothing was judged; {REBUILD}"),
        operations=part(
            "history/operations",
            reader.operations,
            OPERATIONS.empty_table(),
            f"no operation can be shown; {REBUILD}",
        ),
        nemesis=(
            events := part(
                "history/events.parquet",
                _read_events,
                (EVENTS.empty_table(), GIVEN_UP.empty_table()),
                f"the faults' times are not known; {REBUILD}",
            )
        )[0],
        given_up=events[1],
        status=part("status.jsonl", reader.lines, (), "who led is not known"),
        samples=_samples(reader),
        drain=part(
            "drain.json", _read_json, absent, "what the nodes reported while draining is lost"
        ),
        notes=_bounded(reader.notes),
    )


def _samples(reader: _Reader) -> tuple[Json, ...]:
    """Read the samples, if there are any: runs of earlier versions have none."""
    name = "samples.jsonl"
    if not (reader.folder / name).exists():
        return ()
    none: tuple[Json, ...] = ()
    rows = reader.part(name, reader.lines, none, "the nodes' logs and clocks are not shown")
    return rows[:SAMPLES_MAX]


def _bounded(notes: list[str]) -> tuple[str, ...]:
    if len(notes) <= NOTES_MAX:
        return tuple(notes)
    rest = len(notes) - NOTES_MAX
    return (*notes[:NOTES_MAX], f"and {rest} more parts that are missing or damaged")


def _read_json(path: Path) -> Json:
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise TypeError("it holds no JSON object")
    return value


def _read_toml(path: Path) -> Json:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _read_operations(path: Path) -> pa.Table:
    table = pq.read_table(path)
    absent = [name for name in OPERATIONS.names if name not in table.column_names]
    if absent:
        raise KeyError(f"no column {absent[0]}")
    return table.select(OPERATIONS.names).cast(OPERATIONS)


def _read_events(path: Path) -> tuple[pa.Table, pa.Table]:
    """Return the nemesis's rows by time, and when clients gave up on indeterminate operations."""
    schema = pa.schema([EVENTS.field(name) for name in NEMESIS_COLUMNS])
    is_nemesis = [("process", "=", NEMESIS_PROCESS)]
    nemesis = pq.read_table(path, columns=NEMESIS_COLUMNS, filters=is_nemesis)
    is_info = [("type", "=", "info"), ("process", ">", NEMESIS_PROCESS)]
    given_up = pq.read_table(path, columns=GIVEN_UP.names, filters=is_info)
    return nemesis.cast(schema).sort_by("time_ns"), given_up.cast(GIVEN_UP)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__

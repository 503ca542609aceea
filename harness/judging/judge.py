"""Judge a recorded run: history -> tables -> checkers -> results.json and the report.

Needs only the run's folder, not the cluster, so that a run whose harness was killed is judged in
the same way.

Also saved are the log entries around findings (evidence/entries.json), which the pages of
violations show: the nodes' data files may be deleted later, and reports do not know how to read
them. That changes no verdict, and no error of it ends a check.

What was judged while a run went on is compared with what its checkers say at the end. Both judge
the same recordings, so they agree. If they do not, one of them is wrong: an internal error, which
is told, and a violation that was proven stands. If the check could not decide what had been proven,
the proof decides.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.engine.judge import CheckJob, SegmentedReader
from shaketable.checkers.logs.entries_around import AckedAppends, Place, collect
from shaketable.harness import discovery
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import Campaign, faults_of, repeat_command, target_of
from shaketable.harness.contracts.abilities import Broken, SegmentedLog, ShowsLogs
from shaketable.harness.contracts.capabilities import family_of
from shaketable.harness.contracts.clients import patience_s_of, topics_of
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.finding_kinds import record_of
from shaketable.harness.contracts.plugins import CheckContext, FaultWindow, Promises, Target
from shaketable.harness.contracts.promises import BUILT_IN_FAULTS
from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict, join
from shaketable.harness.history.export import (
    Exported,
    export,
    export_events,
    load_given_up,
    load_operations,
)
from shaketable.harness.history.run_folder import (
    NoPlainFileError,
    RunFolder,
    read_plain,
    write_atomically,
)
from shaketable.harness.history.schema import APPENDING
from shaketable.harness.judging import invariants
from shaketable.harness.judging.engines import Engine
from shaketable.harness.judging.invariants import judge_invariants
from shaketable.harness.runtime import availability

if TYPE_CHECKING:
    from shaketable.reports import Report
    from shaketable.reports.availability import ClientActivity

log = logging.getLogger(__name__)

ONE_LOG: Final = "committed-prefix"
"""The checker for targets whose nodes replicate one log; in other targets logs may differ."""
OF_LOGS, OF_FINAL_READS = "durability", "final-reads"
"""The durability checkers: by the nodes' logs, or by final reads where there are no logs."""
FAILOVER_COLUMNS: Final = ("process", "f", "call_ns", "return_ns", "outcome")
"""Columns of OPERATIONS that the failover times are measured from."""


def judge(
    folder: RunFolder, campaign: Campaign, engine: Engine, progress: Callable[[str], None]
) -> Results:
    """Export the history, check it, write results.json; `render` writes the report.

    Raises:
        HarnessError: the recordings cannot be read, or a file cannot be written.
        UsageError: the engine cannot start.
    """
    engine.warm_up()
    progress("exporting the history")
    # The check needs only the operations; the events of a large history take longer to write.
    exported = export(folder, with_events=False)
    target = target_of(campaign)
    job = _job(folder, campaign, target, exported)
    try:
        found = engine.run(job, progress)
    finally:
        progress("writing the events")
        export_events(folder)
    client_violations = _client_violations(folder, job.context) if campaign.world == "sim" else ()
    own = judge_invariants(folder, target, job.context, client_violations)
    verdicts = [*([] if own is None else [own]), *found, judge_run_as_planned(folder)]
    disagreement = judge_agreement(folder, verdicts)
    verdicts += [] if disagreement is None else [disagreement]
    judged = Results(
        campaign=campaign,
        promises=promises_by(campaign, target),
        verdicts=tuple(verdicts),
        windows=exported.windows,
        incomplete=exported.incomplete,
        repeat=folder.facts().get("repeat") or repeat_command(campaign, folder.path),
        engine=engine.kind,
        failover=_failover(folder, campaign, exported, target.promises),
        faults_unavailable=_unavailable(folder),
    )
    write_results(folder, judged)
    if any(verdict.findings or verdict.observed for verdict in verdicts):
        progress("keeping what the logs hold around what was found")
    save_log_entries(folder, job, verdicts)
    return judged


def _client_violations(folder: RunFolder, context: CheckContext) -> tuple[Broken, ...]:
    """Return rules that clients saw broken though no fault disturbed the group, in virtual time."""
    if context.incomplete is not None:
        return ()
    operations = load_operations(folder, invariants.COLUMNS)
    return invariants.find_broken(operations, load_given_up(folder), context)


def _failover(
    folder: RunFolder, campaign: Campaign, exported: Exported, promises: Promises
) -> dict[str, Any] | None:
    """Measure how soon writes went on after kills of the leader; None if there were none."""
    from shaketable.reports import availability  # noqa: PLC0415 - only where a run is judged
    from shaketable.reports.elections import aimed_plans  # noqa: PLC0415

    has_kills = any(window.name == availability.KILL for window in exported.windows)
    if not (has_kills and promises.is_failover_measured):
        return None
    found = availability.measure_failover(
        load_operations(folder, FAILOVER_COLUMNS),
        exported.windows,
        aimed_plans(exported.nemesis),
        campaign.nodes,
        _client_activity(folder, campaign, exported.end_ns),
        promises.failover_goals_s,
    )
    return None if found is None else availability.failover_json(found)


def _client_activity(folder: RunFolder, campaign: Campaign, end_ns: int) -> ClientActivity | None:
    """Return when clients worked, if run.json has it; needs the exported events."""
    from shaketable.reports.availability import (  # noqa: PLC0415 - only where a run is judged
        ClientActivity,
        active_until,
        phase_spans,
    )

    phases = phase_spans(folder.facts().get("phases"), end_ns)
    until_ns = active_until(phases, campaign.time_limit_s)
    return None if until_ns is None else ClientActivity(until_ns, load_given_up(folder))


def _unavailable(folder: RunFolder) -> dict[str, str]:
    """Return the requested faults that the run could not inject, each with the reason."""
    return dict(folder.facts().get("faults_unavailable") or {})


def render(folder: RunFolder) -> Report:
    """Write report.html, junit.xml and the violation pages of a run.

    Raises:
        HarnessError: they cannot be written.
    """
    from shaketable import reports  # noqa: PLC0415 - its plots take half a second to import; `list` needs none

    try:
        return reports.write(folder.path)
    except OSError as error:
        raise HarnessError(
            f"cannot write the report: {error.strerror}: {error.filename}"
        ) from error


def with_run(
    context: CheckContext, folder: RunFolder, campaign: Campaign, windows: tuple[FaultWindow, ...]
) -> CheckContext:
    """Add what a run's folder says of its faults, elections and clients.

    Raises:
        UsageError: the workload is not installed here.
        HarnessError: run.json is damaged.
    """
    workload = discovery.get("workloads", campaign.workload)
    return replace(
        context,
        windows=windows,
        families=_families(windows),
        final_from_ns=_final_from_ns(folder),
        elections_ns=tuple(_elections_ns(folder)),
        stalls=tuple((from_ns, to_ns) for from_ns, to_ns in folder.facts().get("stalls") or ()),
        patience_ns=int(patience_s_of(campaign.op_timeout_s, workload) * 1e9),
        topics=topics_of(workload),
    )


def promises_by(campaign: Campaign, target: Target | None = None) -> Promises:
    """Return the promises that a run is judged by: the campaign's own, or else its target's.

    Raises:
        UsageError: the target is not installed here.
    """
    target = target_of(campaign) if target is None else target
    return campaigns.promises_of(campaign, target) or target.promises


def _job(folder: RunFolder, campaign: Campaign, target: Target, exported: Exported) -> CheckJob:
    workload = discovery.get("workloads", campaign.workload)
    nodes = campaigns.node_names(campaign)
    unavailable = _unavailable(folder)
    context = CheckContext(
        nodes=nodes,
        committed=committed_indexes(folder),
        promises=promises_by(campaign, target),
        faults_asked=tuple(name for name in faults_of(campaign) if name not in unavailable),
        incomplete=exported.incomplete,
        logs_declared=isinstance(target, ShowsLogs),
    )
    context = with_run(context, folder, campaign, exported.windows)
    return CheckJob(
        operations=tuple(sorted(folder.operations.glob("*.parquet"))),
        # A missing folder is an unreadable log, never an empty one.
        logs={node: folder.node(node) for node in nodes},
        read_log=target.read_log,
        context=context,
        checkers=tuple(
            discovery.get("checkers", name) for name in _checkers(workload.checkers, target)
        ),
        segments=(
            SegmentedReader(target.log_segments, target.read_segment)
            if isinstance(target, SegmentedLog)
            else None
        ),
    )


def _checkers(names: Sequence[str], target: Target) -> Iterator[str]:
    """Yield the checkers' names; without readable logs final reads replace them."""
    has_logs = not isinstance(target, ShowsLogs) or target.logs_readable
    for name in names:
        if name == OF_LOGS:
            yield name if has_logs else OF_FINAL_READS
        elif name != ONE_LOG or (target.promises.committed_prefix and has_logs):
            yield name


def _final_from_ns(folder: RunFolder) -> int | None:
    """Return when the drain started; None if the run did not get so far."""
    return _phase_start_ns(folder, "drain")


def _phase_start_ns(folder: RunFolder, name: str) -> int | None:
    phases = folder.facts().get("phases") or ()
    return next((int(phase["start_ns"]) for phase in phases if phase["name"] == name), None)


def _elections_ns(folder: RunFolder) -> Iterator[int]:
    """Yield the times at which a new highest term was first seen, since clients started.

    A torn last line of the file is ignored.
    """
    since_ns = _phase_start_ns(folder, "steady") or 0
    highest: int | None = None
    with suppress(OSError, ValueError), folder.status_jsonl.open(encoding="utf-8") as lines:
        for status in map(json.loads, lines):
            term, at_ns = status["term"], int(status["time_ns"])
            if term is not None and (highest is None or term > highest):
                if highest is not None and at_ns >= since_ns:
                    yield at_ns
                highest = term


def _families(windows: Iterable[FaultWindow]) -> dict[str, str]:
    """Return the families of external faults that were injected, if they are still installed."""
    names = {window.name for window in windows} - BUILT_IN_FAULTS
    here = discovery.find("faults") if names else {}
    return {name: family_of(here[name]) for name in names if name in here}


def committed_indexes(folder: RunFolder) -> dict[str, int]:
    """Return each node's commit index as reported in the drain, without nodes that did not answer.

    Raises:
        HarnessError: drain.json exists and cannot be read.
    """
    try:
        nodes = json.loads(folder.drain_json.read_bytes())["nodes"]
        return {
            node: int(status["committed_index"])
            for node, status in nodes.items()
            if status is not None
        }
    except FileNotFoundError:
        return {}  # the run was killed before its drain
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HarnessError(f"cannot read {folder.drain_json}: {error}") from error


def stored_campaign(folder: RunFolder) -> Campaign:
    """Read the campaign of a stored run.

    Raises:
        HarnessError: its campaign.toml is damaged.
    """
    try:
        return campaigns.load(folder.campaign_toml)
    except UsageError as error:
        raise HarnessError(f"this run cannot be judged: {error}") from error


# results.json: the verdicts of the checkers, for programs.
#
# Source: Jepsen's results.edn (`valid?` nested by checker); DESIGN.md section 3.

FORMAT = 1
"""Incremented when a reader of older files would misread newer ones."""


@dataclass(frozen=True, slots=True)
class Results:
    """A judged run: the campaign, the promises it was judged by, and the verdicts.

    `failover`: how soon writes continued after kills of the leader, if there were any.
    `faults_unavailable`: requested faults that cannot be injected into the group, and why.
    """

    campaign: Campaign
    promises: Promises
    verdicts: tuple[Verdict, ...]
    windows: tuple[FaultWindow, ...]
    incomplete: str | None
    repeat: str
    engine: str
    failover: dict[str, Any] | None = None
    faults_unavailable: Mapping[str, str] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """The worst of all verdicts."""
        return join(self.verdicts)


def write_results(folder: RunFolder, results: Results) -> None:
    """Write results.json.

    Raises:
        HarnessError: it cannot be written.
    """
    text = json.dumps(to_json(results), indent=2, default=_jsonable)
    write_atomically(folder.results_json, text + "\n")


def to_json(results: Results) -> dict[str, Any]:
    """Return the content of results.json."""
    campaign = results.campaign
    return {
        "format": FORMAT,
        "valid": results.outcome.json_value,
        "seed": campaign.seed,
        "target": campaign.target,
        "mutant": campaign.mutant,
        "workload": campaign.workload,
        "faults_asked": list(faults_of(campaign)),
        "faults": {
            "applied": len(results.windows),
            "took_effect": sum(window.took_effect for window in results.windows),
            "by_name": _by_name(campaign, results.windows),
        },
        "faults_unavailable": dict(results.faults_unavailable),
        "failover": results.failover,
        "incomplete": results.incomplete,
        "promises": results.promises.as_json(),
        "engine": results.engine,
        "repeat": results.repeat,
        "checkers": {verdict.checker: _verdict(verdict) for verdict in results.verdicts},
    }


def _by_name(campaign: Campaign, windows: Sequence[FaultWindow]) -> dict[str, dict[str, Any]]:
    """Return for each requested fault its family, its injections and how many took effect."""
    return {
        name: {
            "family": family,
            "done": sum(window.name == name for window in windows),
            "took_effect": sum(window.name == name and window.took_effect for window in windows),
        }
        for name, family in availability.families(campaign).items()
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "valid": verdict.outcome.json_value,
        "summary": verdict.summary,
        "counts": verdict.counts,
        "findings_total": max(verdict.findings_total, len(verdict.findings)),
        "findings": _findings(verdict.findings),
        "observed": _findings(verdict.observed),
        "data": verdict.data,
    }


def _findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings]


def _jsonable(value: object) -> Any:
    """Convert values that JSON cannot encode: numpy's numbers, sets, others as text."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


# Judge whether a run went as planned: if not, the other verdicts mean less than they seem to.
#
# A node that exited by itself, a group that did not recover after the heal, a client worker that
# died, an undo that failed: none of these breaks a declared promise, so none is INVALID, but none
# may pass as VALID either. In virtual time more can be concluded: see `harness.runtime.liveness`.
#
# Source: Jepsen's `stats` and log-file-pattern checkers do this there.

NAME: Final = "run-as-planned"


def judge_run_as_planned(folder: RunFolder) -> Verdict:
    """Return VALID for a run that went as planned and whose group recovered, else UNKNOWN.

    Raises:
        HarnessError: run.json cannot be read.
    """
    if not folder.run_json.exists():
        return Verdict(NAME, Outcome.UNKNOWN, "there is no run.json")
    facts = folder.facts()
    try:
        findings = _plan_deviations(facts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HarnessError(f"cannot read {folder.run_json}: {error}") from error
    if not findings:
        return Verdict(NAME, Outcome.VALID, "nothing ended by itself, and the group came back")
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return Verdict(
        NAME, Outcome.UNKNOWN, findings[0].message + more, tuple(findings), len(findings)
    )


def _plan_deviations(facts: dict[str, Any]) -> list[Finding]:
    if facts.get("status") not in {"complete", "interrupted"}:
        return [Finding("cut-short", "the run was cut short: it never came to its end")]
    exits = [
        Finding(
            "node-ended",
            f"{one['node']} (incarnation {one['incarnation']}) ended by itself with status "
            f"{one['returncode']}: {one['last_line'] or 'it printed nothing'}",
            details=one,
        )
        for one in facts["exits"]
    ]
    stopped = facts.get("stopped_at")
    early = f"it was ended at the first violation that was seen: {stopped}"
    notes = [Finding("ended-early", early)] if stopped else []
    notes += [Finding("problem", problem) for problem in facts["problems"][: -len(exits) or None]]
    if "steady" not in {phase["name"] for phase in facts.get("phases", ())} and facts.get("phases"):
        began = "clients never began: before that the group did not serve, or the run was ended"
        return [*exits, *notes, Finding("not-begun", began)]
    drained = [
        Finding(
            "not-drained",
            "after the heal the group did not settle: clients could not finish, or the nodes "
            "did not agree on a committed index",
        )
    ]
    return [*exits, *notes, *([] if facts["drained"] else drained)]


# The log entries around findings: evidence/entries.json.

PER_KIND_MAX: Final = 8
"""Findings of each kind and fault whose entries are saved."""
MAPS_MAX: Final = 8
"""Queues that are mapped."""
FILE_BYTES_MAX: Final = 8 << 20
"""A larger file is not written: a page without entries is better than one too large to open."""
COLUMNS: Final = ("f", "key", "input", "offset", "outcome")


def save_log_entries(folder: RunFolder, job: CheckJob, verdicts: Iterable[Verdict]) -> None:
    """Write the log entries around these verdicts' findings; no file if there are none.

    Deletes the file of an earlier check. Never raises, whatever the logs hold.
    """
    try:
        folder.entries_json.unlink(missing_ok=True)
        found = [
            finding
            for verdict in verdicts
            for finding in (*verdict.findings, *verdict.observed)
            if any(True for _ in _places(finding))
        ]
        chosen = _chosen(found)
        if not chosen or not job.logs:
            return
        text = json.dumps(_collected(folder, job, chosen), separators=(",", ":"))
        if len(text) > FILE_BYTES_MAX:
            log.warning("event=evidence_too_large bytes=%d", len(text))
            return
        folder.entries_json.parent.mkdir(exist_ok=True)
        write_atomically(folder.entries_json, text + "\n")
    except Exception:  # a target's log reader may raise anything; the verdict does not depend on it
        log.exception("event=evidence_not_kept")


def _collected(folder: RunFolder, job: CheckJob, chosen: list[Finding]) -> dict[str, Any]:
    keys = list(
        dict.fromkeys(
            finding.key
            for finding in chosen
            if finding.key is not None and record_of(finding.kind).has_map
        )
    )[:MAPS_MAX]
    logs = {node: partial(_read, job, node) for node in job.logs}
    places = [place for finding in chosen for place in _places(finding)]
    return collect(logs, places, _acked(folder, keys), job.context.committed)


def _read(job: CheckJob, node: str) -> Iterator[pa.RecordBatch]:
    return job.read_log(job.logs[node], node)


def _chosen(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first findings of each kind and fault: those that get pages.

    The first of every group come before all second ones, since the number of places is limited.
    """
    seen: Counter[tuple[str, str]] = Counter()
    chosen: list[tuple[int, Finding]] = []
    for finding in findings:
        faults = finding.details.get("faults") or [finding.details.get("fault")]
        group = (finding.kind, str(faults[0] if isinstance(faults, list) else faults))
        if seen[group] < PER_KIND_MAX:
            chosen.append((seen[group], finding))
            seen[group] += 1
    return [finding for _, finding in sorted(chosen, key=lambda ranked: ranked[0])]


def _places(finding: Finding) -> Iterator[Place]:
    """Yield the places of a finding: the offset in its queue, the indices in the log."""
    if finding.key is not None and finding.offset is not None:
        yield Place(key=finding.key, offset=finding.offset)
    for name in record_of(finding.kind).indices:
        index = finding.details.get(name)
        if isinstance(index, int) and not isinstance(index, bool):
            yield Place(index=index)


def _acked(folder: RunFolder, keys: list[str]) -> dict[str, AckedAppends]:
    if not keys:
        return {}
    try:
        rows = load_operations(folder, COLUMNS)
    except HarnessError:
        return {}
    is_acked = pc.and_(
        pc.equal(rows["outcome"], "ok"), pc.is_in(rows["f"], value_set=pa.array(APPENDING))
    )
    has_place = pc.and_(pc.is_valid(rows["offset"]), pc.is_valid(rows["input"]))
    rows = rows.filter(pc.and_(is_acked, has_place))
    return {key: AckedAppends.of(rows.filter(pc.equal(rows["key"], key))) for key in keys}


# What was judged online, and what its checkers say at the end.

AGREEMENT: Final = "online"
"""The name of the verdict on a disagreement; there is none if there is no disagreement."""
BYTES_MAX: Final = 256 << 20
FINDINGS_MAX: Final = 100


class _Line(msgspec.Struct):
    """A line of online.jsonl (`harness.judging.online`): a violation, or how it ended."""

    type: str
    checker: str
    finding: Finding | None = None
    outcome: str | None = None


def judge_agreement(folder: RunFolder, verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return a verdict on a disagreement with these; None if there is none, or nothing to compare.

    It is unknown if what was found cannot be read any more: it may have been a proof.
    """
    try:
        lines = _lines(folder)
    except (NoPlainFileError, msgspec.DecodeError) as error:
        why = f"what was found while the run went on cannot be read: {error}"
        return Verdict(AGREEMENT, Outcome.UNKNOWN, f"{folder.online_jsonl.name}: {why}")
    by_name = {verdict.checker: verdict for verdict in verdicts}
    if not lines or lines[0].checker not in by_name:
        return None
    checked = by_name[lines[0].checker]
    proven = [line.finding for line in lines if line.finding is not None]
    kinds = {finding.kind for finding in (*checked.findings, *checked.observed)}
    is_refuted = checked.outcome is Outcome.INVALID or "not-linearizable" in kinds
    if proven and not is_refuted:
        return _proven(proven, checked)
    is_valid = any(line.type == "finished" and line.outcome == Outcome.VALID.name for line in lines)
    if is_valid and is_refuted:
        return Verdict(
            AGREEMENT,
            Outcome.UNKNOWN,
            f"internal error: {checked.checker} finds what was found to be right while the run went"
            " on; please report it with this run's folder",
        )
    return None


def _proven(proven: Sequence[Finding], checked: Verdict) -> Verdict:
    keys = "1 key" if len(proven) == 1 else f"{len(proven)} keys"
    found = f"{keys} found not to be linearizable while the run went on"
    if checked.outcome is Outcome.VALID:
        why = f"internal error: {found}, and {checked.checker} finds no violation; please report it"
        why += " with this run's folder"
    else:
        why = f"{found}, which {checked.checker} did not decide"
    return Verdict(AGREEMENT, Outcome.INVALID, why, tuple(proven[:FINDINGS_MAX]), len(proven))


def _lines(folder: RunFolder) -> list[_Line]:
    """Return the lines of online.jsonl, without a torn last one; none if there is no such file."""
    if not folder.online_jsonl.exists():
        return []
    data = read_plain(folder.online_jsonl, BYTES_MAX)
    return [msgspec.json.decode(line, type=_Line) for line in data.split(b"\n")[:-1]]

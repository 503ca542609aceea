"""Judge a recorded run: history -> tables -> checkers -> results.json and the report.

Needs only the run's folder, not the cluster, so that a run whose harness was killed is judged in
the same way.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from shaketable.checkers.engine.judge import CheckJob, SegmentedReader
from shaketable.harness import discovery
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import Campaign, faults_of, repeat_command, target_of
from shaketable.harness.contracts.abilities import SegmentedLog, ShowsLogs
from shaketable.harness.contracts.broken_rules import Broken
from shaketable.harness.contracts.capabilities import family_of
from shaketable.harness.contracts.clients import topics_of
from shaketable.harness.contracts.errors import HarnessError, UsageError
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
from shaketable.harness.history.run_folder import RunFolder, write_atomically
from shaketable.harness.judging import log_entries, undisturbed
from shaketable.harness.judging.engines import Engine
from shaketable.harness.judging.invariants import judge_invariants
from shaketable.harness.judging.online_agreement import judge_agreement
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
        promises=campaigns.promises_of(campaign, target) or target.promises,
        verdicts=tuple(verdicts),
        windows=exported.windows,
        incomplete=exported.incomplete,
        repeat=repeat_command(campaign, folder.path),
        engine=engine.kind,
        # With one replicated log another node takes over; a lost master is waited for instead.
        failover=(
            _failover(folder, campaign, exported) if target.promises.committed_prefix else None
        ),
        faults_unavailable=_unavailable(folder),
    )
    write_results(folder, judged)
    if any(verdict.findings or verdict.observed for verdict in verdicts):
        progress("keeping what the logs hold around what was found")
    log_entries.save(folder, job, verdicts)
    return judged


def _client_violations(folder: RunFolder, context: CheckContext) -> tuple[Broken, ...]:
    """Return rules that clients saw broken though no fault disturbed the group, in virtual time."""
    if context.incomplete is not None:
        return ()
    operations = load_operations(folder, undisturbed.COLUMNS)
    return undisturbed.find_broken(operations, load_given_up(folder), context)


def _failover(folder: RunFolder, campaign: Campaign, exported: Exported) -> dict[str, Any] | None:
    """Measure how soon writes went on after kills of the leader; None if there were none."""
    from shaketable.reports import availability  # noqa: PLC0415 - only where a run is judged
    from shaketable.reports.elections import aimed_plans  # noqa: PLC0415

    if not any(window.name == availability.KILL for window in exported.windows):
        return None
    found = availability.measure_failover(
        load_operations(folder, FAILOVER_COLUMNS),
        exported.windows,
        aimed_plans(exported.nemesis),
        campaign.nodes,
        _client_activity(folder, campaign, exported.end_ns),
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


def _job(folder: RunFolder, campaign: Campaign, target: Target, exported: Exported) -> CheckJob:
    workload = discovery.get("workloads", campaign.workload)
    nodes = campaigns.node_names(campaign)
    unavailable = _unavailable(folder)
    context = CheckContext(
        nodes=nodes,
        committed=committed_indexes(folder),
        promises=campaigns.promises_of(campaign, target) or target.promises,
        windows=exported.windows,
        faults_asked=tuple(name for name in faults_of(campaign) if name not in unavailable),
        incomplete=exported.incomplete,
        families=_families(exported.windows),
        logs_declared=isinstance(target, ShowsLogs),
        final_from_ns=_final_from_ns(folder),
        elections_ns=tuple(_elections_ns(folder)),
        stalls=tuple((from_ns, to_ns) for from_ns, to_ns in folder.facts().get("stalls") or ()),
        topics=topics_of(workload),
    )
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
            "bit": sum(window.took_effect for window in results.windows),
            "by_name": _by_name(campaign, results.windows),
        },
        "faults_unavailable": dict(results.faults_unavailable),
        "failover": results.failover,
        "incomplete": results.incomplete,
        "promises": _promises(results.promises),
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
            "bit": sum(window.name == name and window.took_effect for window in windows),
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


def _promises(promises: Promises) -> dict[str, Any]:
    return {
        "durable_under": sorted(promises.durable_under),
        "linearizable": sorted(promises.linearizable),
        "committed_prefix": promises.committed_prefix,
        "excludes": sorted(promises.excludes),
        "note": promises.note,
        "copies": promises.copies,
        "delivered_under": sorted(promises.all_delivered_under),
        "documented": promises.documented,
    }


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

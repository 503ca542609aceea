"""Build the pages of a run's violations from its view and its folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from shaketable.harness.contracts.finding_kinds import base_kind, record_of
from shaketable.harness.contracts.verdict import Finding
from shaketable.harness.history.run_folder import NoPlainFileError, read_plain
from shaketable.reports.check_page.checked_history import failing_part
from shaketable.reports.check_page.page import part_story
from shaketable.reports.check_page.pictures import CycleGraph, cycle_graph_of
from shaketable.reports.check_page.pictures import lay_out as lay_out_part
from shaketable.reports.finding_texts import title
from shaketable.reports.plain_json import ID_MAX, mapping
from shaketable.reports.run_page.violations import OperationLookup
from shaketable.reports.run_view import (
    CheckerView,
    FaultRow,
    OperationRow,
    RoleSpan,
    RunView,
    Violation,
    ViolationGroup,
)
from shaketable.reports.spacetime import Picture, describe, lay_out
from shaketable.reports.violation_page.claims import claim_of
from shaketable.reports.violation_page.meaning import (
    faults_during,
    loss_text,
    loss_window_of,
    meaning_of,
    terms_there,
)
from shaketable.reports.violation_page.moments import (
    Story,
    ends_of,
    faults_near,
    leader_at,
    minimal_operations,
    moment_label,
    moment_of,
    moments_of,
    next_leader,
    of_faults,
    seen_at,
    steps_of,
    turning_points_of,
)
from shaketable.reports.violation_page.node_evidence import (
    Clock,
    Kept,
    NodeLog,
    clock_of,
    entries_around,
    lines_around,
    map_around,
    read_kept,
    read_logs,
)
from shaketable.reports.violation_page.violation_view import (
    FOLDER,
    Entries,
    LogLines,
    Loss,
    LossWindow,
    Moment,
    Part,
    Step,
    ViolationPage,
)

FACTS_BYTES_MAX: Final = 16 << 20
"""A larger run.json is not read."""
LOSSES_MAX: Final = 20
"""Similar findings that a page lists."""
EVIDENCE_MAX: Final = 24
"""Details of a finding that are shown as they are."""
LINES_OF_FAULTS_MAX: Final = 3
"""Faults around which the nodes' log lines are shown."""
INSTEAD_MAX: Final = 6
"""Values stored in place of a lost one whose appends are looked up."""
_SHOWN_ELSEWHERE: Final = frozenset(
    {
        "operations", "prefix", "could_not", "states", "stuck", "before", "model", "method",
        "cycle", "component", "process", "stale", "accused",
    }
)  # fmt: skip
_IN_TIMELINE: Final = frozenset({"at_ns", "finding", "matters", "promise", "last_line"})
"""Details of violations seen live (`SEEN_LIVE`) that the claim and the timeline already show."""
_OF_DURABILITY: Final = "durability"


@dataclass(frozen=True, slots=True)
class _Run:
    """Shared by all pages of a run."""

    view: RunView
    lookup: OperationLookup
    kept: Kept
    logs: Sequence[NodeLog]
    clock: Clock
    ends: Sequence[Moment]


def build_pages(view: RunView) -> tuple[ViolationPage, ...]:
    """Build the pages of all violations that have one, in their order."""
    chosen = list(pages_of(view.checkers))
    if not chosen:
        return ()
    folder = Path(view.folder)
    windows = tuple(row.window for row in view.faults)
    facts = _facts(folder / "run.json")
    run = _Run(
        view,
        OperationLookup(view.operations, windows),
        read_kept(folder),
        read_logs(folder, view.nodes),
        clock_of(facts),
        ends_of(facts),
    )
    pages = [
        _page(run, checker, violation, is_observed=is_observed)
        for checker, violation, is_observed in chosen
    ]
    names = ["", *(page.name for page in pages), ""]
    return tuple(
        replace(page, number=n + 1, total=len(pages), before=names[n], after=names[n + 2])
        for n, page in enumerate(pages)
    )


def _page(
    run: _Run, checker: CheckerView, violation: Violation, *, is_observed: bool
) -> ViolationPage:
    view, details = run.view, violation.details
    kind = base_kind(violation.kind)
    entries = entries_around(run.kept, violation.key, violation.offset, _indices(kind, details))
    instead = _values_there(entries)
    rows = minimal_operations(violation, run.lookup, instead)
    steps = steps_of(violation, rows, run.lookup)
    moment_ns = moment_of(violation, rows, view.lanes, terms_there(entries))
    gone = loss_window_of(violation, run.lookup, view.linearizable)
    turning_points = turning_points_of(moment_ns, gone)
    spans = _spans(rows, violation.named, moment_ns, gone, view.duration_ns)
    faults = faults_near(view.faults, spans, turning_points)
    seen = _seen(violation)
    story = Story(steps, view.lanes, faults, run.ends, entries, turning_points, gone, seen)
    moments = moments_of(story)
    losses = _losses(checker, violation)
    return ViolationPage(
        name=violation.page,
        number=0,
        total=0,
        checker=checker.name,
        violation=violation,
        is_observed=is_observed,
        title=_title(kind, details),
        claim=claim_of(
            violation,
            tuple(row for row in rows if row.marked),
            view.nodes,
            faults,
            (moment_ns, moment_label(violation, rows, moment_ns)),
            "" if gone is None else loss_text(gone, violation, view.faults),
            "" if is_observed else view.promise_note,
        ),
        moments=moments,
        meaning=meaning_of(violation, story, moment_ns),
        steps=steps,
        picture=_picture(view, rows, faults, turning_points),
        leaders=() if moment_ns is None else _leaders(view.lanes, moment_ns),
        moment_ns=moment_ns,
        moment_label=moment_label(violation, rows, moment_ns),
        faults=faults,
        entries=entries,
        log_map=map_around(run.kept, violation.key, violation.offset),
        is_seen_gone=gone is not None and gone.until_ns is not None,
        losses=_nearest(losses),
        losses_shown=len(losses),
        losses_total=dict((*checker.totals, *checker.observed_totals)).get(violation.kind, 0),
        cycle=_cycle(details, steps, run.lookup),
        part=_part(violation),
        lines=_lines(run, moments, turning_points, gone, faults),
        evidence=tuple(
            (name, what)
            for name, what in violation.evidence
            if name not in _SHOWN_ELSEWHERE
            and not (record_of(kind).is_seen_live and name in _IN_TIMELINE)
        )[:EVIDENCE_MAX],
        notes=_notes(run, moment_ns),
    )


def _title(kind: str, details: Mapping[str, Any]) -> str:
    """Return what broke as a heading; an invariant has its own name."""
    name = details.get("invariant")
    is_named = kind == "invariant-broken" and isinstance(name, str)
    return f"Invariant {name} was broken" if is_named else title(kind)


def _seen(violation: Violation) -> Moment | None:
    """Return when a world saw an invariant broken; no operation or exit of a node shows that."""
    at_ns = seen_at(violation)
    details = violation.details
    if at_ns is None or base_kind(violation.kind) != "invariant-broken":
        return None
    node = details.get("node")
    where = f"{node}: " if node else ""
    what = f"{where}{details.get('invariant')} is broken: {details.get('finding')}"
    return Moment(at_ns, "node" if node else "rule", what, is_key=True)


def _facts(path: Path) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(read_plain(path, FACTS_BYTES_MAX)))
    except (NoPlainFileError, ValueError, RecursionError):
        return {}  # the view's notes mention it


def _indices(kind: str, details: Mapping[str, Any]) -> list[int]:
    """Return the log indices that a finding is about."""
    found = [details.get(name) for name in record_of(kind).indices]
    return [index for index in found if isinstance(index, int) and not isinstance(index, bool)]


def _values_there(entries: Entries | None) -> list[int]:
    """Return the values that any node has stored at the place."""
    if entries is None:
        return []
    values = [
        entry.value for row in entries.rows for cell in row.cells for entry in cell
        if entry.is_at_place and entry.value is not None and abs(entry.value) <= ID_MAX
    ]  # fmt: skip
    return list(dict.fromkeys(values))[:INSTEAD_MAX]


def _spans(
    rows: Sequence[OperationRow],
    named: Sequence[int],
    moment_ns: int | None,
    gone: LossWindow | None,
    end_ns: int,
) -> list[tuple[int, int]]:
    """Return the times of the violation: of the operations it names, and of the loss window."""
    spans = [
        (row.call_ns, row.call_ns if row.return_ns is None else row.return_ns)
        for row in rows
        if row.marked or row.op in named
    ]
    if gone is not None:
        until_ns = gone.until_ns
        spans.append((gone.since_ns, end_ns if until_ns is None else until_ns))
    return spans if moment_ns is None else [*spans, (moment_ns, moment_ns)]


def _lines(
    run: _Run,
    moments: Sequence[Moment],
    turning_points: Sequence[int],
    gone: LossWindow | None,
    faults: Sequence[FaultRow],
) -> LogLines | None:
    """Return the nodes' log lines around the turning points and the faults in the loss window."""
    if not turning_points:
        return None
    during = () if gone is None else faults_during(gone, faults)
    around = [*turning_points, *(row.window.from_ns for row in during[:LINES_OF_FAULTS_MAX])]
    around += [row.window.stop_ns for row in during[:LINES_OF_FAULTS_MAX]]
    turning = [each for each in moments if each.role != "fault" and each.is_key]
    events = [
        (each.time_ns, each.what)
        for each in (*turning, *of_faults(run.view.faults))
        if each.time_ns is not None
    ]
    return lines_around(run.logs, run.clock, sorted(set(around)), events)


def _picture(
    view: RunView,
    rows: Sequence[OperationRow],
    faults: Sequence[FaultRow],
    turning_points: Sequence[int],
) -> Picture | None:
    """Lay out the operations over the nodes' lanes, with leaders and faults around them."""
    if not rows and not turning_points:
        return None
    moments = list(turning_points)
    if turning_points:
        led = leader_at(view.lanes, turning_points[0])
        after = next_leader(view.lanes, led[0], turning_points[0]) if led else None
        moments += [] if after is None else [after.start_ns]
    for row in faults:
        moments += [row.window.from_ns, row.window.stop_ns]
    windows = [row.window for row in faults]
    return lay_out(rows, windows, view.lanes, moments, all_labels=True)


def _leaders(lanes: Sequence[RoleSpan], moment_ns: int) -> tuple[RoleSpan, ...]:
    """Return the role of each node at that moment."""
    return tuple(
        {span.node: span for span in lanes if span.start_ns <= moment_ns <= span.stop_ns}.values()
    )


def _losses(checker: CheckerView, violation: Violation) -> tuple[Loss, ...]:
    """Return the durability findings in the same queue, this one included."""
    if checker.name != _OF_DURABILITY:
        return ()
    alike = [
        each
        for groups in (checker.groups, checker.observed)
        for group in groups
        for each in group.shown
        if each.key == violation.key
    ]
    alike.sort(key=lambda each: (each.offset is None, each.offset or 0, each.kind))
    return tuple(Loss(each, each.page == violation.page) for each in alike)


def _nearest(losses: Sequence[Loss]) -> tuple[Loss, ...]:
    """Return the findings nearest to this one."""
    place = next((n for n, loss in enumerate(losses) if loss.is_this), 0)
    first = max(0, min(place - LOSSES_MAX // 2, len(losses) - LOSSES_MAX))
    return tuple(losses[first : first + LOSSES_MAX])


def _cycle(
    details: Mapping[str, Any], steps: Sequence[Step], lookup: OperationLookup
) -> CycleGraph | None:
    def describe_op(op: int) -> tuple[str, str]:
        rows = [step.row for step in steps if step.row.op == op] or lookup.by_id([op])
        if not rows:
            return f"op {op}", ""
        row = rows[0]  # a transaction has several rows, all of one client and time
        end = "open" if row.return_ns is None else f"{row.return_ns / 1e9:.3f}"
        what = "; ".join(map(describe, rows))
        return what, f"client {row.process}, {row.call_ns / 1e9:.3f} to {end} s"

    return cycle_graph_of(details, describe_op)


def _part(violation: Violation) -> Part | None:
    """Return the failing part of a search, if the finding has a valid one."""
    details = dict(violation.details)
    if "operations" not in details or "prefix" not in details:
        return None
    finding = Finding(
        violation.kind, violation.message, violation.key, violation.offset, (), details
    )
    try:
        part = failing_part(finding, {})
        if part is None or not part.operations:
            return None
        return Part(part, lay_out_part(part, is_timed=True), part_story(part, is_timed=True))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _notes(run: _Run, moment_ns: int | None) -> tuple[str, ...]:
    notes = []
    if moment_ns is None:
        notes.append(
            "It is not known when this happened: it was found in the nodes' logs after the run, so"
            " no leader, fault or log line can be put beside it."
        )
    elif not run.view.lanes:
        notes.append("Who led was not recorded.")
    return tuple(notes)


# Which violations get a page, and the names of the pages' files.

PAGES_MAX: Final = 60
"""Pages of one run; the first violation of each kind and fault comes before second ones."""
PAGES_OF_GROUP_MAX: Final = 4
"""Violations of one kind and fault that get a page."""
BROKEN: Final = "INVALID"
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
SLUG_MAX: Final = 40


def with_pages(checkers: Sequence[CheckerView]) -> tuple[CheckerView, ...]:
    """Return the checkers' views, in which violations with a page have its name.

    Findings of a checker whose verdict is UNKNOWN (such as a node that exited) get none.
    """
    groups, have_pages = [], []
    for checker in checkers:
        groups += [*checker.groups, *checker.observed]
        have_pages += [checker.verdict == BROKEN] * len(checker.groups)
        have_pages += [True] * len(checker.observed)
    chosen = _chosen(groups, have_pages)
    names: dict[tuple[int, int], str] = {}
    for number, (group, place) in enumerate(sorted(chosen), start=1):
        kind = groups[group].shown[place].kind
        names[group, place] = f"{FOLDER}/{number:03d}-{slug(kind)}.html"
    named = iter([_named(group, names, number) for number, group in enumerate(groups)])
    return tuple(
        replace(
            checker,
            groups=tuple(next(named) for _ in checker.groups),
            observed=tuple(next(named) for _ in checker.observed),
        )
        for checker in checkers
    )


def slug(kind: str) -> str:
    """Return a kind as a part of a file name."""
    return _NOT_IN_NAMES.sub("-", kind.lower()).strip("-")[:SLUG_MAX].strip("-") or "violation"


def pages_of(checkers: Iterable[CheckerView]) -> Iterator[tuple[CheckerView, Violation, bool]]:
    """Yield (checker, violation, whether it breaks no promise) of each page, in their order."""
    for checker in checkers:
        for groups, is_observed in ((checker.groups, False), (checker.observed, True)):
            for group in groups:
                for violation in group.shown:
                    if violation.page:
                        yield checker, violation, is_observed


def _chosen(groups: Sequence[ViolationGroup], have_pages: Sequence[bool]) -> list[tuple[int, int]]:
    """Return (group, place among those it shows), the first of each group before second ones."""
    wanted: list[tuple[int, int, int]] = []
    for number, group in enumerate(groups):
        if not have_pages[number]:
            continue
        detailed = group.detailed or group.shown[:1]
        # By identity: two findings may be equal, and each has its own place.
        places = [n for n, each in enumerate(group.shown) if any(each is one for one in detailed)]
        wanted += [(rank, number, place) for rank, place in enumerate(places[:PAGES_OF_GROUP_MAX])]
    return [(number, place) for _, number, place in sorted(wanted)[:PAGES_MAX]]


def _named(group: ViolationGroup, names: dict[tuple[int, int], str], number: int) -> ViolationGroup:
    shown = tuple(
        replace(violation, page=names[number, place]) if (number, place) in names else violation
        for place, violation in enumerate(group.shown)
    )
    return replace(group, shown=shown)

"""The view model of a run's report: what the page and the JUnit file show, and nothing else.

Pure data. Built by `reports.run_page.view.build_view`, read by `reports.run_page.html` and
`reports.junit`. Times are ns since the run's start unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.contracts.verdict import FINDINGS_KEPT_MAX
from shaketable.reports import finding_texts
from shaketable.reports.availability.failover import Failover, failover
from shaketable.reports.availability.outages import Availability
from shaketable.reports.availability.recovery import Recovery
from shaketable.reports.availability.worked import PhaseSpan
from shaketable.reports.plain_json import ID_MAX, is_whole
from shaketable.reports.plotting.node_samples import NOT_SAMPLED, Sampled
from shaketable.reports.run_page.losses import NOT_JUDGED, Losses


@dataclass(frozen=True, slots=True)
class RoleSpan:
    """One stretch of a node's lane: `role` is leader, follower, candidate or "no answer"."""

    node: str
    role: str
    term: int | None
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One fault as it was done, whether it bit, and how the group recovered from it.

    `hit_leader`: it bit, and by its plan the leader was its victim or cut off; then
    `new_leader_ns` is how soon after its effect another led (None: no other one did).
    `killed_leader`: it was a kill of the leader that left a majority (see
    `reports.availability.failover`). `lost_ns` is how much of its time and aftermath the group did
    not serve (`reports.availability.outages`; None: nobody asked), `losses` how many
    operations acknowledged under it were seen lost.
    """

    window: FaultWindow
    recovery: Recovery
    hit_leader: bool = False
    new_leader_ns: int | None = None
    killed_leader: bool = False
    lost_ns: int | None = None
    losses: int = 0


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation as the tables around a violation show it; `marked` is the one in question.

    `told` is what it returned, where that is no number but a list or a text; `expected` what a cas
    asked to find there.
    """

    op: int
    process: int
    f: str
    key: str
    input: int | None
    output: int | None
    offset: int | None
    call_ns: int
    return_ns: int | None
    outcome: str
    error: str | None
    node: str | None
    marked: bool
    told: str = ""
    expected: int | None = None


def named_operations(finding: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids of operations that a finding of results.json names; what is none is left out.

    The file may be damaged, or somebody else's.
    """
    named = finding.get("operations")
    if not isinstance(named, list | tuple):
        return ()
    return tuple(op for op in named if is_whole(op) and 0 <= op <= ID_MAX)


@dataclass(frozen=True, slots=True)
class Violation:
    """One finding with its evidence, and the operations around it (`around` may be empty).

    `fault_words` says how it stands to its fault: under it, seen under it, just before it.
    `finding` is what results.json has of it, `page` the path of its page in the run's folder ("" if
    it has none).
    """

    kind: str
    message: str
    key: str | None
    offset: int | None
    value: int | None
    acknowledged_by: str | None
    acknowledged_ns: int | None
    fault: str | None
    instead: tuple[tuple[str, str], ...]
    evidence: tuple[tuple[str, str], ...]
    around: tuple[OperationRow, ...] = ()
    windows: tuple[FaultWindow, ...] = ()
    fault_words: str = ""
    finding: Mapping[str, Any] = field(default_factory=dict)
    page: str = ""

    @property
    def details(self) -> Mapping[str, Any]:
        """The finding's evidence as data; what is no object counts as none."""
        details = self.finding.get("details")
        return details if isinstance(details, Mapping) else {}

    @property
    def named(self) -> tuple[int, ...]:
        """Ids of the operations that witness it, as the finding names them."""
        return named_operations(self.finding)

    def stands(self, place: str) -> str | None:
        """What stands instead at `place`, a node or "" (nowhere in particular)."""
        return dict(self.instead).get(place)


@dataclass(frozen=True, slots=True)
class ViolationGroup:
    """Findings that are alike: one kind, one fault.

    `total` counts those that were kept, shown or not; how many there were of a kind says
    `CheckerView.totals`.
    """

    kind: str
    title: str
    shown: tuple[Violation, ...]
    total: int

    @property
    def detailed(self) -> tuple[Violation, ...]:
        """Those with the operations around them; where none has any, those with evidence."""
        around = tuple(violation for violation in self.shown if violation.around)
        return around or tuple(violation for violation in self.shown if violation.evidence)

    @property
    def has_pages(self) -> bool:
        """Whether any that is shown has a page of its own."""
        return any(violation.page for violation in self.shown)

    @property
    def places(self) -> tuple[str, ...]:
        """The nodes of which anything says what stands there instead."""
        return tuple(sorted({place for violation in self.shown for place, _ in violation.instead}))


@dataclass(frozen=True, slots=True)
class CheckerView:
    """One checker's verdict as shown: `verdict` is VALID, INVALID or UNKNOWN.

    `totals` says how many findings of each kind there were, kept or not. `closed` are sentences:
    by what evidence some unknown outcomes were closed.
    """

    name: str
    verdict: str
    summary: str
    counts: tuple[tuple[str, str], ...]
    groups: tuple[ViolationGroup, ...]
    findings_total: int
    findings_kept: int
    observed: tuple[ViolationGroup, ...]
    crash: str | None = None
    totals: tuple[tuple[str, int], ...] = ()
    closed: tuple[str, ...] = ()
    observed_totals: tuple[tuple[str, int], ...] = ()
    """How many there were of each kind that breaks no promise, kept or not, where that is known."""

    @property
    def observed_text(self) -> str:
        """How many breaches of nothing promised there are; not all of them are kept."""
        if self.observed_totals:
            return f"{sum(count for _, count in self.observed_totals):,}"
        kept = sum(group.total for group in self.observed)
        return f"{kept:,}" if kept < FINDINGS_KEPT_MAX else f"{kept:,} or more"


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """One promise: its words, who judged it (checker, verdict), what they found, its verdict.

    `verdict` is VALID, INVALID, UNKNOWN, or "" where nobody judged it.
    """

    words: str
    judged_by: tuple[tuple[str, str], ...]
    found: str
    verdict: str


@dataclass(frozen=True, slots=True)
class StatsRow:
    """Operations of one `f`, by outcome, inside or outside of fault windows."""

    f: str
    where: str
    ok: int
    fail: int
    info: int


@dataclass(frozen=True, slots=True)
class DrainRow:
    """What a node said of itself while draining; every field but `node` is None if nothing."""

    node: str
    role: str | None
    term: int | None
    leader: str | None
    committed_index: int | None
    end_index: int | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, ready to be shown. `notes` say, in words, what of the run is missing.

    `observed` says in plain words what was found that was never promised, with what is documented
    about it. `why` says the verdict's reason in plain words, `why_kinds` in the checkers' own (""
    if they say no more). `op_timeout_s` is how long a client waits for an answer, if known.
    `availability` is None if nobody called anything. `named` are the ids of all operations that
    findings name. `sampled` is what the nodes said of their logs and clocks, if that was recorded.
    """

    folder: str
    name: str
    started: str
    verdict: str
    why: str
    target: str
    world: str
    mutant: str | None
    workload: str
    seed: str
    faults_asked: tuple[str, ...]
    nodes: tuple[str, ...]
    command: str
    promises: tuple[str, ...]
    duration_ns: int
    outcomes: tuple[int, int, int]  # ok, fail, info
    leader_changes: int | None
    notes: tuple[str, ...]
    faults: tuple[FaultRow, ...]
    phases: tuple[PhaseSpan, ...]
    lanes: tuple[RoleSpan, ...]
    checkers: tuple[CheckerView, ...]
    stats: tuple[StatsRow, ...]
    errors: tuple[tuple[str, str, int], ...]  # outcome, text, count
    drain: tuple[DrainRow, ...]
    files: tuple[tuple[str, str], ...]  # relative path, what it is
    operations: pa.Table  # OPERATIONS; the plots are drawn from it
    versions: dict[str, Any] = field(default_factory=dict)
    why_kinds: str = ""
    observed: str = ""
    op_timeout_s: float | None = None
    faults_unavailable: tuple[tuple[str, str], ...] = ()  # name, why
    families: tuple[tuple[str, int, int], ...] = ()  # name, bit, done
    memory: tuple[tuple[str, int, int, int], ...] = ()  # process, first, last, most: bytes
    promise_rows: tuple[PromiseRow, ...] = ()
    availability: Availability | None = None
    losses: Losses = NOT_JUDGED
    sampled: Sampled = NOT_SAMPLED
    named: tuple[int, ...] = ()
    mutant_breaks: str = ""
    """What the planted bug does, if the run says so."""
    linearizable: frozenset[str] = frozenset()
    """Operations of which the target promises that they are linearizable on each queue."""
    promise_note: str = ""
    """What the target says of its promises, in its own words."""

    @property
    def first_page(self) -> str:
        """The page of the first violation of the worst kind; "" where no violation has one."""
        named = [
            violation
            for checker in self.checkers
            for group in checker.groups
            for violation in group.shown
            if violation.page
        ]
        first = min(named, key=lambda violation: finding_texts.rank(violation.kind), default=None)
        return "" if first is None else first.page

    @property
    def failover(self) -> Failover | None:
        """How soon writes went on after kills of the leader; None if there were none."""
        return failover(row.recovery for row in self.faults if row.killed_leader)

"""The view model of a run's report: exactly what the page and the JUnit file show.

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
from shaketable.reports.availability import (
    Availability,
    Failover,
    Goals,
    PhaseSpan,
    Recovery,
    summarise_failover,
)
from shaketable.reports.gating.run_measures import NOT_JUDGED, Losses
from shaketable.reports.plain_json import ID_MAX, is_whole
from shaketable.reports.plotting.series import NOT_SAMPLED, Sampled


@dataclass(frozen=True, slots=True)
class RoleSpan:
    """One span of a node's lane: `role` is leader, follower, candidate, up or "no answer"."""

    node: str
    role: str
    term: int | None
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One fault as it was applied, whether it took effect, and how the group recovered from it.

    `hit_leader`: it took effect, and according to its plan the leader was its victim or cut off;
    then `new_leader_ns` is how soon after its effect another node led (None: none did).
    `killed_leader`: it was a kill of the leader that left a majority (see
    `reports.availability`). `lost_ns` is the outage during the fault and its aftermath
    (`reports.availability`; None: no requests). `losses` is how many operations that were
    acknowledged under it were seen lost.
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
    """One operation as shown around a violation; `marked` if the violation is about it.

    `output_text` is its output if that is not a number; `expected` is a cas's expected value;
    `request` says in words what the number in `input` stands for, if it stands for a request.
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
    output_text: str = ""
    expected: int | None = None
    request: str = ""


def named_operations(finding: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids of operations that a finding of results.json names, skipping invalid ones.

    The file may be damaged or untrusted.
    """
    named = finding.get("operations")
    if not isinstance(named, list | tuple):
        return ()
    return tuple(op for op in named if is_whole(op) and 0 <= op <= ID_MAX)


@dataclass(frozen=True, slots=True)
class Violation:
    """One finding with its evidence, and the operations around it (`around` may be empty).

    `fault_text` relates it to its fault: under it, seen under it, or just before it. `finding` is
    its entry in results.json, `page` the path of its page in the run's folder ("" if it has none).
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
    fault_text: str = ""
    finding: Mapping[str, Any] = field(default_factory=dict)
    page: str = ""

    @property
    def details(self) -> Mapping[str, Any]:
        """The finding's evidence as data; empty if it is not an object."""
        details = self.finding.get("details")
        return details if isinstance(details, Mapping) else {}

    @property
    def named(self) -> tuple[int, ...]:
        """Ids of the operations that the finding names as witnesses."""
        return named_operations(self.finding)

    def instead_at(self, place: str) -> str | None:
        """Return what is stored in its place on a node, or at "" (on no particular node)."""
        return dict(self.instead).get(place)


@dataclass(frozen=True, slots=True)
class ViolationGroup:
    """Similar findings: of one kind, under one fault.

    `total` counts the kept ones, shown or not; `CheckerView.totals` has the number of all of a
    kind.
    """

    kind: str
    title: str
    shown: tuple[Violation, ...]
    total: int

    @property
    def detailed(self) -> tuple[Violation, ...]:
        """Those with the operations around them, or, if there are none, those with evidence."""
        around = tuple(violation for violation in self.shown if violation.around)
        return around or tuple(violation for violation in self.shown if violation.evidence)

    @property
    def has_pages(self) -> bool:
        """Whether any violation shown has a page of its own."""
        return any(violation.page for violation in self.shown)

    @property
    def places(self) -> tuple[str, ...]:
        """The nodes for which `instead` says what they hold."""
        return tuple(sorted({place for violation in self.shown for place, _ in violation.instead}))


@dataclass(frozen=True, slots=True)
class CheckerView:
    """One checker's verdict as shown: `verdict` is VALID, INVALID or UNKNOWN.

    `totals` is how many findings of each kind there were, kept or not. `resolved` are sentences on
    the evidence by which indeterminate operations were resolved.
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
    resolved: tuple[str, ...] = ()
    observed_totals: tuple[tuple[str, int], ...] = ()
    """How many findings of each kind break no promise, kept or not, if known."""

    @property
    def observed_text(self) -> str:
        """The number of findings that break no promise; not all of them are kept."""
        if self.observed_totals:
            return f"{sum(count for _, count in self.observed_totals):,}"
        kept = sum(group.total for group in self.observed)
        return f"{kept:,}" if kept < FINDINGS_KEPT_MAX else f"{kept:,} or more"


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """One promise: its text, its judges (checker, verdict), their findings, and its verdict.

    `verdict` is VALID, INVALID, UNKNOWN, or "" if no checker judged it.
    """

    text: str
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
    """The status that a node reported while draining; all None but `node` if it reported none."""

    node: str
    role: str | None
    term: int | None
    leader: str | None
    committed_index: int | None
    end_index: int | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, ready to be shown. `notes` list what is missing of the run.

    `observed` describes findings about things never promised, and what is documented about them.
    `why` is the reason for the verdict, `why_kinds` the checkers' own summaries ("" if they add
    nothing). `op_timeout_s` is how long a client waits for an answer, if known. `availability` is
    None if no operation was invoked. `named` are the ids of all operations that findings name.
    `sampled` are the nodes' log positions and clocks, if they were recorded.
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
    families: tuple[tuple[str, int, int], ...] = ()  # name, took effect, injected
    memory: tuple[tuple[str, int, int, int], ...] = ()  # process, first, last, most: bytes
    promise_rows: tuple[PromiseRow, ...] = ()
    availability: Availability | None = None
    losses: Losses = NOT_JUDGED
    sampled: Sampled = NOT_SAMPLED
    named: tuple[int, ...] = ()
    mutant_breaks: str = ""
    """The description of the planted bug, if the run has it."""
    linearizable: frozenset[str] = frozenset()
    """Operations that the target promises to be linearizable on each queue."""
    promise_note: str = ""
    """The target's own note on its promises."""
    failover_goals_s: Goals = None

    @property
    def first_page(self) -> str:
        """The page of the first violation of the gravest kind; "" if no violation has one."""
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
        """How soon writes continued after kills of the leader; None if there were none."""
        killed = (row.recovery for row in self.faults if row.killed_leader)
        return summarise_failover(killed, self.failover_goals_s)

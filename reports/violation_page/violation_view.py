"""What a violation's page shows, and nothing else: pure data.

Built by `reports.violation_page.building`, read by `reports.violation_page.writing`. Times are
ns since the run's start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shaketable.reports.check_page.checked_history import FailingPart
from shaketable.reports.check_page.cycle_graph import CycleGraph
from shaketable.reports.check_page.failing_picture import Picture as PartPicture
from shaketable.reports.run_view import FaultRow, OperationRow, RoleSpan, Violation
from shaketable.reports.spacetime import Picture


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim in words: what was promised, what happened instead, and where and when.

    `gone` says between which answers something acknowledged went missing, "" where nothing did;
    `own` is what the target itself promises of it, in its own words.
    """

    promised: str
    instead: str
    where: str
    gone: str = ""
    own: str = ""


@dataclass(frozen=True, slots=True)
class LossWindow:
    """When something acknowledged went missing, by what clients were told.

    `since_ns`: until then it was there. `last_look` is the last answer that had it, `first_sign`
    the first one that cannot be while it stands there; None if there was none.
    """

    since_ns: int
    last_look: OperationRow | None
    first_sign: OperationRow | None

    @property
    def until_ns(self) -> int | None:
        """When it was first seen to be gone."""
        return None if self.first_sign is None else self.first_sign.return_ns


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of how it came about; `time_ns` is None for what stands at the end of the run.

    `role` is what it is about: client, leader, fault, node or log. `is_key`: the story turns here.
    """

    time_ns: int | None
    role: str
    what: str
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of the minimal set: what it saw, what it could have seen.

    `is_wrong`: what it saw is none of what was legal. `legal` is "" where nothing is to be said.
    """

    row: OperationRow
    seen: str
    legal: str
    is_wrong: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a node's log as it was kept; None is what could not be read of it."""

    index: int
    term: int | None
    crc: int | None
    key: str | None
    offset: int | None
    value: int | None
    problem: str | None
    is_it: bool
    """Whether it stands at the place that the violation is about."""
    is_odd: bool
    """Whether another node has something else at its index."""


@dataclass(frozen=True, slots=True)
class EntryRow:
    """What each node has at one index, in the order of the nodes; `gap`: indices are left out.

    Where a node has nothing, `kept` says whether that is known: what it has there may not have
    been kept.
    """

    index: int
    cells: tuple[tuple[Entry, ...], ...]
    gap: bool
    kept: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """The nodes' entries around a place, side by side. `of_nodes` says of each what it holds."""

    nodes: tuple[str, ...]
    rows: tuple[EntryRow, ...]
    of_nodes: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a strip, in the units of the map's view box."""

    x: float
    width: float
    state: str
    title: str


@dataclass(frozen=True, slots=True)
class Strip:
    """One node over a queue's offsets; `counts` are (state, acknowledged appends)."""

    node: str
    y: float
    stretches: tuple[Stretch, ...]
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LogMap:
    """Strips of all nodes over the offsets of one queue; `marker` is where the violation stands."""

    key: str
    first: int
    last: int
    acknowledged: int
    offsets_a_bin: int
    width: int
    height: int
    strips: tuple[Strip, ...]
    marker: float | None
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a node's log; `is_mark` if the harness wrote it.

    Without `node` it is no line of a log, but what happened then.
    """

    time_ns: int
    node: str
    text: str
    is_mark: bool


@dataclass(frozen=True, slots=True)
class LogLines:
    """The nodes' lines around some moments in one order of time.

    `spans` are the stretches of time they are from, `notes` say how times were related.
    """

    nodes: tuple[str, ...]
    lines: tuple[LogLine, ...]
    spans: tuple[tuple[int, int], ...]
    notes: tuple[str, ...] = ()

    @property
    def has_marks(self) -> bool:
        """Whether any line is the harness' own."""
        return any(line.is_mark for line in self.lines)


@dataclass(frozen=True, slots=True)
class Loss:
    """One row of the table of what a checker of durability found, this one's like included."""

    violation: Violation
    is_this: bool


@dataclass(frozen=True, slots=True)
class Part:
    """The failing part of a search: its picture and its words."""

    part: FailingPart
    picture: PartPicture
    story: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ViolationPage:
    """One page. `name` is its path in the run's folder, `total` how many pages there are.

    `moment_is` says what was at `moment_ns`: "acknowledged", "its term began". `losses` are
    those of `losses_shown` findings that are nearest in the queue; `losses_total` counts those of
    its kind in all queues, kept or not.
    """

    name: str
    number: int
    total: int
    checker: str
    violation: Violation
    is_observed: bool
    title: str
    claim: Claim
    moments: tuple[Moment, ...]
    meaning: str
    steps: tuple[Step, ...]
    picture: Picture | None
    leaders: tuple[RoleSpan, ...]
    moment_ns: int | None
    moment_is: str
    faults: tuple[FaultRow, ...]
    entries: Entries | None
    log_map: LogMap | None
    is_seen_gone: bool
    losses: tuple[Loss, ...]
    losses_shown: int
    losses_total: int
    cycle: CycleGraph | None
    part: Part | None
    lines: LogLines | None
    evidence: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = field(default=())
    before: str = ""
    after: str = ""

    @property
    def has_marked_entries(self) -> bool:
        """Whether any entry that is shown stands at the place itself."""
        return any(entry.is_it for entry in self._entries())

    @property
    def has_odd_entries(self) -> bool:
        """Whether nodes hold different entries at an index that is shown."""
        return any(entry.is_odd for entry in self._entries())

    def _entries(self) -> Iterator[Entry]:
        for row in () if self.entries is None else self.entries.rows:
            for cell in row.cells:
                yield from cell

"""The content of a violation's page as data, and the index of a run's pages.

Built by `reports.violation_page.building`, read by `reports.violation_page.writing`. Times are ns
since the run's start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from shaketable.harness.history.run_folder import NoPlainFileError, read_plain
from shaketable.reports.check_page.checked_history import FailingPart
from shaketable.reports.check_page.pictures import CycleGraph
from shaketable.reports.check_page.pictures import Picture as PartPicture
from shaketable.reports.run_view import FaultRow, OperationRow, RoleSpan, Violation
from shaketable.reports.spacetime import Picture


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim as text: what was promised, what happened instead, and where and when.

    `gone` says between which answers something acknowledged went missing, "" if nothing did;
    `target_note` is the target's own note on its promises.
    """

    promised: str
    instead: str
    where: str
    gone: str = ""
    target_note: str = ""


@dataclass(frozen=True, slots=True)
class LossWindow:
    """When something acknowledged went missing, by the answers to clients.

    `since_ns`: it was stored until then. `last_read` is the last answer that had it, `first_sign`
    the first answer that is impossible while it is stored; None if there was none.
    """

    since_ns: int
    last_read: OperationRow | None
    first_sign: OperationRow | None

    @property
    def until_ns(self) -> int | None:
        """When it was first seen to be gone."""
        return None if self.first_sign is None else self.first_sign.return_ns


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of the timeline; `time_ns` is None for the state at the end of the run.

    `role` is its subject: client, leader, fault, node or log; rule, where a rule was broken by none
    of the nodes. `is_key`: it is a turning point.
    """

    time_ns: int | None
    role: str
    what: str
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of the minimal set: what it saw, and what it could have seen.

    `is_wrong`: what it saw was not legal. `legal` is "" if there is nothing to say.
    """

    row: OperationRow
    seen: str
    legal: str
    is_wrong: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a node's log as it was kept; None for fields that could not be read."""

    index: int
    term: int | None
    crc: int | None
    key: str | None
    offset: int | None
    value: int | None
    problem: str | None
    is_at_place: bool
    """Whether it is at the place that the violation is about."""
    differs: bool
    """Whether another node has a different entry at its index."""


@dataclass(frozen=True, slots=True)
class EntryRow:
    """What each node has at one index, in node order; `gap`: indices are left out before it.

    Where a node has nothing, `kept` says whether that is known, or may only not have been kept.
    """

    index: int
    cells: tuple[tuple[Entry, ...], ...]
    gap: bool
    kept: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """The nodes' entries around a place, side by side. `of_nodes` describes what each holds."""

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
    """One node's strip over a queue's offsets; `counts` are (state, acknowledged appends)."""

    node: str
    y: float
    stretches: tuple[Stretch, ...]
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LogMap:
    """Strips of all nodes over the offsets of one queue; `marker` is the violation's place."""

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
    """One line of a node's log; `is_marker` if the harness wrote it.

    Without a `node` it is an event, not a log line.
    """

    time_ns: int
    node: str
    text: str
    is_marker: bool


@dataclass(frozen=True, slots=True)
class LogLines:
    """The nodes' log lines around some moments, merged by time.

    `spans` are the times that they cover; `notes` say how clocks were related.
    """

    nodes: tuple[str, ...]
    lines: tuple[LogLine, ...]
    spans: tuple[tuple[int, int], ...]
    notes: tuple[str, ...] = ()

    @property
    def has_markers(self) -> bool:
        """Whether the harness wrote any of the lines."""
        return any(line.is_marker for line in self.lines)


@dataclass(frozen=True, slots=True)
class Loss:
    """One row of the table of durability findings, this page's finding included."""

    violation: Violation
    is_this: bool


@dataclass(frozen=True, slots=True)
class Part:
    """The failing part of a search: its picture and its explanation."""

    part: FailingPart
    picture: PartPicture
    story: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ViolationPage:
    """One page. `name` is its path in the run's folder, `total` how many pages there are.

    `moment_label` says what happened at `moment_ns`: "acknowledged", "its term began". `losses` are
    the nearest of `losses_shown` findings in the queue; `losses_total` counts those of its kind in
    all queues, kept or not.
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
    moment_label: str
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
        """Whether any entry shown is at the violation's place."""
        return any(entry.is_at_place for entry in self._entries())

    @property
    def has_differing_entries(self) -> bool:
        """Whether nodes hold different entries at an index shown."""
        return any(entry.differs for entry in self._entries())

    def _entries(self) -> Iterator[Entry]:
        for row in () if self.entries is None else self.entries.rows:
            for cell in row.cells:
                yield from cell


# violations/index.json: the subject of each page, for readers that have no view of the run.

FOLDER: Final = "violations"
NAME: Final = re.compile(r"[0-9]{3}-[a-z0-9-]{1,40}\.html")
"""The name of a page's file: its number and the kind of its violation."""
FILE: Final = "index.json"
FILE_BYTES_MAX: Final = 1 << 20


class IndexedPage(msgspec.Struct, frozen=True):
    """A page: its file in the folder, and its subject."""

    file: str
    checker: str = ""
    kind: str = ""
    key: str | None = None
    offset: int | None = None


class PageIndex(msgspec.Struct, frozen=True):
    """The content of the file."""

    pages: tuple[IndexedPage, ...] = ()


def index_text(pages: Iterable[ViolationPage]) -> str:
    """Return the file's text."""
    rows = [
        {
            "file": page.name.rpartition("/")[2],
            "checker": page.checker,
            "kind": page.violation.kind,
            "key": page.violation.key,
            "offset": page.violation.offset,
            "observed": page.is_observed,
        }
        for page in pages
    ]
    return json.dumps({"pages": rows}, indent=1) + "\n"


def read_index(folder: Path) -> tuple[IndexedPage, ...]:
    """Read the index of a folder of pages; empty if there is no valid one.

    Pages with unexpected names and missing files are skipped.
    """
    try:
        index = msgspec.json.decode(read_plain(folder / FILE, FILE_BYTES_MAX), type=PageIndex)
    except (
        NoPlainFileError,
        ValueError,
        OverflowError,
        RecursionError,
    ):
        return ()
    return tuple(
        page for page in index.pages if NAME.fullmatch(page.file) and (folder / page.file).is_file()
    )

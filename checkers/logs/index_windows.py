"""Windows of the log's index, so that equal logs are compared by digests alone.

Where a node's entries fill a window as they should (every index once, terms that do not
fall, nothing damaged), a digest of their terms and contents stands for them. Nodes whose
digests are equal hold the same entries there. Any other window is kept as it is.

Source: the digests are BLAKE2b's, of 128 bits; a Merkle tree of one level (Merkle 1987).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from shaketable.checkers.logs.log_part import Ints, ints
from shaketable.harness.history.schema import ENTRIES

WINDOW_ENTRIES = 16_384

SUMMARIES = pa.schema(
    [
        ("node", pa.string()),
        ("window", pa.int64()),  # its entries' index // WINDOW_ENTRIES
        ("first_term", pa.int64()),
        ("last_term", pa.int64()),
        ("digest", pa.string()),
    ]
)
"""A window that one node's committed entries fill as they should."""


class WindowCutter:
    """Cuts a node's entries, in the log's order, into windows.

    `committed` is up to which index the node's entries count; the others are left out.
    `kept`, if given, has the windows to keep as they are, whatever they hold; all others
    are left out then.
    """

    def __init__(self, committed: int, kept: frozenset[int] | None = None) -> None:
        self._committed = committed
        self._kept = kept
        self._open = ENTRIES.empty_table()
        self._summaries: list[tuple[str, int, int, int, str]] = []
        self._entries: list[pa.Table] = []

    def add(self, rows: pa.Table) -> None:
        """Take the next rows of ENTRIES."""
        rows = pa.concat_tables([self._open, rows]) if self._open.num_rows else rows
        window = ints(rows["index"]) // WINDOW_ENTRIES
        borders = [0, *(np.flatnonzero(np.diff(window)) + 1).tolist()]
        for start, end in pairwise(borders):
            self._close(rows.slice(start, end - start), int(window[start]))
        self._open = rows.slice(borders[-1])

    def finish(self) -> None:
        """End: the last window is as full as it will be."""
        if self._open.num_rows:
            self._close(self._open, self._open["index"][0].as_py() // WINDOW_ENTRIES)
        self._open = ENTRIES.empty_table()

    def take(self) -> tuple[pa.Table, pa.Table]:
        """Return, and forget, the windows closed so far: SUMMARIES, and rows of ENTRIES."""
        columns = [list(column) for column in zip(*self._summaries, strict=True)]
        summaries = SUMMARIES.empty_table() if not columns else pa.table(columns, schema=SUMMARIES)
        entries = pa.concat_tables([ENTRIES.empty_table(), *self._entries])
        self._summaries, self._entries = [], []
        return summaries, entries

    def _close(self, rows: pa.Table, window: int) -> None:
        if self._kept is not None and window not in self._kept:
            return
        index = ints(rows["index"])
        is_committed = index <= self._committed
        if self._kept is None and self._is_regular(rows, index) and is_committed.all():
            term, crc = ints(rows["term"]), ints(rows["crc"])
            digest = blake2b(term.tobytes() + crc.tobytes(), digest_size=16).hexdigest()
            node = rows["node"][0].as_py()
            self._summaries.append((node, window, int(term[0]), int(term[-1]), digest))
        elif is_committed.any():
            self._entries.append(rows.filter(pa.array(is_committed)))

    @staticmethod
    def _is_regular(rows: pa.Table, index: Ints) -> bool:
        return (
            rows.num_rows == WINDOW_ENTRIES
            and bool((np.diff(index) == 1).all())
            and rows["problem"].null_count == rows.num_rows
            and bool((np.diff(ints(rows["term"])) >= 0).all())
        )


@dataclass(slots=True)
class Agreed:
    """Neighbouring windows in which the same nodes hold the same entries.

    `spans` has each node's [first index, last index, first term, last term].
    """

    entries: int = 0
    spans: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compared:
    """What windows tell: `agreed` runs, `whole` windows of rows, and the numbers of `others`.

    What `others` hold is known of some nodes by their digests alone.
    """

    agreed: list[Agreed]
    whole: list[pa.Table]
    others: list[int]


def compare_windows(summaries: Iterable[pa.Table], entries: Iterable[pa.Table]) -> Compared:
    """Compare windows, given all that any node has of each."""
    told = pa.concat_tables([SUMMARIES.empty_table(), *summaries]).to_pylist()
    told.sort(key=lambda row: (row["window"], row["node"]))
    rows = pa.concat_tables([ENTRIES.empty_table(), *entries])
    window_of = ints(rows["index"]) // WINDOW_ENTRIES
    kept = set(np.unique(window_of).tolist())
    compared = Compared([], [], [])
    for window, group in groupby(told, key=lambda row: row["window"]):
        of_node = list(group)
        is_once = len({row["node"] for row in of_node}) == len(of_node)
        if window in kept or not is_once or len({row["digest"] for row in of_node}) > 1:
            compared.others.append(window)
        else:
            _extend(compared.agreed, window, of_node)
    for window in sorted(kept.difference(compared.others)):
        compared.whole.append(rows.filter(pa.array(window_of == window)))
    return compared


def _extend(runs: list[Agreed], window: int, told: Sequence[dict[str, Any]]) -> None:
    """Add a window on which all agree to the run before it, or begin a new run."""
    first = window * WINDOW_ENTRIES
    last = first + WINDOW_ENTRIES - 1
    spans = {str(row["node"]): [first, last, row["first_term"], row["last_term"]] for row in told}
    before = runs[-1] if runs else Agreed()
    goes_on = before.spans.keys() == spans.keys() and all(
        before.spans[node][1] + 1 == first and before.spans[node][3] <= span[2]
        for node, span in spans.items()
    )
    if not goes_on:
        before = Agreed()
        runs.append(before)
    before.entries += WINDOW_ENTRIES * len(spans)
    for node, span in spans.items():
        if goes_on:
            before.spans[node][1], before.spans[node][3] = span[1], span[3]
        else:
            before.spans[node] = span

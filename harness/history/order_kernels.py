"""Merge, pair and sort rows of events and operations, compiled.

Source: jepsen.history (pair-index); CHECKERS.md section 5.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.harness.compiled import compiled
from shaketable.harness.history.schema import (
    EMPTY,
    HAS_EXPECTED,
    HAS_INPUT,
    HAS_OFFSET,
    HAS_OUTPUT,
    HAS_RETURN,
    INFO,
    INVOKE,
    NO_TEXT,
)

NEMESIS = -1
"""schema.NEMESIS_PROCESS."""
_HASH_PRIME = np.int64(-7046029254386353131)


class Open(NamedTuple):
    """The open operations of one segment, by process: an open-addressing hash table.

    `counts`: how many are open, how many completions had no invoke, and how many invokes found
    their process still busy.
    """

    taken: npt.NDArray[np.bool_]
    rows: npt.NDArray[Any]
    counts: npt.NDArray[np.int64]


@compiled
def merge(times: Any, is_invoke: Any, bounds: Any, first: int, index: Any) -> None:
    """Write each event's position in the global order to `index`, counted from `first`.

    A k-way merge. Recording n has the events bounds[n] to bounds[n + 1], with strictly increasing
    times. At equal times invokes come first, so that operations that touch in time count as
    concurrent; then the recording with the lower number.
    """
    sources = len(bounds) - 1
    heads = np.empty(sources, np.int64)
    queue = np.empty(sources, np.int64)  # a binary heap of recordings, by their next event
    size = 0
    for source in range(sources):
        heads[source] = bounds[source]
        if bounds[source] < bounds[source + 1]:
            queue[size] = source
            size += 1
    for top in range(size // 2 - 1, -1, -1):
        _sink(queue, top, size, heads, times, is_invoke)
    place = first
    while size:
        source = queue[0]
        index[heads[source]] = place
        place += 1
        heads[source] += 1
        if heads[source] == bounds[source + 1]:
            size -= 1
            queue[0] = queue[size]
        _sink(queue, 0, size, heads, times, is_invoke)


@compiled
def _sink(queue: Any, at: int, size: int, heads: Any, times: Any, is_invoke: Any) -> None:
    """Sift the recording at `at` down the heap."""
    while True:
        least = at
        for child in (2 * at + 1, 2 * at + 2):
            if child < size:
                a, b = heads[queue[child]], heads[queue[least]]
                if times[a] != times[b]:
                    before = times[a] < times[b]
                elif is_invoke[a] != is_invoke[b]:
                    before = is_invoke[a]
                else:
                    before = queue[child] < queue[least]
                if before:
                    least = child
        if least == at:
            return
        queue[at], queue[least] = queue[least], queue[at]
        at = least


@compiled
def _find(open_: Open, process: int) -> Any:
    """Return the slot of a process, or the free slot for it."""
    mask = len(open_.taken) - 1
    slot = (process * _HASH_PRIME >> 20) & mask
    while open_.taken[slot] and open_.rows[slot].process != process:
        slot = (slot + 1) & mask
    return slot


@compiled
def _free(open_: Open, slot: int) -> None:
    """Empty a slot, and shift back later entries of its probe sequence (no tombstones)."""
    mask = len(open_.taken) - 1
    after = slot
    while True:
        after = (after + 1) & mask
        if not open_.taken[after]:
            break
        home = (open_.rows[after].process * _HASH_PRIME >> 20) & mask
        if ((after - home) & mask) >= ((after - slot) & mask):
            open_.rows[slot] = open_.rows[after]
            slot = after
    open_.taken[slot] = False


@compiled
def _begin(row: Any, event: Any, index: int) -> None:
    """Fill an OPERATION_ROW from its invoke; the outcome is unknown until it completes."""
    row.op, row.process, row.call_ns, row.return_ns = index, event.process, event.time_ns, 0
    row.input, row.expected, row.output, row.offset = event.input, event.expected, 0, event.offset
    row.f, row.key, row.extra, row.outcome = event.f, event.key, event.extra, INFO
    row.error, row.node = NO_TEXT, NO_TEXT
    row.has = event.has & (HAS_INPUT | HAS_EXPECTED | HAS_OFFSET)


@compiled
def _end(row: Any, event: Any) -> None:
    """Complete an OPERATION_ROW from its completion."""
    row.outcome, row.error, row.node = event.type, event.error, event.node
    if event.has & HAS_OUTPUT:
        row.output = event.output
        row.has |= HAS_OUTPUT
    if event.has & HAS_OFFSET:
        row.offset = event.offset
        row.has |= HAS_OFFSET
    if event.type != INFO:
        row.return_ns = event.time_ns
        row.has |= HAS_RETURN
    if event.extra not in (NO_TEXT, EMPTY):
        row.extra = event.extra


@compiled
def pair(events: Any, index: Any, open_: Open, rows: Any, at: int) -> Any:
    """Pair events[at:] of one recording, in recorded order; return (events done, operations).

    `rows` receives the completed operations; with as much room as events it cannot overflow.
    Returns early when `open_` is half full: call again with a larger one.
    """
    count = 0
    for place in range(at, len(events)):
        event = events[place]
        if event.process == NEMESIS:
            continue
        slot = _find(open_, event.process)
        if event.type == INVOKE:
            if open_.taken[slot]:
                open_.counts[2] += 1
                rows[count] = open_.rows[slot]
                count += 1
            elif 2 * open_.counts[0] >= len(open_.taken):
                return place, count
            else:
                open_.taken[slot] = True
                open_.counts[0] += 1
            _begin(open_.rows[slot], event, index[place])
        elif not open_.taken[slot]:
            open_.counts[1] += 1
        else:
            _end(open_.rows[slot], event)
            rows[count] = open_.rows[slot]
            count += 1
            _free(open_, slot)
            open_.counts[0] -= 1
    return len(events), count


@compiled
def rehash(old: Open, new: Open) -> None:
    """Move the open operations to a larger, empty table."""
    for slot in range(len(old.taken)):
        if old.taken[slot]:
            into = _find(new, old.rows[slot].process)
            new.taken[into] = True
            new.rows[into] = old.rows[slot]
    new.counts[:] = old.counts


@compiled
def scatter(rows: Any, part_of_key: Any, starts: Any, out: Any) -> None:
    """Copy rows to `out`, part by part, stable: a counting sort.

    `part_of_key` is indexed by the number of the key's text plus one, since there may be none.
    `starts` receives the start of each part, and the end of the last.
    """
    parts = len(starts) - 1
    starts[:] = 0
    for place in range(len(rows)):
        starts[part_of_key[rows[place].key + 1] + 1] += 1
    for part in range(parts):
        starts[part + 1] += starts[part]
    free = starts[:parts].copy()
    for place in range(len(rows)):
        part = part_of_key[rows[place].key + 1]
        out[free[part]] = rows[place]
        free[part] += 1


@compiled
def renumber(rows: Any, numbers: Any) -> None:
    """Replace a recording's text numbers by those of the whole history, in place.

    `numbers` is indexed by the old number plus one, so that NO_TEXT is preserved.
    """
    for place in range(len(rows)):
        row = rows[place]
        row.type, row.f, row.key = (
            numbers[row.type + 1],
            numbers[row.f + 1],
            numbers[row.key + 1],
        )
        row.error, row.node, row.extra = (
            numbers[row.error + 1],
            numbers[row.node + 1],
            numbers[row.extra + 1],
        )


@compiled
def gather(rows: Any, order: Any, out: Any) -> None:
    """Copy rows[order] into `out`."""
    for place in range(len(order)):
        out[place] = rows[order[place]]


@compiled
def distinct(codes: Any, seen: Any, local: Any) -> Any:
    """Number the texts of a column from 0 in order of appearance; return their count.

    Args:
        codes: numbers of texts, or NO_TEXT.
        seen: one element for each text of the table, all NO_TEXT; receives the new numbers.
        local: receives each row's new number, or NO_TEXT.
    """
    count = 0
    for place in range(len(codes)):
        code = codes[place]
        if code == NO_TEXT:
            local[place] = NO_TEXT
            continue
        if seen[code] == NO_TEXT:
            seen[code] = count
            count += 1
        local[place] = seen[code]
    return count

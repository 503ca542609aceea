"""Decides counters by the sets of open operations that have taken effect: no states are kept.

The sum is that of all additions that took effect, in any order, so a set of operations implies the
state (Lee & Mathur 2026 call such objects anagram-agnostic), and each set is visited once between
two returns: n * 2^k sets at the most, for n operations of which k are open at a time. A read that
shows the sum is counted at once, since it binds nothing after it.

Source: Lee & Mathur, PLDI 2026 (arXiv 2509.05586); Lowe 2017 for deciding at returns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shaketable.harness.compiled import bare, compiled

UNDECIDED, LINEARIZABLE, REFUTED = range(3)
OPEN_MAX = 16
"""Operations open at a time, indeterminate ones included."""
SETS_MAX = 50_000_000
"""Sets that are looked at before it is left undecided."""


@bare
def _with_reads(done: int, total: int, opened: Any, is_read: Any, amounts: Any) -> Any:
    """Add to a set the open reads that show its sum; `total` is of what has returned."""
    for slot in range(OPEN_MAX):
        operation = opened[slot]
        if operation >= 0 and done >> slot & 1 and not is_read[operation]:
            total += amounts[operation]
    for slot in range(OPEN_MAX):
        operation = opened[slot]
        if operation >= 0 and is_read[operation] and amounts[operation] == total:
            done |= 1 << slot
    return done


@bare
def _return(
    count: int, slot: int, total: int, opened: Any, history: Any, stamp: int, room: Any
) -> Any:
    """Keep the sets in which an operation has taken effect, or can now, without it.

    Returns how many there are, and how many sets were looked at. `room` has the `count` sets, and
    for all sets the stamp of the return for which each was looked at, and where they wait.
    """
    sets, seen, waiting = room
    is_read, amounts = history
    filled = kept = looked = 0
    for place in range(count):
        done = _with_reads(sets[place], total, opened, is_read, amounts)
        if seen[done] != stamp:
            seen[done] = stamp
            waiting[filled] = done
            filled += 1
    while filled:
        filled -= 1
        looked += 1
        done = waiting[filled]
        if done >> slot & 1:
            sets[kept] = done & ~(1 << slot)
            kept += 1
            continue
        for other in range(OPEN_MAX):
            if opened[other] < 0 or done >> other & 1 or is_read[opened[other]]:
                continue
            more = _with_reads(done | 1 << other, total, opened, is_read, amounts)
            if seen[more] != stamp:
                seen[more] = stamp
                waiting[filled] = more
                filled += 1
    return kept, looked


@compiled
def decide(events: Any, is_return: Any, is_read: Any, amounts: Any, initial: int) -> Any:
    """Decide a counter.

    Args:
        events: operations in the order of their calls and returns; at one time calls come first.
        is_return: by event.
        is_read: by operation.
        amounts: by operation what it adds, or the sum that it read.
        initial: the first sum.

    Returns:
        LINEARIZABLE, REFUTED, or UNDECIDED where a limit was reached.
    """
    opened = np.full(OPEN_MAX, -1, np.int64)
    slot_of = np.full(len(amounts), -1, np.int64)
    sets = np.zeros(1 << OPEN_MAX, np.int64)
    waiting = np.empty(1 << OPEN_MAX, np.int64)
    seen = np.full(1 << OPEN_MAX, -1, np.int64)
    count, total, looked = 1, initial, 0
    for event in range(len(events)):
        operation = events[event]
        if not is_return[event]:
            slot = 0
            while slot < OPEN_MAX and opened[slot] >= 0:
                slot += 1
            if slot == OPEN_MAX:
                return UNDECIDED
            opened[slot], slot_of[operation] = operation, slot
            continue
        slot = slot_of[operation]
        count, more = _return(
            count, slot, total, opened, (is_read, amounts), event, (sets, seen, waiting)
        )
        looked += more
        if count == 0:
            return REFUTED
        if looked > SETS_MAX:
            return UNDECIDED
        opened[slot] = -1
        if not is_read[operation]:
            total += amounts[operation]
    return LINEARIZABLE

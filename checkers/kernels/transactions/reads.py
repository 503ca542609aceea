"""Trace reads to the steps that wrote what they saw, where nothing is unusual.

A transaction of which anything is unusual (an anomaly, or a doubt) is marked, and left to Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shaketable.checkers.kernels.transactions.json_text import FAIL, NIL, OK, READ, SCALAR, WRITE
from shaketable.harness.compiled import bare, compiled

INITIAL, NOT_TRACED = -1, -2
"""The writer of what a key holds at first; no writer, since the step is no such read."""
NO_STEP = -1
_MIX = -7046029254386353131
_UNUSUAL = -3


class Steps(NamedTuple):
    """The columns of checkers.transactions.history.Transactions that kernels look at."""

    starts: Any
    outcome: Any
    kind: Any
    key: Any
    length: Any
    value: Any
    elements: Any


class Written(NamedTuple):
    """What is known of writes, by step.

    Attributes:
        slots: a hash table of the first writes of values, NO_STEP where it is free; its length is a
            power of two, at least twice the number of writes.
        is_twice: a first write, and there are others of its value.
        is_repeat: one of those others.
        is_last: its transaction's last write of its key.
        before: its transaction's write of its key before it, or NO_STEP.
        txn_of: the transaction of each step.
    """

    slots: Any
    is_twice: Any
    is_repeat: Any
    is_last: Any
    before: Any
    txn_of: Any


class Lists(NamedTuple):
    """What lists show, by key, but for `place_of`, which is by step.

    Attributes:
        longest: the step of the first longest list that was read, or NO_STEP.
        is_agreed: each list that was read begins the longest one.
        odd_from: the place of the first element that is unusual: it is there before, a failed
            transaction wrote it, or it is not known by whom it was written.
        starts: where each key's elements start in `order`.
        order: the steps that wrote the elements of the longest list, NO_STEP if not known.
        place_of: the place of a write's element in the longest list, or -1.
    """

    longest: Any
    is_agreed: Any
    odd_from: Any
    starts: Any
    order: Any
    place_of: Any


class First(NamedTuple):
    """What each key holds at first: whether it is appended to, has a value at first, and which."""

    is_appended: Any
    is_set: Any
    value: Any


@bare
def _slot(key: int, value: int, mask: int) -> Any:
    code = (np.int64(key) * 1000003 + np.int64(value)) * _MIX
    return (code ^ (code >> 32)) & mask


@bare
def _find(slots: Any, keys: Any, values: Any, key: int, value: int) -> Any:
    """Return the first step that wrote a value; NO_STEP if none did."""
    mask = len(slots) - 1
    slot = _slot(key, value, mask)
    while slots[slot] >= 0:
        step = slots[slot]
        if keys[step] == key and values[step] == value:
            return step
        slot = (slot + 1) & mask
    return NO_STEP


@compiled
def find(slots: Any, keys: Any, values: Any, key: int, value: int) -> Any:
    """Return the first step that wrote a value; NO_STEP if none did."""
    return _find(slots, keys, values, key, value)


@compiled
def index_writes(steps: Steps, written: Written, keys: int) -> None:
    """Fill in what is known of writes: `written` is empty, of False and NO_STEP."""
    slots, before, is_last = written.slots, written.before, written.is_last
    mask = len(slots) - 1
    latest = np.full(keys, NO_STEP, np.int64)
    for txn in range(len(steps.starts) - 1):
        start = steps.starts[txn]
        for step in range(start, steps.starts[txn + 1]):
            written.txn_of[step] = txn
            if steps.kind[step] == READ:
                continue
            key, value = steps.key[step], steps.value[step]
            if latest[key] >= start:
                before[step] = latest[key]
                is_last[latest[key]] = False
            latest[key] = step
            is_last[step] = True
            known = _find(slots, steps.key, steps.value, key, value)
            if known >= 0:
                written.is_twice[known] = written.is_repeat[step] = True
                continue
            slot = _slot(key, value, mask)
            while slots[slot] >= 0:
                slot = (slot + 1) & mask
            slots[slot] = step


@bare
def _find_longest(steps: Any, longest: Any, is_agreed: Any) -> None:
    """Find the longest list of each key, and whether the others begin it."""
    kind, keys, lengths, values, elements = steps
    for step in range(len(kind)):
        if kind[step] == READ and lengths[step] >= 0:
            known = longest[keys[step]]
            if known < 0 or lengths[step] > lengths[known]:
                longest[keys[step]] = step
    for step in range(len(kind)):
        if kind[step] == READ and lengths[step] >= 0:
            at, other = values[step], values[longest[keys[step]]]
            same = 0
            while same < lengths[step] and elements[at + same] == elements[other + same]:
                same += 1
            if same < lengths[step]:
                is_agreed[keys[step]] = False


@compiled
def order_lists(steps: Steps, written: Written, lists: Lists) -> Any:
    """Fill in what lists show; return the new `starts` and `order` (those of `lists` are empty).

    `lists` has NO_STEP for the longest lists and places, and True for agreement.
    """
    longest, place_of = lists.longest, lists.place_of
    columns = (steps.kind, steps.key, steps.length, steps.value, steps.elements)
    _find_longest(columns, longest, lists.is_agreed)
    starts = np.zeros(len(longest) + 1, np.int64)
    for key in range(len(longest)):
        size = steps.length[longest[key]] if longest[key] >= 0 else 0
        starts[key + 1] = starts[key] + size
    order = np.full(starts[-1], NO_STEP, np.int64)
    for key in range(len(longest)):
        size = starts[key + 1] - starts[key]
        lists.odd_from[key] = size
        for place in range(size):
            value = steps.elements[steps.value[longest[key]] + place]
            step = _find(written.slots, steps.key, steps.value, key, value)
            is_known = step >= 0 and not written.is_twice[step]
            is_usual = is_known and place_of[step] < 0
            if is_known:
                order[starts[key] + place] = step
                is_usual = is_usual and steps.outcome[written.txn_of[step]] != FAIL
                if place_of[step] < 0:
                    place_of[step] = place
            if not is_usual and place < lists.odd_from[key]:
                lists.odd_from[key] = place
    return starts, order


@compiled
def assume_first(steps: Steps, slots: Any, was_empty: Any, first: First) -> None:
    """Take for a key's first value the first one that was read there, and never written.

    `was_empty` receives the keys in which a transaction read nothing before it wrote there: these
    have no such value.
    """
    latest = np.empty(len(first.is_set), np.int64)
    for is_known in range(2):
        latest[:] = -1
        for txn in range(len(steps.starts) - 1):
            for step in range(steps.starts[txn], steps.starts[txn + 1]):
                key, length = steps.key[step], steps.length[step]
                if steps.kind[step] != READ:
                    latest[key] = txn
                elif latest[key] == txn:
                    continue
                elif length in (NIL, 0):
                    was_empty[key] = True
                elif is_known and length == SCALAR and not (was_empty[key] or first.is_set[key]):
                    value = steps.value[step]
                    if _find(slots, steps.key, steps.value, key, value) < 0:
                        first.is_set[key], first.value[key] = True, value


@bare
def _others(step: int, own: int, columns: Any, before: Any) -> Any:
    """Return how many elements a list has before the reader's own appends; -1 if it lacks these.

    `own`: the last append so far.
    """
    length, values, elements = columns
    size = max(0, length[step])
    while own >= 0:
        size -= 1
        if size < 0 or elements[values[step] + size] != values[own]:
            return -1
        own = before[own]
    return size


@bare
def _list_writer(key: int, size: int, own: int, lists: Any, written: Any) -> Any:
    """Return the write of the last of the first `size` elements, INITIAL, or _UNUSUAL.

    `own`: the reader's last append, now or later: none may be among these elements.
    """
    is_agreed, odd_from, starts, order, place_of = lists
    is_last, before = written
    if not is_agreed[key] or size > odd_from[key]:
        return _UNUSUAL
    while own >= 0:
        if 0 <= place_of[own] < size:
            return _UNUSUAL
        own = before[own]
    if size == 0:
        return INITIAL
    found = order[starts[key] + size - 1]
    return found if is_last[found] else _UNUSUAL


@bare
def _value_writer(key: int, value: int, columns: Any, first: Any, written: Any) -> Any:
    """Return the write of a value, INITIAL, NOT_TRACED if it was written twice, or _UNUSUAL."""
    keys, values = columns
    is_set, first_value = first
    slots, is_twice, is_last = written
    if is_set[key] and first_value[key] == value:
        return INITIAL
    found = _find(slots, keys, values, key, value)
    if found < 0:
        return _UNUSUAL
    if is_twice[found]:
        return NOT_TRACED
    return found if is_last[found] else _UNUSUAL


@bare
def _is_same(step: int, earlier: int, is_list: bool, columns: Any, size: Any) -> Any:
    """Return whether two reads of one key saw the same of others."""
    length, values = columns
    if is_list:
        return size[step] == size[earlier]
    if length[step] != SCALAR or length[earlier] != SCALAR:
        return length[step] != SCALAR and length[earlier] != SCALAR
    return values[step] == values[earlier]


@compiled
def trace(steps: Steps, written: Written, lists: Lists, first: First, writer: Any, size: Any,
          is_odd: Any) -> None:  # fmt: skip
    """Trace the external reads of all transactions.

    Args:
        steps: the history.
        written: as `index_writes` fills it.
        lists: as `order_lists` fills it.
        first: as `assume_first` fills it.
        writer: receives by step the transaction that wrote what was seen, INITIAL or NOT_TRACED.
        size: receives by step how many elements of others a list had.
        is_odd: receives by transaction whether it is left to Python.
    """
    kind, keys, length, values = steps.kind, steps.key, steps.length, steps.value
    before, txn_of = written.before, written.txn_of
    orders = (lists.is_agreed, lists.odd_from, lists.starts, lists.order, lists.place_of)
    newest = np.full(len(first.is_set), NO_STEP, np.int64)  # the own write so far, by key
    last = np.full(len(first.is_set), NO_STEP, np.int64)  # the transaction's last one
    seen = np.full(len(first.is_set), NO_STEP, np.int64)  # the read before, by key
    for txn in range(len(steps.starts) - 1):
        start, stop = steps.starts[txn], steps.starts[txn + 1]
        if steps.outcome[txn] != OK:
            continue
        for step in range(start, stop):
            if kind[step] != READ:
                last[keys[step]] = step
        for step in range(start, stop):
            key = keys[step]
            if kind[step] != READ:
                newest[key] = step
                continue
            own = newest[key] if newest[key] >= start else NO_STEP
            is_list = first.is_appended[key]
            if own >= 0 and kind[own] == WRITE:
                is_odd[txn] |= length[step] != SCALAR or values[step] != values[own]
                continue
            if is_list:
                size[step] = _others(step, own, (length, values, steps.elements), before)
                mine = last[key] if last[key] >= start else NO_STEP
                found = _UNUSUAL
                if length[step] != SCALAR and size[step] >= 0:
                    found = _list_writer(key, size[step], mine, orders, (written.is_last, before))
            elif length[step] != SCALAR:
                found = INITIAL
            else:
                found = _value_writer(
                    key, values[step], (keys, values), (first.is_set, first.value),
                    (written.slots, written.is_twice, written.is_last),
                )  # fmt: skip
            earlier, seen[key] = seen[key], step
            is_again = earlier >= start
            is_odd[txn] |= found == _UNUSUAL
            is_odd[txn] |= is_again and not _is_same(step, earlier, is_list, (length, values), size)
            if found >= 0:
                found = txn_of[found]
                is_odd[txn] |= found == txn or steps.outcome[found] == FAIL
            writer[step] = max(found, NOT_TRACED)


@compiled
def chain(entry_key: Any, over: Any, starts: Any, order: Any, is_known: Any) -> None:
    """Order the writers of each key where each wrote over the one before it.

    Args:
        entry_key: the key of each entry, which is one transaction's write of one key.
        over: the entry that it wrote over, which it had read; -1 for what was there at first, -2 if
            it did not read, -3 if what it read is no entry.
        starts: where the order of each key starts, all of its entries long.
        order: receives the entries in order.
        is_known: receives for each key whether they make one chain.
    """
    after = np.full(len(entry_key), -1, np.int64)
    root = np.full(len(is_known), -1, np.int64)
    is_known[:] = True
    for entry in range(len(entry_key)):
        key = entry_key[entry]
        if over[entry] >= 0:
            is_known[key] &= after[over[entry]] < 0
            after[over[entry]] = entry
        elif over[entry] == -3:
            is_known[key] = False
        else:
            is_known[key] &= root[key] < 0
            root[key] = entry
    for key in range(len(is_known)):
        place, entry = starts[key], root[key]
        while is_known[key] and entry >= 0 and place < starts[key + 1]:
            order[place] = entry
            place, entry = place + 1, after[entry]
        is_known[key] &= place == starts[key + 1]

"""Scan recorded transactions, as JSON, into columns of micro-operations.

Only what generators write is scanned: an object of "input" and "output", both lists of
[f, key, value], keys that are whole numbers or plain texts, values that are whole numbers. Anything
else ends the scan: then all is decoded by the JSON library, in Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shaketable.harness.compiled import bare, compiled

READ, WRITE, APPEND = range(3)
NIL, SCALAR = -2, -1
"""What stands for a list's length where the value is nothing, or no list."""
OK, FAIL, INFO = range(3)

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _ZERO, _NINE = 34, 92, 44, 58, 45, 48, 57
_OPEN_LIST, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = 91, 93, 123, 125
_N, _U, _L = 110, 117, 108
_DIGITS_MAX = 18
_SPACE = 32
_FNV_PRIME, _FNV_BASIS = 1099511628211, -3750763034362895579
_NAMES = np.frombuffer(b"inputoutputrreadwwriteappend", np.uint8).copy()
_NAME_AT = np.array((0, 5, 11, 12, 16, 17, 22, 28), np.int64)
"""Where the names start: two members, then the functions' names."""
_INPUT, _OUTPUT = 0, 1
_FUNCTION = np.array((-1, -1, READ, READ, WRITE, WRITE, APPEND), np.int64)


@bare
def _space(data: Any, at: int, end: int) -> Any:
    """Return the place of the next byte that is no space; `end` if there is none."""
    while at < end and (data[at] == 32 or 9 <= data[at] <= 13):
        at += 1
    return at


@bare
def _is(data: Any, at: int, end: int, byte: int) -> Any:
    return at < end and data[at] == byte


@bare
def _text_end(data: Any, at: int, end: int) -> Any:
    """Return the place of the quote that ends the text which starts at `at`; -1 if not plain."""
    while at < end and data[at] != _QUOTE:
        if data[at] == _BACKSLASH or data[at] < _SPACE:
            return -1
        at += 1
    return at if at < end else -1


@bare
def _name(data: Any, at: int, stop: int) -> Any:
    """Return the number of a name; -1 if it is none of ours."""
    for number in range(len(_NAME_AT) - 1):
        first, size = _NAME_AT[number], _NAME_AT[number + 1] - _NAME_AT[number]
        if size == stop - at:
            same = 0
            while same < size and data[at + same] == _NAMES[first + same]:
                same += 1
            if same == size:
                return number
    return -1


@bare
def _skipped(data: Any, at: int, end: int) -> Any:
    """Return the place after a value; -1 if it has no end."""
    depth = 0
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            at += 1
            while at < end and data[at] != _QUOTE:
                at += 2 if data[at] == _BACKSLASH else 1
        elif byte in (_OPEN_LIST, _OPEN_OBJECT):
            depth += 1
        elif byte in (_CLOSE_LIST, _CLOSE_OBJECT):
            if depth == 0:
                return at
            depth -= 1
            if depth == 0:
                return at + 1
        elif byte == _COMMA and depth == 0:
            return at
        at += 1
    return -1


@bare
def _is_null(data: Any, at: int, end: int) -> Any:
    return (
        at + 4 <= end
        and data[at] == _N
        and data[at + 1] == _U
        and data[at + 2] == _L
        and data[at + 3] == _L
    )


@bare
def _number_end(data: Any, at: int, end: int) -> Any:
    """Return the place after a whole number; -1 if there is none, or a fraction, or a large one."""
    first = at + 1 if _is(data, at, end, _MINUS) else at
    at = first
    while at < end and _ZERO <= data[at] <= _NINE:
        at += 1
    is_whole = at < end and data[at] not in (46, 69, 101)  # . E e
    is_plain = data[first] != _ZERO or (at == first + 1 and data[first - 1] != _MINUS)
    return at if is_whole and is_plain and 0 < at - first <= _DIGITS_MAX else -1


@bare
def _number(data: Any, at: int, stop: int) -> Any:
    """Return the whole number in data[at:stop]."""
    is_negative = data[at] == _MINUS
    value = np.int64(0)
    for place in range(at + 1 if is_negative else at, stop):
        value = value * 10 + np.int64(data[place] - _ZERO)
    return -value if is_negative else value


@bare
def _members(data: Any, at: int, end: int, found: Any) -> Any:
    """Find where the values of "input" and "output" start; False if there is more than these."""
    found[0] = found[1] = -1
    at = _space(data, at, end)
    if not _is(data, at, end, _OPEN_OBJECT):
        return False
    at += 1
    while True:
        at = _space(data, at, end)
        if not _is(data, at, end, _QUOTE):
            return False
        stop = _text_end(data, at + 1, end)
        name = -1 if stop < 0 else _name(data, at + 1, stop)
        if not 0 <= name <= _OUTPUT or found[name] >= 0:
            return False
        at = _space(data, stop + 1, end)
        if not _is(data, at, end, _COLON):
            return False
        found[name] = _space(data, at + 1, end)
        at = _skipped(data, found[name], end)
        if at < 0:
            return False
        at = _space(data, at, end)
        if _is(data, at, end, _CLOSE_OBJECT):
            return _space(data, at + 1, end) == end
        if not _is(data, at, end, _COMMA):
            return False
        at += 1


@bare
def _key(data: Any, at: int, stop: int, slots: Any, keys: Any, count: int) -> Any:
    """Return the number of a key's text; a new one is put at the end of `keys`."""
    code = np.int64(_FNV_BASIS)
    for place in range(at, stop):
        code = (code ^ np.int64(data[place])) * _FNV_PRIME
    slot = (code ^ (code >> 29)) & (len(slots) - 1)
    while slots[slot] >= 0:
        known = slots[slot]
        if keys[known, 1] - keys[known, 0] == stop - at:
            same = 0
            while same < stop - at and data[keys[known, 0] + same] == data[at + same]:
                same += 1
            if same == stop - at:
                return known
        slot = (slot + 1) & (len(slots) - 1)
    slots[slot] = count
    keys[count, 0], keys[count, 1] = at, stop
    return count


@bare
def _key_end(data: Any, at: int, end: int) -> Any:
    """Return the place after a key; -1 if it is neither a whole number nor a plain text."""
    if _is(data, at, end, _QUOTE):
        stop = _text_end(data, at + 1, end)
        return -1 if stop < 0 else stop + 1
    return _number_end(data, at, end)


@bare
def _list(data: Any, at: int, end: int, elements: Any, filled: int) -> Any:
    """Read a list of whole numbers, after its bracket; return the places after it; -1 if not."""
    at = _space(data, at, end)
    if _is(data, at, end, _CLOSE_LIST):
        return at + 1, filled
    while True:
        at = _space(data, at, end)
        stop = _number_end(data, at, end)
        if stop < 0:
            return -1, filled
        elements[filled] = _number(data, at, stop)
        filled += 1
        at = _space(data, stop, end)
        if _is(data, at, end, _CLOSE_LIST):
            return at + 1, filled
        if not _is(data, at, end, _COMMA):
            return -1, filled
        at += 1


@bare
def _value(data: Any, at: int, end: int, is_read: bool, is_ok: bool, step: int, columns: Any,
           found: Any) -> Any:  # fmt: skip
    """Read the value of a step; return the place after it, -1 if it is not as expected."""
    length, value, elements = columns
    if is_read and _is_null(data, at, end):
        return at + 4
    if is_read and not is_ok:
        return _skipped(data, at, end)
    if is_read and _is(data, at, end, _OPEN_LIST):
        value[step] = found[1]
        at, found[1] = _list(data, at + 1, end, elements, found[1])
        length[step] = found[1] - value[step]
        return at
    stop = _number_end(data, at, end)
    if stop >= 0:
        length[step], value[step] = SCALAR, _number(data, at, stop)
    return stop


@bare
def _step(data: Any, at: int, end: int, is_ok: bool, columns: Any, found: Any, table: Any) -> Any:
    """Read a micro-operation; return the place after it, -1 if anything is not as expected."""
    kind, key, length, value, elements = columns
    slots, keys = table
    if not _is(data, at, end, _OPEN_LIST):
        return -1
    at = _space(data, at + 1, end)
    stop = _text_end(data, at + 1, end) if _is(data, at, end, _QUOTE) else -1
    name = -1 if stop < 0 else _name(data, at + 1, stop)
    at = _space(data, stop + 1, end)
    if name <= _OUTPUT or not _is(data, at, end, _COMMA):
        return -1
    at = _space(data, at + 1, end)
    stop = _key_end(data, at, end)
    if stop < 0:
        return -1
    step = found[0]
    kind[step] = _FUNCTION[name]
    key[step] = _key(data, at, stop, slots, keys, found[2])
    found[2] = max(found[2], key[step] + 1)
    length[step], value[step] = NIL, 0
    at = _space(data, stop, end)
    is_read = kind[step] == READ
    if _is(data, at, end, _COMMA):
        at = _space(data, at + 1, end)
        at = _value(data, at, end, is_read, is_ok, step, (length, value, elements), found)
    elif not is_read:
        return -1
    if at < 0:
        return -1
    at = _space(data, at, end)
    found[0] += 1 if is_ok or not is_read else 0
    return at + 1 if _is(data, at, end, _CLOSE_LIST) else -1


@bare
def _steps(data: Any, at: int, end: int, is_ok: bool, columns: Any, found: Any, table: Any) -> Any:
    """Read a list of micro-operations; False if anything in it is not as expected.

    `found` has the numbers of steps, of elements and of keys; reads that are not known are left
    out.
    """
    at = _space(data, at + 1, end)
    if _is(data, at, end, _CLOSE_LIST):
        return True
    while True:
        at = _step(data, _space(data, at, end), end, is_ok, columns, found, table)
        if at < 0:
            return False
        at = _space(data, at, end)
        if not _is(data, at, end, _COMMA):
            return _is(data, at, end, _CLOSE_LIST)
        at += 1


@bare
def _is_answered(kind: Any, first: int, stop: int, has_output: bool) -> Any:
    """Return whether no read lacks its answer."""
    if not has_output:
        for step in range(first, stop):
            if kind[step] == READ:
                return False
    return True


@compiled
def scan(data: Any, offsets: Any, outcome: Any, starts: Any, room: Any) -> Any:
    """Scan rows of JSON; return whether all were as expected, and the columns.

    Args:
        data: the rows' bytes.
        offsets: row n is data[offsets[n]:offsets[n + 1]]; an empty one has no JSON.
        outcome: OK, FAIL or INFO by row.
        starts: receives the first step of each row, and the number of all at its end.
        room: the most steps, elements and keys that there may be.

    Returns:
        Whether all were read; by step its kind, key, length (NIL, SCALAR) and value (of a list: its
        first element's place); the elements; where the keys' texts are in `data`.
    """
    kind = np.empty(room[0], np.int8)
    key = np.empty(room[0], np.int32)
    length = np.empty(room[0], np.int32)
    value = np.empty(room[0], np.int64)
    elements = np.empty(room[1], np.int64)
    size = 2
    while size < 2 * room[2]:
        size *= 2
    slots = np.full(size, -1, np.int32)
    keys = np.empty((room[2], 2), np.int64)
    found = np.zeros(3, np.int64)
    members = np.empty(2, np.int64)
    is_good = True
    for row in range(len(outcome)):
        starts[row] = found[0]
        at, end, is_ok = offsets[row], offsets[row + 1], outcome[row] == OK
        if at == end:
            is_good = not is_ok
        elif _members(data, at, end, members):
            given = members[_OUTPUT] if is_ok and members[_OUTPUT] >= 0 else members[_INPUT]
            if given < 0 or _is_null(data, given, end):
                is_good = not is_ok
            elif data[given] != _OPEN_LIST:
                is_good = False
            else:
                is_good = _steps(
                    data,
                    given,
                    end,
                    is_ok,
                    (kind, key, length, value, elements),
                    found,
                    (slots, keys),
                ) and _is_answered(kind, starts[row], found[0], not is_ok or members[_OUTPUT] >= 0)
        else:
            is_good = False
        if not is_good:
            break
    starts[len(outcome)] = found[0]
    return (
        is_good,
        kind[: found[0]],
        key[: found[0]],
        length[: found[0]],
        value[: found[0]],
        elements[: found[1]],
        keys[: found[2]],
    )


def room_for(data: Any) -> Any:
    """Return the most steps, elements and keys that JSON texts can hold."""
    lists = int(np.count_nonzero(data == _OPEN_LIST)) + 1
    commas = int(np.count_nonzero(data == _COMMA)) + 1
    return np.array((lists, lists + commas, lists), np.int64)

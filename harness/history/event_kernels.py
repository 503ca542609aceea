"""Events between frames, rows and JSON, compiled. The format: harness.history.segments.

What our own recorder does not write (unusual msgpack, new non-ASCII texts) is left to the caller,
one frame at a time, who decodes it with msgspec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.harness.compiled import compiled, inlined
from shaketable.harness.history.schema import (
    FIRST_TEXTS,
    HAS_EXPECTED,
    HAS_INPUT,
    HAS_OFFSET,
    HAS_OUTPUT,
    NO_TEXT,
)

MORE, UNREADABLE, CLOSING, ODD, ROWS_FULL, TEXTS_FULL = range(6)
"""Why `scan` stopped: more bytes are needed, there is no valid frame, the closing frame, a payload
for the caller to decode, no room for rows, no room for texts."""

_GOOD = 0
_FRAME_BYTES = 9
_PAYLOAD_BYTES_MAX = 1 << 20
_EVENT = 1
_CLOSE = 2
_FIELDS_MIN = 4
_FIELDS_MAX = 12
_GUESSES = 16
_TEXT_FIELDS = np.array([0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0], np.int64)
_HAS = np.array([0, 0, 0, 0, 0, HAS_INPUT, HAS_OUTPUT, HAS_OFFSET, 0, 0, 0, HAS_EXPECTED], np.int64)
_FNV_PRIME = 1099511628211
_FNV_BASIS = -3750763034362895579


class TextTable(NamedTuple):
    """Texts by number: bytes in `arena`, found through the hash table `slots`.

    `slots` holds 1 + a text's number, 0 if free; its length is a power of two, at least twice that
    of `known`, which holds each text's hash, its start in the arena and its length. `counts` are
    the numbers of texts and of bytes.

    Kernels get the arrays one by one: taking one out of a tuple costs as much as a look-up.
    """

    slots: npt.NDArray[np.int32]
    known: npt.NDArray[np.int64]
    arena: npt.NDArray[np.uint8]
    counts: npt.NDArray[np.int64]


def _crc_tables() -> npt.NDArray[np.int64]:
    """Return the tables of CRC-32 for eight bytes at a time (Kounavis & Berry 2005)."""
    tables = np.zeros((8, 256), np.int64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for level in range(1, 8):
        before = tables[level - 1]
        tables[level] = (before >> 8) ^ tables[0, before & 0xFF]
    return tables


_CRC = _crc_tables()


@inlined
def _crc32(data: Any, at: int, end: int, crc: Any) -> Any:
    """Continue an inverted CRC-32 over data[at:end]."""
    tables = _CRC
    while at + 8 <= end:
        low = crc ^ (
            np.int64(data[at])
            | np.int64(data[at + 1]) << 8
            | np.int64(data[at + 2]) << 16
            | np.int64(data[at + 3]) << 24
        )
        crc = (
            tables[7, low & 0xFF]
            ^ tables[6, (low >> 8) & 0xFF]
            ^ tables[5, (low >> 16) & 0xFF]
            ^ tables[4, low >> 24]
            ^ tables[3, data[at + 4]]
            ^ tables[2, data[at + 5]]
            ^ tables[1, data[at + 6]]
            ^ tables[0, data[at + 7]]
        )
        at += 8
    while at < end:
        crc = (crc >> 8) ^ tables[0, (crc ^ np.int64(data[at])) & 0xFF]
        at += 1
    return crc


@inlined
def _is_same(known: Any, arena: Any, number: int, data: Any, at: int, size: int) -> Any:
    if known[number, 2] != size:
        return False
    start = known[number, 1]
    same = 0
    while same < size and arena[start + same] == data[at + same]:
        same += 1
    return same == size


@inlined
def _intern(
    slots: Any, known: Any, arena: Any, counts: Any, data: Any, at: int, size: int, any_bytes: bool
) -> Any:
    """Return the number of the text data[at:at + size]; -1 - status if it has none.

    A new text is added if it is ASCII, or if `any_bytes` guarantees that it is valid UTF-8.
    """
    value = np.int64(_FNV_BASIS)
    for place in range(at, at + size):
        value = (value ^ np.int64(data[place])) * np.int64(_FNV_PRIME)
    value ^= value >> 29
    mask = len(slots) - 1
    slot = value & mask
    while slots[slot] != 0:
        number = np.int64(slots[slot]) - 1
        if known[number, 0] == value and _is_same(known, arena, int(number), data, at, size):
            return number
        slot = (slot + 1) & mask
    number, used = counts[0], counts[1]
    if number == len(known) or used + size > len(arena):
        return -1 - TEXTS_FULL
    for place in range(size):
        if data[at + place] >= 0x80 and not any_bytes:
            return -1 - ODD
        arena[used + place] = data[at + place]
    known[number, 0], known[number, 1], known[number, 2] = value, used, size
    slots[slot] = number + 1
    counts[0], counts[1] = number + 1, used + size
    return number


@compiled
def intern(table: TextTable, data: Any) -> Any:
    """Return the number of a valid UTF-8 text, new or known; negative if the table is full."""
    return _intern(table.slots, table.known, table.arena, table.counts, data, 0, len(data), True)


@compiled
def place(known: Any, slots: Any) -> None:
    """Fill the empty slots of a table with these texts."""
    mask = len(slots) - 1
    for number in range(len(known)):
        slot = known[number, 0] & mask
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = number + 1


@inlined
def _big_endian(data: Any, at: int, size: Any) -> Any:
    value = np.int64(0)
    for place in range(at, at + size):
        value = value << 8 | np.int64(data[place])
    return value


@inlined
def _number(data: Any, at: int, end: int) -> Any:
    """Read an integer; return it and its end, -1 if it is not a 64-bit integer."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, at + 1
    if first >= 0xE0:
        return first - 256, at + 1
    if not (0xCC <= first <= 0xD3):
        return np.int64(0), -1
    size = 1 << ((first - 0xCC) & 3)
    if at + 1 + size > end:
        return np.int64(0), -1
    value = _big_endian(data, at + 1, size)
    if first >= 0xD0:
        if size < 8 and value >> (8 * size - 1):
            value -= np.int64(1) << (8 * size)
    elif value < 0:
        return np.int64(0), -1
    return value, at + 1 + size


@inlined
def _text(data: Any, at: int, end: int) -> Any:
    """Return the start and end of a text; (-1, -1) if there is none."""
    first: Any = np.int64(data[at])
    if 0xA0 <= first < 0xC0:
        begin, size = at + 1, first & 0x1F
    elif 0xD9 <= first <= 0xDB:
        width = 1 << (first - 0xD9)
        begin = at + 1 + width
        if begin > end:
            return -1, -1
        size = _big_endian(data, at + 1, width)
    else:
        return -1, -1
    if begin + size > end:
        return -1, -1
    return begin, begin + size


@inlined
def _event(
    data: Any, at: int, end: int, slots: Any, known: Any, arena: Any, counts: Any, values: Any
) -> Any:
    """Decode a payload into `values`, a number for each field; return a status and `has`.

    After the fields, `values` caches the texts that each of them had last.
    """
    fields = np.int64(data[at]) - 0x90 if end > at else 0
    if not _FIELDS_MIN <= fields <= _FIELDS_MAX:
        return ODD, 0
    at += 1
    has = 0
    for field in range(fields):
        if at >= end:
            return ODD, 0
        if data[at] == 0xC0:
            if field < _FIELDS_MIN:
                return ODD, 0
            values[field] = NO_TEXT
            at += 1
        elif _TEXT_FIELDS[field]:
            begin, after = _text(data, at, end)
            if begin < 0:
                return ODD, 0
            size = after - begin
            # A field has few distinct texts: try the last one of that length before hashing.
            guess = _FIELDS_MAX + field * _GUESSES + (size & (_GUESSES - 1))
            number = values[guess]
            if not _is_same(known, arena, number, data, begin, size):
                number = _intern(slots, known, arena, counts, data, begin, size, False)
                if number < 0:
                    return -1 - number, 0
                values[guess] = number
            values[field] = number
            at = after
        else:
            value, after = _number(data, at, end)
            if after < 0:
                return ODD, 0
            values[field] = value
            has |= _HAS[field]
            at = after
    if at != end:
        return ODD, 0
    values[fields:_FIELDS_MAX] = NO_TEXT
    return _GOOD, has


@inlined
def _put(row: Any, values: Any, has: int) -> None:
    """Fill an EVENT_ROW from the fields of an event, in their recorded order."""
    row.time_ns, row.process = values[0], values[1]
    row.type, row.f, row.key = values[2], values[3], values[4]
    row.input = values[5] if has & HAS_INPUT else 0
    row.output = values[6] if has & HAS_OUTPUT else 0
    row.offset = values[7] if has & HAS_OFFSET else 0
    row.error, row.node, row.extra = values[8], values[9], values[10]
    row.expected = values[11] if has & HAS_EXPECTED else 0
    row.has = has


@compiled
def scan(data: Any, at: int, is_last: bool, table: TextTable, rows: Any, count: int) -> Any:
    """Decode frames from data[at:] into rows[count:]; return (why it stopped, at, count).

    Args:
        data: bytes of the segment.
        at: where in it a frame starts.
        is_last: the segment ends with `data`.
        table: the texts; new ones are added.
        rows: EVENT_ROWs.
        count: how many rows are in use.
    """
    slots, known, arena, counts = table.slots, table.known, table.arena, table.counts
    # any text number is a valid first guess
    values = np.zeros(_FIELDS_MAX * (1 + _GUESSES), np.int64)
    lacking = UNREADABLE if is_last else MORE
    while True:
        if at + _FRAME_BYTES > len(data):
            done = at == len(data) or not is_last
            return (MORE if done else UNREADABLE), at, count
        kind, size = data[at], _big_endian(data, at + 1, 4)
        begin = at + _FRAME_BYTES
        if kind not in (_EVENT, _CLOSE) or size > _PAYLOAD_BYTES_MAX:
            return UNREADABLE, at, count
        if begin + size > len(data):
            return lacking, at, count
        crc = _crc32(data, at, at + 5, 0xFFFFFFFF)
        crc = _crc32(data, begin, begin + size, crc) ^ 0xFFFFFFFF
        if crc != _big_endian(data, at + 5, 4):
            return UNREADABLE, at, count
        if kind == _CLOSE:
            return CLOSING, at, count
        if count == len(rows):
            return ROWS_FULL, at, count
        status, has = _event(data, begin, begin + size, slots, known, arena, counts, values)
        if status != _GOOD:
            return status, at, count
        _put(rows[count], values, has)
        count += 1
        at = begin + size


# Write events as JSON, compiled: the `value` column of EVENTS, and whole lines.

NEMESIS = -1
"""schema.NEMESIS_PROCESS."""
NUMBER_BYTES_MAX = 20
VALUE_BYTES_MAX = 5 * (NUMBER_BYTES_MAX + 12) + 2
"""Longest value, without its `extra`, in bytes."""
LINE_BYTES_MAX = 3 * NUMBER_BYTES_MAX + 100
"""Longest line, without its value and texts, in bytes."""


def _words(*words: str) -> Any:
    """Return words as one array of bytes, and where each starts, followed by the end."""
    joined = np.frombuffer("".join(words).encode(), np.uint8)
    return joined, np.cumsum([0, *map(len, words)])


_NAMES, _NAME_AT = _words('"input":', '"output":', '"offset":', '"expected":', '"extra":')
_PARTS, _PART_AT = _words(
    '{"index":', ',"time_ns":', ',"process":', ',"type":', ',"f":', ',"key":', ',"value":',
    ',"error":', ',"node":', "null", "}\n",
)  # fmt: skip
_NULL, _END = 9, 10


@inlined
def _copy(out: Any, at: int, data: Any, begin: int, end: int) -> Any:
    for place in range(end - begin):
        out[at + place] = data[begin + place]
    return at + end - begin


@inlined
def _decimal(out: Any, at: int, value: int) -> Any:
    """Write an integer; return its end."""
    rest = np.uint64(value)
    if value < 0:
        out[at] = 0x2D
        at += 1
        rest = np.uint64(0) - rest
    digits = 1
    bound = rest
    while bound >= np.uint64(10):
        bound //= np.uint64(10)
        digits += 1
    for place in range(at + digits - 1, at - 1, -1):
        out[place] = 0x30 + rest % np.uint64(10)
        rest //= np.uint64(10)
    return at + digits


@inlined
def _field(out: Any, at: int, begin: int, name: int, value: int) -> Any:
    """Write one number of a value, after a comma unless it is the first."""
    if at > begin + 1:
        out[at] = 0x2C
        at += 1
    at = _copy(out, at, _NAMES, _NAME_AT[name], _NAME_AT[name + 1])
    return _decimal(out, at, value)


@compiled
def values(rows: Any, raw: Any, raw_at: Any, out: Any, ends: Any, is_null: Any) -> Any:
    """Write the values of events to `out` back to back; return the end.

    Args:
        rows: EVENT_ROWs.
        raw: all texts; text n starts at raw_at[n].
        raw_at: one element more than there are texts.
        out: receives the JSON.
        ends: receives the end of each value, after a leading 0.
        is_null: receives whether there is no value.
    """
    at = 0
    for place in range(len(rows)):
        row = rows[place]
        is_null[place] = False
        if row.process == NEMESIS:
            is_null[place] = row.extra == NO_TEXT
            if row.extra != NO_TEXT:
                at = _copy(out, at, raw, raw_at[row.extra], raw_at[row.extra + 1])
        else:
            begin = at
            out[at] = 0x7B
            at += 1
            if row.has & HAS_INPUT:
                at = _field(out, at, begin, 0, row.input)
            if row.has & HAS_OUTPUT:
                at = _field(out, at, begin, 1, row.output)
            if row.has & HAS_OFFSET:
                at = _field(out, at, begin, 2, row.offset)
            if row.has & HAS_EXPECTED:
                at = _field(out, at, begin, 3, row.expected)
            if row.extra != NO_TEXT:
                if at > begin + 1:
                    out[at] = 0x2C
                    at += 1
                at = _copy(out, at, _NAMES, _NAME_AT[4], _NAME_AT[5])
                at = _copy(out, at, raw, raw_at[row.extra], raw_at[row.extra + 1])
            out[at] = 0x7D
            at += 1
        ends[place + 1] = at
    return at


@inlined
def _part(out: Any, at: int, part: int) -> Any:
    return _copy(out, at, _PARTS, _PART_AT[part], _PART_AT[part + 1])


@inlined
def _quoted(out: Any, at: int, quoted: Any, quoted_at: Any, text: int) -> Any:
    if text == NO_TEXT:
        return _part(out, at, _NULL)
    return _copy(out, at, quoted, quoted_at[text], quoted_at[text + 1])


@compiled
def lines(
    rows: Any, first: int, quoted: Any, quoted_at: Any, value: Any, ends: Any, out: Any
) -> Any:
    """Write events as lines of JSON, numbered from `first`; return the end.

    Args:
        rows: EVENT_ROWs.
        first: index of the first.
        quoted: all texts as JSON; text n starts at quoted_at[n].
        quoted_at: one element more than there are texts.
        value: the output of `values`; an empty one means null.
        ends: the end of each value, after a leading 0.
        out: receives the lines.
    """
    at = 0
    for place in range(len(rows)):
        row = rows[place]
        at = _decimal(out, _part(out, at, 0), first + place)
        at = _decimal(out, _part(out, at, 1), row.time_ns)
        at = _decimal(out, _part(out, at, 2), row.process)
        at = _quoted(out, _part(out, at, 3), quoted, quoted_at, row.type)
        at = _quoted(out, _part(out, at, 4), quoted, quoted_at, row.f)
        at = _quoted(out, _part(out, at, 5), quoted, quoted_at, row.key)
        at = _part(out, at, 6)
        if ends[place] == ends[place + 1]:
            at = _part(out, at, _NULL)
        else:
            at = _copy(out, at, value, ends[place], ends[place + 1])
        at = _quoted(out, _part(out, at, 7), quoted, quoted_at, row.error)
        at = _quoted(out, _part(out, at, 8), quoted, quoted_at, row.node)
        at = _part(out, at, _END)
    return at


# Interned texts: for each recording, as kernels need them, and for the whole history.

TEXTS_AT_FIRST = 1024
ARENA_BYTES_AT_FIRST = 1 << 16


class RecordedTexts:
    """The texts of one recording, in a table that grows."""

    def __init__(self) -> None:
        self.table = _empty(TEXTS_AT_FIRST, ARENA_BYTES_AT_FIRST)
        for text in FIRST_TEXTS:
            self.number(text)

    def __len__(self) -> int:
        return int(self.table.counts[0])

    def number(self, text: str) -> int:
        """Return the number of a text; a new text is added."""
        data = np.frombuffer(text.encode(), np.uint8)
        while (number := int(intern(self.table, data))) < 0:
            self.grow(len(data))
        return number

    def grow(self, more_bytes: int = 0) -> None:
        """Double the capacity, and make room for a text of `more_bytes`."""
        old = self.table
        fresh = _empty(2 * len(old.known), 2 * len(old.arena) + more_bytes)
        texts, used = int(old.counts[0]), int(old.counts[1])
        fresh.arena[:used] = old.arena[:used]
        fresh.known[:texts] = old.known[:texts]
        fresh.counts[:] = old.counts
        place(fresh.known[:texts], fresh.slots)
        self.table = fresh

    def since(self, first: int) -> list[str]:
        """Return the texts from number `first` on."""
        arena = self.table.arena
        bounds = self.table.known[first : len(self), 1:].tolist()
        return [arena[start : start + size].tobytes().decode() for start, size in bounds]


class HistoryTexts:
    """The texts of a whole history, by number."""

    def __init__(self) -> None:
        self.texts: list[str] = list(FIRST_TEXTS)
        self._numbers = {text: number for number, text in enumerate(self.texts)}

    def numbers(self, texts: Sequence[str]) -> list[int]:
        """Return the number of each text; new texts are added."""
        found = []
        for text in texts:
            number = self._numbers.setdefault(text, len(self.texts))
            if number == len(self.texts):
                self.texts.append(text)
            found.append(number)
        return found


def _empty(texts: int, arena_bytes: int) -> TextTable:
    return TextTable(
        slots=np.zeros(2 * texts, np.int32),
        known=np.zeros((texts, 3), np.int64),
        arena=np.zeros(arena_bytes, np.uint8),
        counts=np.zeros(2, np.int64),
    )

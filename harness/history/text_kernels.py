"""Write events as JSON, compiled: the `value` column of EVENTS, and whole lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shaketable.harness.compiled import compiled, inlined
from shaketable.harness.history.frame_kernels import TextTable, intern
from shaketable.harness.history.frame_kernels import place as place_text
from shaketable.harness.history.schema import (
    FIRST_TEXTS,
    HAS_EXPECTED,
    HAS_INPUT,
    HAS_OFFSET,
    HAS_OUTPUT,
    NO_TEXT,
)

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
        place_text(fresh.known[:texts], fresh.slots)
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

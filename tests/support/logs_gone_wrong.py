"""The logs of three nodes in which each wrong stands that a checker of logs can tell.

n0 led term 1 and n1 leads term 2. Every queue is right but for one thing: see `WRONG`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from shaketable.harness.history.schema import ENTRIES

S: Final = 1_000_000_000
ENTRY_BYTES: Final = 100
QUEUES: Final = ("lost", "altered", "reordered", "missing", "duplicated", "damaged")
"""Queues called by what is wrong in them; the wrongs of the log itself are behind them all."""
LENGTH: Final = 4
WRONG: Final = 2
"""The offset at which something is wrong in each of these queues."""
TERM_2: Final = 12
"""The first index of term 2."""
REPLACING: Final = 500
"""What stands where an append was lost: a value whose append was never answered."""


@dataclass(frozen=True, slots=True)
class Append:
    """An append that was acknowledged."""

    key: str
    offset: int
    value: int
    call_ns: int
    node: str


def _appends() -> Iterator[Append]:
    for number in range(LENGTH * len(QUEUES)):
        place, queue = divmod(number, len(QUEUES))
        call_ns = 2 * S + number * S // 4
        node = "n0" if number < TERM_2 else "n1"
        yield Append(f"{QUEUES[queue]}/0", place, 100 + number, call_ns, node)


APPENDS: Final = (*_appends(),)
LAST: Final = len(APPENDS) + 3
COMMITTED: Final = dict.fromkeys(("n0", "n1", "n2"), LAST)


def read_log(_directory: Path, node: str) -> Iterator[pa.RecordBatch]:
    """Yield what a node's log holds, as the reader of a target does."""
    rows = [row for index in range(LAST + 1) for row in _entries(node, index)]
    yield from pa.Table.from_pylist(rows, ENTRIES).to_batches()


def _entries(node: str, index: int) -> list[dict[str, Any]]:
    """Return what stands at an index: an entry, none, or two of them."""
    if index >= len(APPENDS):
        return _of_the_log(node, index)
    append = APPENDS[index]
    queue = append.key.partition("/")[0]
    entry = _entry(node, index, append.key, append.offset, append.value)
    if append.offset != WRONG:
        return [entry]
    if queue == "lost":
        return [_entry(node, index, append.key, append.offset, REPLACING)]
    if queue == "altered":
        return [_entry(node, index, append.key, append.offset, 9_999)]
    if queue == "reordered":
        return [_entry(node, index, append.key, LENGTH + 3, append.value)]
    if queue == "missing" and node == "n2":
        return []
    if queue == "damaged" and node == "n1":
        return [entry | {"problem": "its CRC is 1f2e3d4c, and its body gives 8a0b1c2d"}]
    return [entry]


def _of_the_log(node: str, index: int) -> list[dict[str, Any]]:
    """Behind all queues: a value again, an index twice, a term that falls, two that differ."""
    number = index - len(APPENDS)
    again = next(one for one in APPENDS if one.key.startswith("duplicated") and one.offset == WRONG)
    plain = _entry(node, index, None, None, None)
    if number == 0:
        return [_entry(node, index, again.key, LENGTH, again.value)]
    if number == 1 and node == "n0":
        return [plain, plain | {"position": index * ENTRY_BYTES + ENTRY_BYTES // 2}]
    if number == 2 and node == "n1":
        return [plain | {"term": 1}]
    if number == 3 and node == "n2":
        return [_entry(node, index, "lost/0", LENGTH + 2, 777)]
    return [plain]


def _entry(
    node: str, index: int, key: str | None, offset: int | None, value: int | None
) -> dict[str, Any]:
    return {
        "node": node, "index": index, "term": 1 if index < TERM_2 else 2,
        "position": index * ENTRY_BYTES, "size": ENTRY_BYTES,
        "crc": crc32(f"{key} {offset} {value}".encode()),
        "key": key, "offset": offset, "value": value, "problem": None,
    }  # fmt: skip

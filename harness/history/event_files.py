"""Writes events in the order of all: events.parquet, and history.jsonl for people and tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shaketable.harness.history.operation_files import text_column
from shaketable.harness.history.rounds import Round
from shaketable.harness.history.rows import EVENT_TEXTS, NO_TEXT
from shaketable.harness.history.schema import EVENTS
from shaketable.harness.history.text_kernels import LINE_BYTES_MAX, VALUE_BYTES_MAX, lines, values

EVENTS_AT_A_TIME = 200_000
"""Events that are put into words at a time; a row group of events.parquet holds as many."""

Rows = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


class EventFiles:
    """Writes rounds of events into both files as they come; `close` completes them.

    Raises:
        OSError: a file cannot be written.
    """

    def __init__(self, parquet: Path, json_lines: Path) -> None:
        self._parquet = pq.ParquetWriter(parquet, EVENTS, compression="lz4", store_schema=False)
        self._lines: BinaryIO = json_lines.open("wb")
        self._count = 0
        self._raw = _Joined(quoted=False)
        self._quoted = _Joined(quoted=True)

    def add(self, round_: Round, texts: Sequence[str]) -> None:
        """Write the events of a round, in the order of all."""
        self._raw.take(texts)
        self._quoted.take(texts)
        order = np.empty(len(round_.index), np.int64)
        order[round_.index - self._count] = np.arange(len(order))
        events = np.concatenate(round_.events)
        for begin in range(0, len(order), EVENTS_AT_A_TIME):
            rows = events[order[begin : begin + EVENTS_AT_A_TIME]]
            value, ends, is_null = _values(rows, self._raw)
            self._parquet.write_table(_table(rows, self._count, texts, (value, ends, is_null)))
            self._lines.write(_lines(rows, self._count, self._quoted, value, ends))
            self._count += len(rows)

    def close(self) -> None:
        """Complete the files."""
        self._parquet.close()
        self._lines.close()


def events_table(rows: Rows, first: int, texts: Sequence[str]) -> pa.Table:
    """Return EVENT_ROWs that stand in order as a table of EVENTS, numbered from `first`."""
    raw = _Joined(quoted=False)
    raw.take(texts)
    return _table(rows, first, texts, _values(rows, raw))


class _Joined:
    """All texts in one array of bytes, as they are or as JSON."""

    def __init__(self, *, quoted: bool) -> None:
        self._encode = msgspec.json.encode if quoted else str.encode
        self.data = np.zeros(0, np.uint8)
        self.at = np.zeros(1, np.int64)

    def take(self, texts: Sequence[str]) -> None:
        """Take in the texts that were not there yet."""
        fresh = [self._encode(text) for text in texts[len(self.at) - 1 :]]
        if fresh:
            joined = np.frombuffer(b"".join(fresh), np.uint8)
            ends = len(self.data) + np.cumsum([len(text) for text in fresh])
            self.data = np.concatenate([self.data, joined])
            self.at = np.concatenate([self.at, ends])

    def bytes_of(self, numbers: npt.NDArray[np.int32]) -> int:
        """Return how many bytes these texts have together."""
        there = numbers[numbers != NO_TEXT]
        return int((self.at[there + 1] - self.at[there]).sum())


def _values(rows: Rows, raw: _Joined) -> tuple[npt.NDArray[np.uint8], Ints, npt.NDArray[np.bool_]]:
    """Return the JSON of all values, where each ends behind a first 0, and which are null."""
    out = np.empty(len(rows) * VALUE_BYTES_MAX + raw.bytes_of(rows["extra"]), np.uint8)
    ends = np.zeros(len(rows) + 1, np.int64)
    is_null = np.empty(len(rows), np.bool_)
    size = values(rows, raw.data, raw.at, out, ends, is_null)
    return out[:size], ends, is_null


def _lines(
    rows: Rows, first: int, quoted: _Joined, value: npt.NDArray[np.uint8], ends: Ints
) -> memoryview:
    room = len(rows) * LINE_BYTES_MAX + len(value)
    for name in EVENT_TEXTS:
        room += quoted.bytes_of(rows[name])
    out = np.empty(room, np.uint8)
    size = lines(rows, first, quoted.data, quoted.at, value, ends, out)
    return out[:size].data


def _table(
    rows: Rows,
    first: int,
    texts: Sequence[str],
    value: tuple[npt.NDArray[np.uint8], Ints, npt.NDArray[np.bool_]],
) -> pa.Table:
    data, ends, is_null = value
    seen = np.full(len(texts), NO_TEXT, np.int32)
    columns: dict[str, Any] = {
        "index": pa.array(np.arange(first, first + len(rows))),
        "time_ns": pa.array(np.ascontiguousarray(rows["time_ns"])),
        "process": pa.array(np.ascontiguousarray(rows["process"])),
    }
    for name in ("type", "f", "key", "error", "node"):
        columns[name] = text_column(np.ascontiguousarray(rows[name]), texts, seen)
    column = pa.Array.from_buffers(
        pa.large_string(), len(rows), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    columns["value"] = pc.if_else(pa.array(is_null), None, column)
    return pa.table({name: columns[name] for name in EVENTS.names}).cast(EVENTS)

"""Read all recordings of a run together, in rounds of time, so that memory stays bounded.

A round decodes a piece of every segment, takes all events up to a time that every segment is known
to have reached (its low watermark), assigns each its position in the global order, and pairs
invokes with completions. Pairing is done within a recording (a process lives in one), in recorded
order, so equal times can never join the wrong events. An invoke without a completion stays open; so
does one whose process invokes again.

Source: jepsen.history (pair-index); CHECKERS.md section 5.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history import event_kernels as frames
from shaketable.harness.history.event_kernels import HistoryTexts, RecordedTexts
from shaketable.harness.history.order_kernels import Open, merge, pair, rehash, renumber
from shaketable.harness.history.schema import (
    EVENT_NUMBERS,
    EVENT_ROW,
    EVENT_TEXTS,
    INVOKE,
    NO_TEXT,
    OPERATION_ROW,
)
from shaketable.harness.history.segments import (
    MAGIC,
    NO_EVENT,
    PAYLOAD_BYTES_MAX,
    TRAILING,
    UNREADABLE,
    Event,
    SegmentEnd,
    frame_bytes,
    judge_end,
)

ROUND_BYTES = 8 << 20
"""Bytes of all segments that are decoded at a time: arrays of that size reuse freed memory; larger
ones are mapped and cleared anew each time."""
CHUNK_BYTES_MIN = 256 << 10
OPEN_AT_FIRST = 256

Rows = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


class NotInOrder(Exception):  # noqa: N818 - it is no error: read again, all at once
    """A recording's times do not increase strictly, so there is no low watermark."""


@dataclass(frozen=True, slots=True)
class Round:
    """Events of one span of time, and the operations that completed in it.

    Attributes:
        events: rows of EVENT_ROW, recording by recording.
        index: their positions in the global order, in the same sequence.
        operations: rows of OPERATION_ROW, in any order; the last round also has those that never
            completed.
    """

    events: tuple[Rows, ...]
    index: Ints
    operations: tuple[Rows, ...]


class Recordings:
    """The segments of a run, read in rounds.

    `texts` are the history's; they, `ends` and `problems` are complete after the last round.

    Raises:
        HarnessError: a segment cannot be opened.
    """

    def __init__(self, paths: Sequence[Path], pool: Executor, *, at_once: bool = False) -> None:
        chunk = max(CHUNK_BYTES_MIN, ROUND_BYTES // max(1, len(paths)))
        self.texts = HistoryTexts()
        self.ends: list[SegmentEnd] = []
        self.problems: list[str] = []
        self._pool = pool
        self._at_once = at_once
        self._streams: list[SegmentStream] = []
        try:
            for path in paths:
                self._streams.append(SegmentStream(path, chunk))
        except HarnessError:
            self._close()
            raise
        self.bytes_total = sum(stream.size for stream in self._streams)
        self._pairing = [_Pairing() for _ in paths]

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds in time order; call once.

        Raises:
            NotInOrder: read again with `at_once`; what was yielded is void.
            HarnessError: a segment cannot be read.
        """
        try:
            first = 0
            is_over = False
            while not is_over:
                self._decode()
                is_over = all(stream.is_done for stream in self._streams)
                events = self._take(is_over)
                yield (round_ := self._pair(events, first, is_over))
                first += len(round_.index)
        finally:
            self._close()
        self.ends = [stream.end for stream in self._streams if stream.end is not None]
        lone = sum(int(pairing.open.counts[1]) for pairing in self._pairing)
        again = sum(int(pairing.open.counts[2]) for pairing in self._pairing)
        if lone:
            self.problems.append(f"{lone} completions have no invoke")
        if again:
            self.problems.append(f"{again} operations have no end, though their process went on")

    def _close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _decode(self) -> None:
        """Decode until every segment has events to take, unless it has ended."""
        while True:
            waiting = [s for s in self._streams if not s.is_done and s.is_short]
            if self._at_once:
                waiting = [s for s in self._streams if not s.is_done]
            list(self._pool.map(SegmentStream.decode, waiting))
            if not self._at_once and not all(stream.is_rising for stream in self._streams):
                raise NotInOrder
            if not waiting:
                return

    def _take(self, is_over: bool) -> list[Rows]:
        open_ = [stream.last_ns for stream in self._streams if not stream.is_done]
        until = None if is_over or not open_ else min(open_)
        return [stream.take(until, self.texts) for stream in self._streams]

    def _pair(self, events: list[Rows], first: int, is_over: bool) -> Round:
        bounds = np.cumsum([0, *map(len, events)])
        index = np.empty(bounds[-1], np.int64)
        times = np.concatenate([rows["time_ns"] for rows in events])
        is_invoke = np.concatenate([rows["type"] == INVOKE for rows in events])
        if self._at_once:
            # lexsort is stable, and rows are in recorded order, recording by recording.
            index[np.lexsort((~is_invoke, times))] = np.arange(len(index))
        else:
            merge(times, is_invoke, bounds, first, index)
        parts = [
            (pairing, rows, index[begin : begin + len(rows)], is_over)
            for pairing, rows, begin in zip(self._pairing, events, bounds[:-1], strict=True)
        ]
        operations = self._pool.map(lambda part: part[0].pair(*part[1:]), parts)
        return Round(tuple(events), index, tuple(operations))


class _Pairing:
    """Pairs the events of one recording; keeps the open operations from round to round."""

    def __init__(self) -> None:
        self.open = _empty(OPEN_AT_FIRST)

    def pair(self, events: Rows, index: Ints, is_over: bool) -> Rows:
        """Return the operations that completed, and at the end those that did not."""
        found = np.empty(len(events), OPERATION_ROW)
        at = count = 0
        while at < len(events):
            at, more = pair(events, index, self.open, found[count:], at)
            count += more
            if at < len(events):
                larger = _empty(4 * len(self.open.taken))
                rehash(self.open, larger)
                self.open = larger
        if not is_over:
            return found[:count]
        return np.concatenate([found[:count], self.open.rows[self.open.taken]])


def _empty(slots: int) -> Open:
    return Open(np.zeros(slots, np.bool_), np.zeros(slots, OPERATION_ROW), np.zeros(3, np.int64))


# Reads one segment in pieces to EVENT_ROWs, and classifies its end as read_segment does.

FRAME_BYTES_USUAL = 24
"""Rows are allocated for frames of this size; shorter frames take another pass."""


class SegmentStream:
    """A segment that is being read. `decode` may run in another thread than `take`.

    Attributes:
        path: the file.
        is_done: it was read to its end, or to where it stops being readable; `end` tells which.
        is_rising: all times increased strictly so far.
        last_ns: time of the last decoded event.
        end: how it ends, once `is_done`.
        size: of the file, in bytes.

    Raises:
        HarnessError: there is no such file, or it cannot be read.
    """

    def __init__(self, path: Path, chunk_bytes: int) -> None:
        self.path = path
        self.is_done = False
        self.is_rising = True
        self.last_ns = -(1 << 63)
        self.end: SegmentEnd | None = None
        self._chunk_bytes = chunk_bytes
        self._texts = RecordedTexts()
        self._numbers = np.zeros(0, np.int32)
        self._ready: deque[Rows] = deque()
        self._rest = np.zeros(0, np.uint8)
        self._count = 0
        try:
            self._file = path.open("rb", buffering=0)
            self.size = os.fstat(self._file.fileno()).st_size
            head = self._file.read(len(MAGIC))
        except OSError as error:
            raise HarnessError(f"cannot read the recording {path}: {error.strerror}") from error
        self._at = len(MAGIC)
        if head != MAGIC:
            self._finish(0, None)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def is_short(self) -> bool:
        """Whether fewer events are waiting than about half a piece holds."""
        waiting = sum(len(rows) for rows in self._ready)
        return waiting < max(1, self._chunk_bytes // (4 * FRAME_BYTES_USUAL * 2))

    def decode(self) -> None:
        """Read and decode the next piece, if there is one."""
        if self.is_done:
            return
        data = self._read()
        is_last = self._at + len(data) == self.size
        at = 0
        rows = np.empty(len(data) // FRAME_BYTES_USUAL + 1, EVENT_ROW)
        count = 0
        while True:
            why, at, count = frames.scan(data, at, is_last, self._texts.table, rows, count)
            if why == frames.ROWS_FULL:
                self._keep(rows[:count])
                rows, count = np.empty(len(rows), EVENT_ROW), 0
            elif why == frames.TEXTS_FULL:
                self._texts.grow(PAYLOAD_BYTES_MAX)
            elif why == frames.ODD:
                after = self._decode_odd(data, at, rows[count : count + 1])
                if after is None:
                    self._keep(rows[:count])
                    self._finish(self._at + at, NO_EVENT)
                    return
                at, count = after, count + 1
            else:
                break
        self._keep(rows[:count])
        self._go_on(data, at, why, is_last)

    def take(self, until_ns: int | None, history: HistoryTexts) -> Rows:
        """Return the events up to that time, without those taken before, with the history's texts.

        None takes all, whatever their order in time.
        """
        taken: list[Rows] = []
        while self._ready:
            rows = self._ready.popleft()
            if until_ns is not None and rows["time_ns"][-1] > until_ns:
                cut = int(np.searchsorted(rows["time_ns"], until_ns, side="right"))
                self._ready.appendleft(rows[cut:])
                rows = rows[:cut]
                if len(rows):
                    taken.append(rows)
                break
            taken.append(rows)
        known = max(len(self._numbers) - 1, 0)
        if known < len(self._texts):
            fresh = history.numbers(self._texts.since(known))
            before = self._numbers if known else np.array([NO_TEXT], np.int32)
            self._numbers = np.concatenate([before, np.array(fresh, np.int32)])
        for rows in taken:
            renumber(rows, self._numbers)
        return taken[0] if len(taken) == 1 else np.concatenate([np.empty(0, EVENT_ROW), *taken])

    def _read(self) -> npt.NDArray[np.uint8]:
        """Return the rest of the last piece, followed by the next piece."""
        kept = len(self._rest)
        wanted = min(self._chunk_bytes, self.size - self._at - kept)
        data = np.empty(kept + wanted, np.uint8)
        data[:kept] = self._rest
        at = kept
        try:
            while at < len(data):
                got = self._file.readinto(data[at:].data)
                if not got:
                    raise HarnessError(f"cannot read the recording {self.path}: it became shorter")
                at += got
        except OSError as error:
            raise HarnessError(
                f"cannot read the recording {self.path}: {error.strerror}"
            ) from error
        return data

    def _keep(self, rows: Rows) -> None:
        if not len(rows):
            return
        times = rows["time_ns"]
        is_rising = times[0] > self.last_ns and bool((times[1:] > times[:-1]).all())
        self.is_rising = self.is_rising and is_rising
        self.last_ns = int(times[-1])
        self._count += len(rows)
        self._ready.append(rows)

    def _go_on(self, data: npt.NDArray[np.uint8], at: int, why: int, is_last: bool) -> None:
        """Record where the next piece starts, or that there is none."""
        if why == frames.MORE and not is_last:
            self._rest = data[at:].copy()
            self._at += at
        elif why == frames.MORE:
            self._finish(self._at + at, None)
        elif why == frames.CLOSING:
            end = self._at + at + frame_bytes(data[at:])
            self._finish(end, None if end == self.size else TRAILING)
        else:
            self._finish(self._at + at, UNREADABLE)

    def _finish(self, at: int, why: str | None) -> None:
        self.is_done = True
        self._rest = np.zeros(0, np.uint8)
        self.end = judge_end(self.path, self.size, at, self._count, why)

    def _decode_odd(self, data: npt.NDArray[np.uint8], at: int, row: Rows) -> int | None:
        """Decode the frame at `at` with msgspec; return the next frame's start, None if invalid."""
        after = at + frame_bytes(data[at:])
        payload = data[after - _payload_bytes(data[at:]) : after].tobytes()
        try:
            event = msgspec.msgpack.decode(payload, type=Event)
        except (msgspec.DecodeError, UnicodeDecodeError):  # ValidationError is one
            return None
        try:
            self._fill(row, event)
        except OverflowError as error:
            raise HarnessError(
                f"{self.path.name}: a number at byte {self._at + at} has more than 64 bits"
            ) from error
        return after

    def _fill(self, row: Rows, event: Event) -> None:
        row["time_ns"], row["process"], row["has"] = event.time_ns, event.process, 0
        for name, flag in EVENT_NUMBERS.items():
            value = getattr(event, name)
            row[name] = 0 if value is None else value
            row["has"] |= 0 if value is None else flag
        for name in EVENT_TEXTS:
            text = getattr(event, name)
            row[name] = NO_TEXT if text is None else self._texts.number(text)


def _payload_bytes(frame: npt.NDArray[np.uint8]) -> int:
    return int.from_bytes(frame[1:5].tobytes(), "big")

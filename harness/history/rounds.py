"""Reads all recordings of a run together, in rounds of time, so that memory stays bounded.

Each round decodes a piece of every segment, takes all events up to a time that every segment
is known to have reached, gives each its place in the order of all, and pairs invokes with
their ends. Pairs are found within a recording (a process lives in one), in its own order, so
that equal times can never join the wrong events. An invoke without an end stays open; so does
one whose process invokes again.

Source: jepsen.history (pair-index); CHECKERS.md section 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history.order_kernels import Open, merge, pair, rehash
from shaketable.harness.history.rows import INVOKE, OPERATION_ROW
from shaketable.harness.history.segment_stream import SegmentStream
from shaketable.harness.history.segments import SegmentEnd
from shaketable.harness.history.texts import HistoryTexts

ROUND_BYTES = 8 << 20
"""Bytes of all segments together that are decoded at a time: arrays of that size are taken from
memory that was used before, larger ones are mapped and cleared anew each time."""
CHUNK_BYTES_MIN = 256 << 10
OPEN_AT_FIRST = 256

Rows = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


class NotInOrder(Exception):  # noqa: N818 - it is no error: read again, all at once
    """A recording's times do not rise strictly, so no time is known to be reached."""


@dataclass(frozen=True, slots=True)
class Round:
    """Events of one stretch of time, and the operations that ended in it.

    `events` are rows of EVENT_ROW, recording by recording; `index` is each one's place in the
    order of all, recording after recording. `operations` are rows of OPERATION_ROW, in any
    order; the last round has those that never ended too.
    """

    events: tuple[Rows, ...]
    index: Ints
    operations: tuple[Rows, ...]


class Recordings:
    """The segments of a run, read in rounds.

    `texts` are the history's, complete after the last round, as are `ends` and `problems`.

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
        """Yield the rounds in order of time; call once.

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
        """Let every segment have events to take, as far as it goes."""
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
            # Stable, and rows stand recording after recording, in the order recorded.
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
    """Pairs the events of one recording; keeps what is open from round to round."""

    def __init__(self) -> None:
        self.open = _empty(OPEN_AT_FIRST)

    def pair(self, events: Rows, index: Ints, is_over: bool) -> Rows:
        """Return the operations that ended, and in the end those that did not."""
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

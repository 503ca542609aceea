"""Crash-safe recordings: append-only files of events, readable after a SIGKILL, and their recorder.

A segment is `MAGIC`, then frames `kind u8 | length u32 | crc u32 | payload`, big-endian; the CRC-32
covers kind, length and payload. An event's payload is the msgpack array of `Event`; the payload of
the closing frame, written by a clean close, is the number of events as u64. A batch of events is
written by one write(2), without fsync: the kernel keeps what a killed process wrote, and a history
need not survive a power loss.

The recordings of a run can be read while its clients still write them, as one history in time
order. A recording alone does not tell how far it is complete: a client that does nothing leaves no
trace. So the processes that record say up to which time they have recorded all (their watermark),
and an event is given once no recording can get an earlier one. No event comes late, whatever
stalls. The order, and so the number of each operation, is that of the export (`rounds`,
`order_kernels`).

Source: DESIGN.md section 3 ("Event"); etcd's wal and LevelDB's log for framing by CRC.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic_ns
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history.run_folder import RunFolder, write_atomically

MAGIC = b"STSEG1\r\n"
NEMESIS = -1
"""The nemesis' process number (schema.NEMESIS_PROCESS, without importing pyarrow)."""

PAYLOAD_BYTES_MAX = 1 << 20
"""Longest payload of a frame; a longer one means damage."""

RESYNC_BYTES_MAX = 1 << 16
"""How far after an unreadable frame a readable one is searched, to tell damage from a torn tail."""

_FRAME = struct.Struct(">BII")
_HEAD = struct.Struct(">BI")
_COUNT = struct.Struct(">Q")
_EVENT = 1
_CLOSE = 2
UNREADABLE = "the next record is unreadable"
NO_EVENT = "the next record is no event"
TRAILING = "bytes follow the closing record"
"""Reasons why a segment is not readable further."""
_CLOSE_BYTES = _FRAME.size + _COUNT.size


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event as recorded. What schema.EVENTS holds as JSON is in separate columns here.

    `input`, `output`, `offset`, `expected` become the OPERATIONS columns of those names; `extra` is
    JSON text (the whole value of a nemesis event). `time_ns` counts from the start of the run.
    """

    time_ns: int
    process: int
    type: str
    f: str
    key: str | None = None
    input: int | None = None
    output: int | None = None
    offset: int | None = None
    error: str | None = None
    node: str | None = None
    extra: str | None = None
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """How far a segment file is readable.

    Attributes:
        path: the file.
        count: number of readable events.
        torn: where the file stops being readable, in one line (file, byte, events kept); or None.
        closed: the file ends with a closing frame.
        events_expected: the count in the closing frame.
        damaged: more is unreadable than the torn tail that a SIGKILL may leave, so recorded events
            are missing.
    """

    path: Path
    count: int
    torn: str | None = None
    closed: bool = False
    events_expected: int | None = None
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment file's events, and the fields of its SegmentEnd."""

    path: Path
    events: tuple[Event, ...]
    torn: str | None = None
    closed: bool = False
    events_expected: int | None = None
    damaged: bool = False


class SegmentWriter:
    """Appends events to a new segment file.

    Raises:
        HarnessError: the file exists already or cannot be written (disk full), or an event is
            larger than readers accept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._encode = msgspec.msgpack.Encoder().encode
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            self._file: int | None = os.open(path, flags, 0o644)
        except OSError as error:
            raise HarnessError(f"cannot create the recording {path}: {error.strerror}") from error
        self._write(MAGIC)

    def write(self, events: Iterable[Event]) -> None:
        """Append a batch of events in one system call."""
        frames = [self._event_frame(event) for event in events]
        self._write(b"".join(frames))
        self.count += len(frames)

    def write_one(self, event: Event) -> None:
        """Append one event in one system call."""
        self._write(self._event_frame(event))
        self.count += 1

    def close(self) -> int:
        """Write the closing frame; return the number of events. Idempotent."""
        if self._file is not None:
            self._write(_frame(_CLOSE, _COUNT.pack(self.count)))
            os.close(self._file)
            self._file = None
        return self.count

    def _event_frame(self, event: Event) -> bytes:
        payload = self._encode(event)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise HarnessError(
                f"cannot record into {self.path}: the {event.type} of {event.f} has "
                f"{len(payload)} bytes, at most {PAYLOAD_BYTES_MAX} fit; read less at once"
            )
        return _frame(_EVENT, payload)

    def _write(self, data: bytes) -> None:
        assert self._file is not None, "write to a closed segment"
        try:
            while data:  # short writes happen on a full disk or a signal
                data = data[_some(os.write(self._file, data)) :]
        except OSError as error:
            raise HarnessError(f"cannot record into {self.path}: {error.strerror}") from error


def _some(written: int) -> int:
    """Return how many bytes were written. Raises OSError for none: do not try again for ever."""
    if not written:
        raise OSError(errno.EIO, "nothing was written")
    return written


def read_segment(path: Path) -> Segment:
    """Read all events up to the first unreadable byte.

    Raises:
        HarnessError: there is no such file, or it cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HarnessError(f"cannot read the recording {path}: {error.strerror}") from error
    events: tuple[Event, ...] = ()
    at, why = 0, None
    if data.startswith(MAGIC):
        events, at, why = _scan(data)
    end = judge_end(path, len(data), at, len(events), why)
    return Segment(path, events, end.torn, end.closed, end.events_expected, end.damaged)


def whole_events(data: bytes) -> tuple[list[Event], int, bool]:
    """Decode the events of the complete frames at the start of `data`, which may end anywhere.

    For following a segment that grows. Returns the events, their size in bytes, and whether the
    rest can still become complete: False after a damaged frame or the closing one.
    """
    decode = msgspec.msgpack.Decoder(Event).decode
    events: list[Event] = []
    at = 0
    while at + _FRAME.size <= len(data):
        kind, size, _ = _FRAME.unpack_from(data, at)
        if kind != _EVENT or size > PAYLOAD_BYTES_MAX:
            return events, at, False
        if at + _FRAME.size + size > len(data):
            break
        frame = _frame_at(data, at)
        if frame is None:
            return events, at, False
        try:
            events.append(decode(frame[1]))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return events, at, False
        at += _FRAME.size + size
    return events, at, True


def is_closing(rest: bytes, count: int) -> bool:
    """Return whether `rest`, what follows `count` events, is the closing frame and no more."""
    return _closing(rest) == count


def judge_end(path: Path, size: int, at: int, count: int, why: str | None) -> SegmentEnd:
    """Classify the end of a segment.

    Args:
        path: the segment.
        size: its size in bytes.
        at: where reading stopped; 0 if it does not start as a segment does.
        count: number of events read.
        why: why reading stopped; None at the regular end.

    Raises:
        HarnessError: the file cannot be read.
    """
    window = RESYNC_BYTES_MAX + PAYLOAD_BYTES_MAX + _FRAME.size
    try:
        with path.open("rb") as file:
            file.seek(at)
            rest = file.read(window)  # enough to tell a torn tail from damage
            file.seek(max(len(MAGIC), size - _CLOSE_BYTES))
            tail = file.read(_CLOSE_BYTES)
    except OSError as error:
        raise HarnessError(f"cannot read the recording {path}: {error.strerror}") from error
    if at == 0:
        cut = MAGIC.startswith(rest)
        what = "cut inside its first bytes" if cut else "not a recording of this program"
        return SegmentEnd(path, 0, torn=_torn_text(path, 0, 0, what), damaged=not cut)
    closing = _closing(tail)
    torn: str | None = None
    if why is not None:
        damaged = closing is not None or why != UNREADABLE or not _is_cut_tail(rest)
        torn = _torn_text(path, at, count, why)
    else:
        damaged = closing is not None and closing != count
        if damaged:
            torn = _torn_text(path, at, count, f"{closing} were written")
    return SegmentEnd(path, count, torn, closing is not None, closing, damaged)


def frame_bytes(data: Any) -> int:
    """Return the length of the complete frame at the start of `data`, any buffer of bytes."""
    return _FRAME.size + int(_FRAME.unpack_from(data)[1])


def _frame(kind: int, payload: bytes) -> bytes:
    size = len(payload)
    crc = zlib.crc32(payload, zlib.crc32(_HEAD.pack(kind, size)))
    return _FRAME.pack(kind, size, crc) + payload


def _scan(data: bytes) -> tuple[tuple[Event, ...], int, str | None]:
    """Return the events, the byte at which reading stopped, and why, unless it is the end."""
    decode = msgspec.msgpack.Decoder(Event).decode
    events: list[Event] = []
    at = len(MAGIC)
    while at < len(data):
        frame = _frame_at(data, at)
        if frame is None:
            return tuple(events), at, UNREADABLE
        kind, payload = frame
        end = at + _FRAME.size + len(payload)
        if kind == _CLOSE:
            why = None if end == len(data) else TRAILING
            return tuple(events), end, why
        try:
            events.append(decode(payload))
        except (msgspec.DecodeError, UnicodeDecodeError):  # ValidationError is one
            return tuple(events), at, NO_EVENT
        at = end
    return tuple(events), at, None


def _frame_at(data: bytes, at: int) -> tuple[int, memoryview] | None:
    """Return (kind, payload) of the frame at `at`; None if there is no complete, valid one."""
    if at + _FRAME.size > len(data):
        return None
    kind, size, crc = _FRAME.unpack_from(data, at)
    begin = at + _FRAME.size
    if kind not in (_EVENT, _CLOSE) or size > PAYLOAD_BYTES_MAX or begin + size > len(data):
        return None
    payload = memoryview(data)[begin : begin + size]
    if zlib.crc32(payload, zlib.crc32(_HEAD.pack(kind, size))) != crc:
        return None
    return kind, payload


def _closing(tail: bytes) -> int | None:
    """Return the event count if `tail`, a file's last bytes, is a closing frame, else None."""
    frame = _frame_at(tail, 0) if len(tail) == _CLOSE_BYTES else None
    if frame is None or frame[0] != _CLOSE:
        return None
    return int(_COUNT.unpack(frame[1])[0])


def _is_cut_tail(data: bytes) -> bool:
    """Return whether `data`, the end of a file, is the start of one frame and nothing else.

    That is all that a SIGKILL inside write(2) can leave. A complete frame with a wrong CRC, or a
    readable frame further on, is damage.
    """
    if len(data) >= _FRAME.size:
        kind, size, _ = _FRAME.unpack_from(data)
        is_beginning = kind in (_EVENT, _CLOSE) and len(data) < _FRAME.size + size
        if not is_beginning or size > PAYLOAD_BYTES_MAX:
            return False
    last = min(len(data), RESYNC_BYTES_MAX)
    return all(_frame_at(data, at) is None for at in range(1, last))


def _torn_text(path: Path, at: int, kept: int, why: str) -> str:
    return f"{path.name}: cut or damaged at byte {at}: {why}; {kept} events kept"


# Recordings that are still written.

STEP_BYTES: Final = 256 << 10
"""Read of a recording at once; and so much of it is decoded and waits for the others at most."""
FRAME_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 64
"""More than any frame has: where a step holds no whole frame, so much is read."""


@dataclass(slots=True)
class _Source:
    """One recording: how far it was read, and what of it waits for the others.

    Attributes:
        until_ns: what was recorded before has been written; inf once the recording is complete.
        bound_ns: no event before this time can come, beside those that wait.
        is_read: at the last look there was no further whole event.
        damage: where the complete recording cannot be read; None if all of it can.
    """

    path: Path
    number: int
    until_ns: float = -inf
    bound_ns: float = -inf
    place: int = len(MAGIC)
    count: int = 0
    is_read: bool = False
    damage: str | None = None
    waiting: deque[Event] = field(default_factory=deque)
    file: int | None = None

    def read(self) -> None:
        """Read a step, if nothing of the last one waits. `until_ns` is from before."""
        if self.waiting or self.damage is not None:
            return
        if not self._is_open():
            if self.until_ns == inf:  # its process ended before it began
                self.bound_ns, self.is_read = inf, True
            return
        assert self.file is not None
        for step in (STEP_BYTES, FRAME_BYTES_MAX):
            data = os.pread(self.file, step, self.place)
            events, read, is_readable = whole_events(data)
            if events or not is_readable or len(data) < step:
                break
        self.waiting.extend(events)
        self.place += read
        self.count += len(events)
        after_ns = events[-1].time_ns + 1 if events else self.bound_ns
        self.is_read = len(data) < step if is_readable else self._is_closed(self.file)
        self.bound_ns = max(after_ns, self.until_ns) if self.is_read else after_ns
        # A frame that cannot be read may be one that is just being written.
        if not is_readable and not self.is_read and self.until_ns == inf:
            self.damage = f"{self.path.name} cannot be read after byte {self.place:,}"

    def _is_closed(self, file: int) -> bool:
        return is_closing(os.pread(file, FRAME_BYTES_MAX, self.place), self.count)

    def _is_open(self) -> bool:
        if self.file is None:
            try:
                self.file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return False
        return True


class GrowingSegments:
    """The events of a run, from its start, in the order that they have in its history.

    Attributes:
        hole: where a recording is damaged; what comes after it is not given. None if none is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources: dict[str, _Source] = {}
        self._count = 0
        self.hole: str | None = None

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Close the files."""
        for source in self._sources.values():
            if source.file is not None:
                os.close(source.file)

    def note(self, recorded: Mapping[str, int | None]) -> None:
        """Take how far each recording is complete; the first note names all of them.

        Args:
            recorded: file name -> a time: what was recorded before it has been written; None: it
                will not grow any more. -1: nothing is known yet.
        """
        if not self._sources:
            for number, name in enumerate(sorted(recorded)):
                self._sources[name] = _Source(self._folder / name, number)
        for name, until_ns in recorded.items():
            source = self._sources[name]
            source.until_ns = max(source.until_ns, inf if until_ns is None else until_ns)

    def take(self) -> list[tuple[int, Event]]:
        """Return the next events with their numbers; none if nothing more is certain.

        Raises:
            OSError: a recording cannot be read.
        """
        if self.hole is not None:
            return []
        sources = self._sources.values()
        for source in sources:
            source.read()
        bound_ns = min((source.bound_ns for source in sources), default=-inf)
        ready = [
            ((event.time_ns, event.type != "invoke", source.number), event)
            for source in sources
            for event in _before(source.waiting, bound_ns)
        ]
        ready.sort(key=lambda each: each[0])
        self.hole = next((source.damage for source in sources if source.damage), None)
        first, self._count = self._count, self._count + len(ready)
        return [(first + n, event) for n, (_, event) in enumerate(ready)]

    @property
    def unread_bytes(self) -> int:
        """How much of the recordings was written and not read."""
        return sum(_size(source.path) - source.place for source in self._sources.values())

    @property
    def is_over(self) -> bool:
        """Whether all recordings are complete and their events were given."""
        return bool(self._sources) and all(
            source.bound_ns == inf and not source.waiting for source in self._sources.values()
        )


def _before(waiting: deque[Event], bound_ns: float) -> Iterator[Event]:
    """Yield and remove the events before a time."""
    while waiting and waiting[0].time_ns < bound_ns:
        yield waiting.popleft()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


# Record what clients and the nemesis do, as they do it, in one segment.
#
# The invoke is written to the kernel before the operation is sent, so it survives a SIGKILL of the
# worker: an operation that may have taken effect is always in the history.
#
# Source: Jepsen's interpreter; jepsen.generator.interpreter for process ids.

ERROR_CHARS_MAX = 500
"""Longer error texts are truncated to this many characters."""


def next_process(process: int, clients: int) -> int:
    """Return a client's process id after an `info` (Jepsen: process += concurrency)."""
    return process + clients


class Recorder:
    """Writes the events of one OS process to one segment, in time order.

    Args:
        path: the segment to create.
        start_ns: start of the run on CLOCK_MONOTONIC; recorded times count from it.
        clock_ns: the clock, for tests.

    Raises:
        HarnessError: the segment cannot be written.
    """

    def __init__(
        self, path: Path, start_ns: int, clock_ns: Callable[[], int] = monotonic_ns
    ) -> None:
        self._writer = SegmentWriter(path)
        self._start_ns = start_ns
        self._clock_ns = clock_ns
        self._last_ns = -1

    def invoke(
        self,
        process: int,
        f: str,
        key: str | None,
        *,
        value: int | None = None,
        offset: int | None = None,
        expected: int | None = None,
        request: str | None = None,
        steps: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        """Record that `process` is about to do this. Call it before the operation is sent.

        `steps`: the micro-operations of a transaction, [f, key, value] each.
        """
        extra = None
        if steps is not None:
            extra = msgspec.json.encode({"input": steps}).decode()
        elif request is not None:
            extra = msgspec.json.encode({"request": request}).decode()
        self._writer.write_one(
            Event(
                self._now_ns(),
                process,
                "invoke",
                f,
                key,
                value,
                None,
                offset,
                extra=extra,
                expected=expected,
            )
        )

    def complete(  # noqa: PLR0913 - an event has that many columns
        self,
        process: int,
        type: str,  # noqa: A002 - the event's column is named so
        f: str,
        key: str | None,
        *,
        output: int | Sequence[int] | Sequence[tuple[int, int]] | None = None,
        offset: int | None = None,
        error: str | None = None,
        node: str | None = None,
        attempts: Sequence[int] | None = None,
        steps: tuple[Sequence[Sequence[Any]], Sequence[Sequence[Any]]] | None = None,
    ) -> None:
        """Record a completion: type ok, fail or info.

        `output` may be many: messages, (offset, value), or the elements of a set. `attempts`: how
        often each of the messages was delivered before. `steps`: those of a transaction, as they
        were asked and as they were answered.
        """
        text = None if error is None else _storable(error)
        extra = None
        if steps is not None:
            extra = msgspec.json.encode({"input": steps[0], "output": steps[1]}).decode()
            output = None
        elif output is not None and not isinstance(output, int):
            fields: dict[str, Any] = {"output": output}
            if attempts is not None:
                fields["attempts"] = attempts
            extra = msgspec.json.encode(fields).decode()
            output = None
        self._writer.write_one(
            Event(self._now_ns(), process, type, f, key, None, output, offset, text, node, extra)
        )

    def nemesis(self, f: str, value: dict[str, Any]) -> None:
        """Record a nemesis event (info, process -1): at a fault's start and at its stop."""
        extra = msgspec.json.encode(value).decode()
        self._writer.write_one(Event(self._now_ns(), NEMESIS, "info", f, extra=extra))

    def recorded_ns(self) -> int:
        """Return a time before which nothing will be recorded any more: all that was is written.

        An event gets its time and is written in one go, so between two calls there is none that
        has its time and is not written.
        """
        return max(self._clock_ns() - self._start_ns, self._last_ns + 1)

    def close(self) -> int:
        """Write the closing record; return the number of events. Idempotent."""
        return self._writer.close()

    def _now_ns(self) -> int:
        """Return the time since the start, strictly increasing, so that order is time order."""
        self._last_ns = max(self._clock_ns() - self._start_ns, self._last_ns + 1)
        return self._last_ns


def _storable(text: str) -> str:
    """Truncate an error's text, and make it encodable."""
    return text[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode()


# The sizes of a running campaign's recordings, noted about twice a second.
#
# A killed harness leaves no event counts. The sizes noted last tell a recording that just ends with
# the kill from one that was truncated or lost afterwards.


def note_sizes(folder: RunFolder) -> None:
    """Write the sizes of all segments to recorded.json.

    Raises:
        HarnessError: it cannot be written.
    """
    sizes = {path.name: path.stat().st_size for path in sorted(folder.segments.glob("*.seg"))}
    write_atomically(folder.recorded_json, msgspec.json.encode(sizes))


def noted_sizes(folder: RunFolder) -> dict[str, int] | None:
    """Return the sizes noted last, in bytes by file name; None if none were noted.

    Raises:
        HarnessError: they were noted, and cannot be read.
    """
    try:
        return msgspec.json.decode(folder.recorded_json.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise HarnessError(f"cannot read {folder.recorded_json}: {error}") from error

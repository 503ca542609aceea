"""Records all inputs of a node's broker, so that a run can be replayed step by step.

The broker is pure: its behaviour follows from its initial state, its inputs, its random numbers and
what it reads from disk. All of that is recorded, with a digest of the result of each `take`, and
nothing else of the node. `system.sim.recording` feeds a recording to the same code and compares.

Records are lists of a kind and its contents. The first is "start". Each input is a record with its
method's name and arguments; "draw" and "read" follow the input during which they occurred; "gave"
holds the digest of the result of an input, "raised" the error that it raised.
Source: SIMULATION.md, section Record and replay.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.node.broker_start import BrokerStart, Readers, UniformMs
from shaketable.system.raft.protocol import Batch
from shaketable.system.remoting.requests import SendRequest
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint
from shaketable.system.store.consume_queue_files import Queue
from shaketable.system.store.disk import StoreError

RECORDINGS_MAX = 1000
"""How many incarnations of a node are recorded: each start creates a new file."""
START_BYTES_MAX = 64 << 20
"""A node with a larger initial state (snapshot, checkpoint) is not recorded."""
BUFFER_BYTES_MAX = 256 << 10
FLUSH_AFTER_MS = 100.0
"""How much of its recording, not of its data, a killed process may lose."""
RECORDING_BYTES_MAX = 4 << 30
"""A recording ends at this size; the node continues."""

INPUTS = (
    "handle",
    "receive",
    "tick",
    "synced",
    "connection_closed",
    "resign",
    "disk_full",
    "disk_usage",
    "take",
    "take_checkpoint",
    "checkpointed",
)
"""The broker's methods that the shell calls; a test compares the list with the class."""

log = logging.getLogger("shaketable.node")


class CannotRecord(Exception):  # noqa: N818 - a finding about the node
    """The node cannot be recorded. The message is one line that says why."""


class Recorder:
    """The recording of one incarnation of a node. Not thread-safe, as the broker is not.

    Create it, build the broker with `readers` and `uniform_ms`, then call `attach`. When the file
    cannot be written, or it or a record reaches a size limit, the recording ends with a warning in
    the log, and the node continues.
    """

    def __init__(self, path: Path, start: BrokerStart) -> None:
        """Start a recording in a new file. Raises CannotRecord."""
        encoded = msgspec.msgpack.encode(["start", start])
        if len(encoded) > START_BYTES_MAX:
            raise CannotRecord(
                f"{len(encoded)} bytes to start from cannot be recorded, at most {START_BYTES_MAX}"
            )
        self.path, self._file = _new_file(path)
        self._encode = msgspec.msgpack.Encoder().encode
        self._buffer = bytearray(MAGIC)
        self._buffer += frame(encoded)
        self._written_bytes = 0
        self._flushed_ms = start.now_ms
        self._taken = 0
        self._flush()

    # ---- what the broker gets ---------------------------------------------------------

    def readers(self, readers: Readers) -> Readers:
        """Return readers that record what they read."""
        return Readers(
            _RecordedEntries(self, readers),
            _RecordedUnits(self, readers),
            _RecordedKeys(self, readers),
        )

    def uniform_ms(self, uniform_ms: UniformMs) -> UniformMs:
        """Return a random number function that records its results."""

        def draw(low: float, high: float) -> float:
            value = uniform_ms(low, high)
            self._write(["draw", value])
            return value

        return draw

    def attach(self, broker: Broker) -> None:
        """Record every input of this broker from now on."""
        for name in INPUTS:
            setattr(broker, name, self._recorded(name, getattr(broker, name)))

    def _recorded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        to_data = _ARGUMENTS.get(name, _unchanged)

        def recorded(*args: Any) -> Any:
            if name == "checkpointed":
                self._write([name, self._taken])
            else:
                self._write([name, *to_data(args)])
            try:
                result = method(*args)
            except BaseException as error:
                self._write(["raised", type(error).__name__, str(error)])
                self._flush()
                raise
            if name == "take":
                self._write(["gave", digest_of(result)])
                self._flush_in_time(args[0])
            elif name == "take_checkpoint":
                self._taken += 1
                self._write(["gave", digest_of_checkpoint(result)])
            return result

        return recorded

    def record_read(self, read: Callable[[], Any]) -> Any:
        """Call `read` and record its result or error. Raises StoreError."""
        try:
            value = read()
        except StoreError as error:
            self._write(["read", type(error).__name__, str(error)])
            raise
        self._write(["read", "", value])
        return value

    # ---- the file ---------------------------------------------------------------------

    def _write(self, record: list[Any]) -> None:
        if self._file is None:
            return
        payload = self._encode(record)
        if len(payload) > RECORD_BYTES_MAX:  # no reader would take it
            self._end(f"a record has {len(payload)} bytes, at most {RECORD_BYTES_MAX}")
            return
        self._buffer += frame(payload)
        if len(self._buffer) >= BUFFER_BYTES_MAX:
            self._flush()

    def _flush_in_time(self, now_ms: float) -> None:
        if now_ms - self._flushed_ms >= FLUSH_AFTER_MS:
            self._flushed_ms = now_ms
            self._flush()

    def _flush(self) -> None:
        if self._file is None or not self._buffer:
            return
        try:
            self._write_out(self._file)
        except OSError as error:
            self._end(str(error.strerror or error))
            return
        if self._written_bytes >= RECORDING_BYTES_MAX:
            self._end(f"it has {self._written_bytes} bytes")

    def _write_out(self, file: BinaryIO) -> None:
        """Write the buffer and empty it. Raises OSError.

        It is emptied on an error too: part of it may have been written, so writing it again would
        leave a torn record before others.
        """
        pending, self._buffer = memoryview(self._buffer), bytearray()
        while pending:  # the file is unbuffered, so a write may be short
            written = file.write(pending)
            if not written:  # do not try again for ever
                raise OSError(errno.EIO, "nothing was written")
            self._written_bytes += written
            pending = pending[written:]

    def _end(self, why: str) -> None:
        log.warning("event=recording_ended path=%s why=%s", self.path, why)
        self.close()

    def close(self) -> None:
        """Write what is pending and close the file; the recording is complete."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                with closing(file):
                    self._write_out(file)
            except OSError as error:
                log.warning("event=recording_torn path=%s error=%s", self.path, error)


def _new_file(path: Path) -> tuple[Path, BinaryIO | None]:
    """Create the file of the next incarnation: `path`, `path.1`, `path.2` and so on."""
    for number in range(RECORDINGS_MAX):
        candidate = path if number == 0 else path.with_name(f"{path.name}.{number}")
        try:
            return candidate, candidate.open("xb", buffering=0)
        except FileExistsError:
            continue
        except OSError as error:
            raise CannotRecord(
                f"cannot record into {candidate}: {error.strerror or error}"
            ) from None
    raise CannotRecord(f"there are {RECORDINGS_MAX} recordings at {path}: remove some")


# ---- encoding of inputs and results ------------------------------------------------------


def digest_of(effects: BrokerEffects) -> bytes:
    """Return a digest of the result of a `take`, including the types of writes and messages."""
    return _digest([_with_type_name(value) for value in msgspec.structs.astuple(effects)])


def _with_type_name(value: Any) -> Any:
    """Add its type's name to a write or a message: some types differ in nothing else."""
    if isinstance(value, list | tuple):
        return [_with_type_name(item) for item in value]
    has_type = isinstance(value, msgspec.Struct) or is_dataclass(value)
    return (type(value).__name__, value) if has_type else value


def digest_of_checkpoint(checkpoint: BrokerCheckpoint | None) -> bytes:
    """Return a digest of the result of a `take_checkpoint`."""
    if checkpoint is None:
        return _digest(None)
    units = [(*queue, *run) for queue, run in checkpoint.units.items()]
    return _digest((replace(checkpoint, units={}), units))


def _digest(data: Any) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(data), digest_size=8).digest()


def _unchanged(args: tuple[Any, ...]) -> Sequence[Any]:
    return args


def _encode_handle(args: tuple[Any, ...]) -> Sequence[Any]:
    connection, born_host, requests, now_ms, wall_ms = args
    kinds = [(isinstance(request, SendRequest), request) for request in requests]
    return connection, born_host, kinds, now_ms, wall_ms


def _encode_receive(args: tuple[Any, ...]) -> Sequence[Any]:
    message, now_ms = args
    return type(message).__name__, message, now_ms


_ARGUMENTS: dict[str, Callable[[tuple[Any, ...]], Sequence[Any]]] = {
    "handle": _encode_handle,
    "receive": _encode_receive,
}


class _RecordedEntries:
    """Records the entries and bytes read from the log."""

    def __init__(self, recorder: Recorder, readers: Readers) -> None:
        self._recorder = recorder
        self._reader = readers.entries

    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        value: Batch = self._recorder.record_read(
            lambda: self._reader.read_entries(first_index, bytes_max)
        )
        return value

    def read(self, position: int, size: int) -> bytes:
        value: bytes = self._recorder.record_read(lambda: self._reader.read(position, size))
        return value


class _RecordedUnits:
    """Records the units read from consume queues."""

    def __init__(self, recorder: Recorder, readers: Readers) -> None:
        self._recorder = recorder
        self._reader = readers.units

    def read_units(self, queue: Queue, offset: int, count: int) -> bytes:
        value: bytes = self._recorder.record_read(
            lambda: self._reader.read_units(queue, offset, count)
        )
        return value


class _RecordedKeys:
    """Records the positions read from the key index."""

    def __init__(self, recorder: Recorder, readers: Readers) -> None:
        self._recorder = recorder
        self._reader = readers.keys

    def candidates(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        value: list[int] = self._recorder.record_read(
            lambda: list(self._reader.candidates(topic, key, begin_ms, end_ms))
        )
        return iter(value)


# The file format of a recording: a magic number, then records, each with its length and CRC.
#
# Records are only appended, so a killed process leaves a readable recording with at most one torn
# record at its end.

_NAME = b"shaketable recording "
MAGIC = _NAME + b"2\n"
"""The number rises when inputs or fields are renamed: older files would seem to diverge."""
RECORD_BYTES_MAX = 256 << 20
_HEAD = struct.Struct(">II")


class BadRecording(Exception):  # noqa: N818 - a finding about the file
    """A file is not a recording. The message is one line that says why."""


Record = list[Any]
"""A kind and its contents (see `system.node.recorder`)."""


def frame(payload: bytes) -> bytes:
    """Return a record in the file format."""
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def read_records(path: Path) -> Iterator[Record]:
    """Yield a recording's records up to its end or a torn record. Raises BadRecording."""
    try:
        with path.open("rb") as file:
            if (magic := file.read(len(MAGIC))) != MAGIC:
                if magic.startswith(_NAME):
                    raise BadRecording(f"{path} was recorded by another version of shaketable")
                raise BadRecording(f"{path} is no recording of a node")
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                size, crc = _HEAD.unpack(head)
                payload = file.read(min(size, RECORD_BYTES_MAX))
                if len(payload) != size or zlib.crc32(payload) != crc:
                    return
                yield msgspec.msgpack.decode(payload)
    except OSError as error:
        raise BadRecording(f"{path} cannot be read: {error.strerror or error}") from None

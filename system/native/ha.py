"""A master's copies on its slaves: RocketMQ's HA wire, and what both sides do about it. Pure.

A slave says up to where it has the log, i64, again and again; the first time, that is from where it
wants it, 0 for the begin of the master's last file. The master sends {i64 position, i32 size,
bytes}, at most haTransferBatchSize of one file each; size 0 is a heartbeat. There is no term and
no handshake: a slave that is told of another position than its own drops the connection, and that
is all.
Source: RocketMQ 4.9's HAConnection and HAService.HAClient; DLEDGER.md D.2.
"""

from __future__ import annotations

import struct

from shaketable.system.native.core import NativeCore
from shaketable.system.store.message import DamagedMessage
from shaketable.system.store.native.batch import native_batch, verified_size
from shaketable.system.store.segment_files import OutsideLog

REPORT = struct.Struct(">q")
HEADER = struct.Struct(">qi")
BODY_BYTES_ACCEPTED_MAX = 4 << 20
"""As large as a slave's buffer is in RocketMQ: a master may be set to send more at once."""
HEARTBEAT_INTERVAL_MS = 5_000.0
SILENCE_MAX_MS = 20_000.0
"""RocketMQ's haSendHeartbeatInterval and haHousekeepingInterval."""


class HAError(Exception):
    """The other side cannot be gone on with: one line says why; the connection is to be closed."""


class SlaveConnection:
    """The master's side of one connection. `number` names it among the master's slaves."""

    def __init__(self, core: NativeCore, number: int, file_bytes: int, now_ms: float) -> None:
        self._core = core
        self._number = number
        self._file_bytes = file_bytes
        self._buffer = b""
        self._next: int | None = None  # what to send next, once it is known
        self._heard_ms = now_ms
        self._sent_ms = now_ms
        core.slave_connected(number)

    @property
    def position(self) -> int | None:
        """From where the next bytes are sent; None before the slave has said what it has."""
        return self._next

    @property
    def due_ms(self) -> float:
        """When `next_frame` has something to do although nothing has happened."""
        return min(self._sent_ms + HEARTBEAT_INTERVAL_MS, self.silent_ms)

    @property
    def silent_ms(self) -> float:
        """When the slave has said nothing for too long, if it says nothing until then."""
        return self._heard_ms + SILENCE_MAX_MS

    def check_silence(self, now_ms: float) -> None:
        """Raise HAError where the slave has said nothing for too long."""
        if now_ms >= self.silent_ms:
            raise HAError(f"the slave has said nothing for {SILENCE_MAX_MS:g} ms")

    def received(self, data: bytes, now_ms: float) -> None:
        """Take bytes of the slave's. Raises HAError."""
        self._heard_ms = now_ms
        self._buffer += data
        whole = len(self._buffer) // REPORT.size * REPORT.size
        if not whole:
            return
        if self._next is None:
            (first,) = REPORT.unpack_from(self._buffer)
            self._check(first, self._core.sent_position)
            self._next = self._begin(first)
        (position,) = REPORT.unpack_from(self._buffer, whole - REPORT.size)
        self._check(position, self._next)
        self._buffer = self._buffer[whole:]
        self._core.slave_reported(self._number, position)

    def next_frame(self, now_ms: float) -> bytes | None:
        """Return what is to be sent now, None where that is nothing. Raises HAError."""
        self.check_silence(now_ms)
        position = self._next
        if position is None:
            return None
        file_end = position - position % self._file_bytes + self._file_bytes
        end_position = min(self._core.written_position, file_end)
        try:
            bytes_max = self._core.config.transfer_bytes_max
            data = self._core.log.read_upto(position, end_position, bytes_max)
        except OutsideLog as error:
            raise HAError(f"the slave needs what has expired here: {error}") from None
        if not data and now_ms < self._sent_ms + HEARTBEAT_INTERVAL_MS:
            return None
        self._sent_ms = now_ms
        self._next = position + len(data)
        self._core.slave_sent(self._next)
        return HEADER.pack(position, len(data)) + data

    def closed(self) -> None:
        """The connection is gone."""
        self._core.slave_gone(self._number)

    def _check(self, position: int, sent_position: int) -> None:
        """Raise HAError for what no slave of this log can have: it would count as a copy."""
        if not 0 <= position <= sent_position:
            raise HAError(
                f"the slave has the log up to {position}, and this master, at"
                f" {self._core.written_position}, never sent that"
            )

    def _begin(self, position: int) -> int:
        """Return from where a slave is sent the log that asks for it from `position` on."""
        if position:
            return position
        end_position = self._core.written_position
        begin = end_position - end_position % self._file_bytes
        return max(begin, self._core.log.start.position)


class MasterConnection:
    """The slave's side of its connection to the master (HAClient).

    Messages are taken when they are whole and right; what has come of the next one waits here.
    """

    def __init__(self, core: NativeCore, file_bytes: int, now_ms: float) -> None:
        self._core = core
        self._file_bytes = file_bytes
        self._buffer = bytearray()
        self._part = bytearray()  # behind the log's end: a message that is not whole yet
        self._heard_ms = now_ms
        self._reported_ms = now_ms
        self._reported: int | None = None

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be written that no more should be received."""
        core = self._core
        unwritten = core.log.end_position - core.written_position
        return unwritten > core.config.unwritten_bytes_max

    @property
    def due_ms(self) -> float:
        """When `next_report` has something to do although nothing has happened."""
        return min(self._reported_ms + HEARTBEAT_INTERVAL_MS, self._heard_ms + SILENCE_MAX_MS)

    def next_report(self, now_ms: float) -> bytes | None:
        """Return what is to be said now, None where that is nothing. Raises HAError."""
        if now_ms >= self._heard_ms + SILENCE_MAX_MS:
            raise HAError(f"the master has sent nothing for {SILENCE_MAX_MS:g} ms")
        position = self._core.reported_position
        is_due = now_ms >= self._reported_ms + HEARTBEAT_INTERVAL_MS
        if position == self._reported and not is_due:
            return None
        self._reported, self._reported_ms = position, now_ms
        return REPORT.pack(position)

    def received(self, data: bytes, now_ms: float) -> None:
        """Take bytes of the master's. Raises HAError."""
        self._heard_ms = now_ms
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= HEADER.size:
            position, size = HEADER.unpack_from(buffer, at)
            if not 0 <= size <= BODY_BYTES_ACCEPTED_MAX:
                raise HAError(f"the master sends {size} bytes at once")
            if len(buffer) - at < HEADER.size + size:
                break
            at += HEADER.size
            self._take(position, bytes(buffer[at : at + size]), now_ms)
            at += size
        del buffer[:at]

    def _take(self, position: int, body: bytes, now_ms: float) -> None:
        log, part = self._core.log, self._part
        expected = log.end_position + len(part)
        if not expected and position:
            if position % self._file_bytes:
                raise HAError(
                    f"the master begins at {position}, where no file of {self._file_bytes} bytes"
                    " begins: mappedFileSizeCommitLog has to be the same on both"
                )
            self._core.begin_at(position)
            expected = position
        if position != expected:
            raise HAError(f"the master goes on at {position}, this slave's log ends at {expected}")
        part += body
        while part and (size := self._whole()):
            self._core.copy(native_batch(log.end_position, bytes(part[:size])), now_ms)
            del part[:size]

    def _whole(self) -> int:
        """Return how many bytes of whole messages of one file have come. Raises HAError."""
        begin = self._core.log.end_position
        file_end = begin - begin % self._file_bytes + self._file_bytes
        at = 0
        try:
            while begin + at < file_end:
                size = verified_size(self._part, at, begin + at, file_end - begin - at)
                if not size or at + size > len(self._part):
                    break
                at += size
        except DamagedMessage as error:
            raise HAError(f"the master sends what is no message of this log: {error}") from None
        return at

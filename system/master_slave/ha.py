"""Both sides of RocketMQ's HA protocol, which copies a master's log to its slaves. Pure.

A slave repeatedly reports, as i64, up to which position it has the log. Its first report is the
position to send from; 0 asks for the start of the master's last file. The master sends {i64
position, i32 size, bytes}, at most haTransferBatchSize bytes of one file each; size 0 is a
heartbeat. There are no terms and there is no handshake: a slave that receives another position
than its own end closes the connection, and the protocol has no other check for a diverged log.
Source: RocketMQ 4.9's HAConnection and HAService.HAClient; DLEDGER.md D.2.
"""

from __future__ import annotations

import struct

from shaketable.system.master_slave.core import MasterSlaveCore
from shaketable.system.store.message import DamagedMessage
from shaketable.system.store.plain_commit_log import plain_batch, verified_size
from shaketable.system.store.segment_files import OutsideLog

REPORT = struct.Struct(">q")
HEADER = struct.Struct(">qi")
BODY_BYTES_ACCEPTED_MAX = 4 << 20
"""The size of a slave's buffer in RocketMQ: a master can be configured to send more at once."""
HEARTBEAT_INTERVAL_MS = 5_000.0
SILENCE_MAX_MS = 20_000.0
"""RocketMQ's haSendHeartbeatInterval and haHousekeepingInterval."""


class HAError(Exception):
    """The connection must be closed. The message is one line that says why."""


class SlaveConnection:
    """The master's side of one connection. `number` identifies it among the master's slaves."""

    def __init__(self, core: MasterSlaveCore, number: int, file_bytes: int, now_ms: float) -> None:
        self._core = core
        self._number = number
        self._file_bytes = file_bytes
        self._buffer = b""
        self._next: int | None = None  # the position to send next; None until the first report
        self._heard_ms = now_ms
        self._sent_ms = now_ms
        core.slave_connected(number)

    @property
    def position(self) -> int | None:
        """The position of the next bytes to send, None before the slave's first report."""
        return self._next

    @property
    def due_ms(self) -> float:
        """When to call `next_frame` even if nothing happens until then."""
        return min(self._sent_ms + HEARTBEAT_INTERVAL_MS, self.silent_ms)

    @property
    def silent_ms(self) -> float:
        """When the slave counts as silent, unless it sends something before."""
        return self._heard_ms + SILENCE_MAX_MS

    def check_silence(self, now_ms: float) -> None:
        """Raise HAError if the slave has been silent for too long."""
        if now_ms >= self.silent_ms:
            raise HAError(f"the slave has sent nothing for {SILENCE_MAX_MS:g} ms")

    def received(self, data: bytes, now_ms: float) -> None:
        """Handle bytes from the slave. Raises HAError."""
        self._heard_ms = now_ms
        self._buffer += data
        whole = len(self._buffer) // REPORT.size * REPORT.size
        if not whole:
            return
        if self._next is None:
            (first,) = REPORT.unpack_from(self._buffer)
            self._check(first, self._core.sent_position)
            self._next = self._start_position(first)
        (position,) = REPORT.unpack_from(self._buffer, whole - REPORT.size)
        self._check(position, min(self._next, self._core.sent_position))
        self._buffer = self._buffer[whole:]
        self._core.slave_reported(self._number, position)

    def next_frame(self, now_ms: float) -> bytes | None:
        """Return the next frame to send, None if there is none now. Raises HAError."""
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
        self._core.sent_to_slave(self._next)
        return HEADER.pack(position, len(data)) + data

    def closed(self) -> None:
        """Note that the connection is closed."""
        self._core.slave_disconnected(self._number)

    def _check(self, position: int, sent_position: int) -> None:
        """Raise HAError for a position that no slave of this log can have.

        Such a slave has a different log, and its reports must not count as copies of this one.
        """
        if not 0 <= position <= sent_position:
            raise HAError(
                f"the slave has the log up to {position}, and this master, at"
                f" {self._core.written_position}, never sent that"
            )

    def _start_position(self, position: int) -> int:
        """Return where to start sending to a slave whose first report is `position`."""
        if position:
            return position
        end_position = self._core.written_position
        file_start = end_position - end_position % self._file_bytes
        return max(file_start, self._core.log.start.position)


class MasterConnection:
    """The slave's side of its connection to the master (RocketMQ's HAClient).

    Messages are appended once they are complete and verified; a partial one is buffered here.
    """

    def __init__(self, core: MasterSlaveCore, file_bytes: int, now_ms: float) -> None:
        self._core = core
        self._file_bytes = file_bytes
        self._buffer = bytearray()
        self._partial = bytearray()  # follows the end of the log: an incomplete message
        self._heard_ms = now_ms
        self._reported_ms = now_ms
        self._reported: int | None = None

    @property
    def should_pause(self) -> bool:
        """Whether so much waits to be written that receiving should pause."""
        core = self._core
        unwritten = core.log.end_position - core.written_position
        return unwritten > core.config.unwritten_bytes_max

    @property
    def due_ms(self) -> float:
        """When to call `next_report` even if nothing happens until then."""
        return min(self._reported_ms + HEARTBEAT_INTERVAL_MS, self._heard_ms + SILENCE_MAX_MS)

    def next_report(self, now_ms: float) -> bytes | None:
        """Return the next report to send, None if there is none now. Raises HAError."""
        if now_ms >= self._heard_ms + SILENCE_MAX_MS:
            raise HAError(f"the master has sent nothing for {SILENCE_MAX_MS:g} ms")
        position = self._core.reported_position
        is_due = now_ms >= self._reported_ms + HEARTBEAT_INTERVAL_MS
        if position == self._reported and not is_due:
            return None
        self._reported, self._reported_ms = position, now_ms
        return REPORT.pack(position)

    def received(self, data: bytes, now_ms: float) -> None:
        """Handle bytes from the master. Raises HAError."""
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
            self._receive_body(position, bytes(buffer[at : at + size]), now_ms)
            at += size
        del buffer[:at]

    def _receive_body(self, position: int, body: bytes, now_ms: float) -> None:
        log, partial = self._core.log, self._partial
        expected = log.end_position + len(partial)
        if not expected and position:
            # An empty slave starts its log at the master's last file, not at position 0.
            if position % self._file_bytes:
                raise HAError(
                    f"the master starts at {position}, where no file of {self._file_bytes} bytes"
                    " begins: mappedFileSizeCommitLog has to be the same on both"
                )
            self._core.start_log_at(position)
            expected = position
        if position != expected:
            raise HAError(f"the master goes on at {position}, this slave's log ends at {expected}")
        partial += body
        while partial and (size := self._complete_bytes()):
            self._core.copy(plain_batch(log.end_position, bytes(partial[:size])), now_ms)
            del partial[:size]

    def _complete_bytes(self) -> int:
        """Return the size of the complete messages of one file received so far. Raises HAError."""
        start = self._core.log.end_position
        file_end = start - start % self._file_bytes + self._file_bytes
        at = 0
        try:
            while start + at < file_end:
                size = verified_size(self._partial, at, start + at, file_end - start - at)
                if not size or at + size > len(self._partial):
                    break
                at += size
        except DamagedMessage as error:
            raise HAError(f"the master sends what is no message of this log: {error}") from None
        return at

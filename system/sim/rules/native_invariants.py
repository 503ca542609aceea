"""What must hold in every step of brokers without a group, checked as it happens.

Each broker has a `NativeShadow`: the bytes that it ordered to be written, and how far they are
written and durable. What RocketMQ's native modes may lose (DLEDGER.md D.2) breaks none of these:
what a master wrote and its slave has not copied may go with its disk, what is not flushed with its
power. But a slave has its master's bytes and no others, a kill takes nothing that was written, and
nothing is acknowledged before it stands where the mode promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shaketable.system.native.config import BrokerRole, NativeConfig
from shaketable.system.raft.protocol import Append, Compact, Install, Write
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import decode_command
from shaketable.system.remoting.frame import Frame
from shaketable.system.sim.rules.violation import Violated
from shaketable.system.store.native.commit_log import NativeCommitLog

POSITION_HEX_DIGITS = 16
"""A message id ends with the message's position in the log (RocketMQ's MessageDecoder)."""
_HEADER_AT = 8


class NativeShadow:
    """One broker, as the invariants know it; it outlives the broker's processes.

    Attributes:
        group: the broker name, which a master shares with its slaves.
        end: behind everything that it ordered to be written.
        written: up to where the operating system was said to have it.
        durable: up to where a flush ended.
        content: the bytes from `begin` to `end`.
        file_bytes: how large its files are.
        begins_from: of a slave that has nothing: its log begins there or later.
        agrees: of a slave that has more than its master came back with: up to where they are one.
    """

    def __init__(self, name: str, group: str, config: NativeConfig) -> None:
        self.name = name
        self.group = group
        self.config = config
        self.begin = self.end = self.written = self.durable = 0
        self.content = bytearray()
        self.file_bytes = 1 << 30
        self.begins_from = 0
        self.agrees: int | None = None
        self.lost_disk = False
        self.lost_power = False
        self.recovered = 0
        """Up to where the log was called durable when its process started: nobody flushed that."""

    def bytes_at(self, begin: int, end: int) -> bytes:
        """Return what stands there, as far as it is held."""
        return bytes(self.content[max(0, begin - self.begin) : max(0, end - self.begin)])

    def begin_at(self, position: int) -> None:
        """Hold nothing, from there on."""
        self.begin = self.end = self.written = self.durable = position
        self.content.clear()


class NativeInvariants:
    """All live invariants of a run's brokers without a group. Every method raises Violated."""

    def __init__(self) -> None:
        self.shadows: dict[str, NativeShadow] = {}
        self._masters: dict[str, NativeShadow] = {}
        self._copied: dict[str, int] = {}
        """By broker name: up to where some slave ever had its present master's log."""

    # ---- a broker's life ----------------------------------------------------------------

    def started(
        self, name: str, group: str, config: NativeConfig, log: NativeCommitLog
    ) -> NativeShadow:
        """A broker has recovered its log, as a master or as a slave."""
        shadow = self.shadows.get(name)
        if shadow is None or shadow.lost_disk:
            shadow = self.shadows[name] = NativeShadow(name, group, config)
            shadow.begin_at(log.start.position)
            for _, data in _pieces(log, log.start.position):
                shadow.content += data
        else:
            self._check_recovered(shadow, log)
        shadow.config, shadow.file_bytes = config, log.file_bytes
        del shadow.content[log.end.position - shadow.begin :]
        shadow.end = shadow.written = log.end.position
        shadow.durable = min(shadow.durable, shadow.end)
        shadow.recovered = log.synced.position
        shadow.lost_power = False
        shadow.begins_from = 0 if log.end.position else self._last_file(group)
        if config.is_master:
            if self._masters.get(group) is not shadow:
                self._masters[group], self._copied[group] = shadow, 0
            self._part_slaves(shadow)
        return shadow

    def _part_slaves(self, master: NativeShadow) -> None:
        """A master is back, with less than it had perhaps: what slaves have more is no copy."""
        self._copied[master.group] = min(self._copied[master.group], master.end)
        for slave in self.shadows.values():
            if slave.group != master.group or slave is master:
                continue
            slave.begins_from = min(slave.begins_from, master.end)
            if slave.end > master.end:
                slave.agrees = min(master.end, slave.end if slave.agrees is None else slave.agrees)

    def lost_disk(self, name: str) -> None:
        """All that a broker had is gone."""
        if name in self.shadows:
            self.shadows[name].lost_disk = True

    def ended(self, shadow: NativeShadow, *, loses_unsynced: bool) -> None:
        """Its process is gone, and with its power what was not flushed."""
        shadow.lost_power = shadow.lost_power or loses_unsynced

    def _check_recovered(self, shadow: NativeShadow, log: NativeCommitLog) -> None:
        end = log.end.position
        kept, how = (shadow.written, "written")
        if shadow.lost_power:
            kept, how = (shadow.durable, "flushed")
        if end < kept:
            raise Violated("log-survives", f"the log ends at {end}, it was {how} up to {kept}")
        if end > shadow.end:
            raise Violated(
                "log-survives", f"the log ends at {end}, it was written up to {shadow.end}"
            )
        for at, data in _pieces(log, max(shadow.begin, log.start.position)):
            if data != shadow.bytes_at(at, at + len(data)):
                raise Violated("log-survives", f"other bytes were recovered at {at}")

    # ---- the log ------------------------------------------------------------------------

    def ordered(self, shadow: NativeShadow, writes: Sequence[Write]) -> None:
        """A broker gave writes to its disk."""
        for write in writes:
            if isinstance(write, Append):
                batch = write.batch
                if batch.position != shadow.end:
                    raise Violated(
                        "log-contiguous", f"bytes {batch.position} come behind {shadow.end}"
                    )
                if not shadow.config.is_master:
                    self._check_copy(shadow, batch.position, bytes(batch.data))
                self._check_begins(shadow, batch.position)
                shadow.content += batch.data
                shadow.end = batch.end_position
            elif isinstance(write, Install):
                self._check_begins(shadow, write.snapshot.end.position)
                shadow.begin_at(write.snapshot.end.position)
            elif isinstance(write, Compact):
                begin = write.snapshot.end.position
                del shadow.content[: begin - shadow.begin]
                shadow.begin = begin

    def _last_file(self, group: str) -> int:
        """Return where the last file begins that the group's master has written."""
        master = self._masters.get(group)
        return master.written - master.written % master.file_bytes if master is not None else 0

    def _check_begins(self, shadow: NativeShadow, position: int) -> None:
        """A slave that has nothing begins with its master's last file, and copies no older ones."""
        begins_from, shadow.begins_from = shadow.begins_from, 0
        if position < begins_from:
            raise Violated(
                "slave-begins-late",
                f"its log begins at {position}, its master's last file began at {begins_from}",
            )

    def _check_copy(self, shadow: NativeShadow, position: int, data: bytes) -> None:
        master = self._masters.get(shadow.group)
        if master is None:
            raise Violated("slave-copies-master", f"{len(data)} bytes came, and there is no master")
        end = position + len(data)
        if end > master.written:
            raise Violated(
                "slave-behind-master",
                f"it copies up to {end}, {master.name} has written up to {master.written}",
            )
        if position >= master.begin and master.bytes_at(position, end) != data:
            raise Violated(
                "slave-copies-master", f"bytes at {position} are not what {master.name} has there"
            )

    def synced(self, shadow: NativeShadow, writes: Sequence[Write]) -> None:
        """Writes were carried out: the operating system has them."""
        for write in writes:
            if isinstance(write, Append):
                shadow.written = write.batch.end_position

    def flushed(self, shadow: NativeShadow, position: int) -> None:
        """The log calls everything in front of `position` durable."""
        if position > shadow.recovered:
            shadow.durable = max(shadow.durable, position)
        if not shadow.config.is_master:
            has = position if shadow.config.is_sync_flush else shadow.written
            if shadow.agrees is not None:
                if shadow.end <= shadow.agrees:
                    shadow.agrees = None  # it has given up what its master lacks
                else:
                    has = min(has, shadow.agrees)
            self._copied[shadow.group] = max(self._copied.get(shadow.group, 0), has)

    # ---- what clients are told --------------------------------------------------------------

    def replied(self, shadow: NativeShadow, reply: bytes) -> None:
        """A client is answered: what is acknowledged stands where the mode says."""
        header_end = _HEADER_AT + int.from_bytes(reply[5:_HEADER_AT], "big")
        view = memoryview(reply)
        answer = decode_command(Frame(reply[4], view[_HEADER_AT:header_end], view[header_end:]))
        if answer.code != ResponseCode.SUCCESS or "msgId" not in answer.ext:
            return
        for message_id in answer.ext["msgId"].split(","):
            self._check_kept(shadow, int(message_id[-POSITION_HEX_DIGITS:], 16))

    def _check_kept(self, shadow: NativeShadow, position: int) -> None:
        config = shadow.config
        has = max(shadow.durable, shadow.recovered) if config.is_sync_flush else shadow.written
        if position >= has:
            raise Violated(
                "acknowledged-is-flushed",
                f"the message at {position} is acknowledged, the disk has {has} bytes",
            )
        copied = self._copied.get(shadow.group, 0)
        if config.role is BrokerRole.SYNC_MASTER and position >= copied:
            raise Violated(
                "acknowledged-is-copied",
                f"the message at {position} is acknowledged, slaves have {copied} bytes",
            )


def _pieces(log: NativeCommitLog, position: int) -> Iterator[tuple[int, bytes]]:
    """Yield what a log holds from a position to its end, and where each piece begins."""
    while position < log.end.position:
        found = log.read_entries(position, 1 << 20)
        yield position, bytes(found.data)
        position = found.end_position

"""Invariants of every step of brokers without a group, checked as it happens.

Each broker has a `MasterSlaveShadow`: the bytes handed to its disk, and how far they are written
and durable. What RocketMQ's master-slave modes may lose (DLEDGER.md D.2) violates none of these: a
master's disk may take what its slave has not copied, and a power loss what is not flushed. But a
slave has its master's bytes and no others, a kill loses nothing that was written, and nothing is
acknowledged before it is stored where the mode promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shaketable.system.invariants.durability import acknowledged_positions
from shaketable.system.invariants.violated import Violated
from shaketable.system.master_slave.core import BrokerRole, MasterSlaveConfig
from shaketable.system.raft.protocol import Append, Compact, Install, Write
from shaketable.system.store.plain_commit_log import PlainCommitLog

_SIZE_BYTES = 4
"""A stored message starts with its size."""


class MasterSlaveShadow:
    """One broker's state for the invariants; it outlives the broker's processes.

    Attributes:
        group: the broker name, which a master shares with its slaves.
        end: the end of all writes handed to the disk.
        written: up to where the operating system has the bytes.
        durable: up to where they are flushed.
        content: the bytes from `start` to `end`.
        file_bytes: the size of its files.
        min_start: of a slave that has nothing: its log must start there or later.
        agrees_until: of a slave with more than its restarted master: where both logs still agree.
    """

    def __init__(self, name: str, group: str, config: MasterSlaveConfig) -> None:
        self.name = name
        self.group = group
        self.config = config
        self.start = self.end = self.written = self.durable = 0
        self.content = bytearray()
        self.file_bytes = 1 << 30
        self.min_start = 0
        self.agrees_until: int | None = None
        self.lost_disk = False
        self.lost_power = False
        self.has_begun = True
        """Whether the disk has carried out that the log begins at `start`."""
        self.recovered = 0
        """The durable end at the process's start: recovery reported it, no flush did."""

    def bytes_at(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, as far as they are held."""
        return bytes(self.content[max(0, start - self.start) : max(0, end - self.start)])

    def reset_to(self, position: int) -> None:
        """Reset to an empty log that starts at `position`."""
        self.start = self.end = self.written = self.durable = position
        self.content.clear()


class MasterSlaveInvariants:
    """All invariants of a run's brokers without a group. Every method raises Violated."""

    def __init__(self) -> None:
        self.shadows: dict[str, MasterSlaveShadow] = {}
        self._masters: dict[str, MasterSlaveShadow] = {}
        self._copied: dict[str, int] = {}
        """By broker name: up to where some slave ever had its current master's log."""

    # ---- start and recovery --------------------------------------------------------------

    def started(
        self, name: str, group: str, config: MasterSlaveConfig, log: PlainCommitLog
    ) -> MasterSlaveShadow:
        """A broker has recovered its log, as a master or as a slave."""
        shadow = self.shadows.get(name)
        if shadow is None or shadow.lost_disk:
            shadow = self.shadows[name] = MasterSlaveShadow(name, group, config)
            shadow.reset_to(log.start.position)
            for _, data in _pieces(log, log.start.position):
                shadow.content += data
        else:
            self._check_recovered(shadow, log)
        if log.end.position < shadow.start:  # where it was to begin, it has not come to
            shadow.reset_to(log.end.position)
        shadow.has_begun = True
        shadow.config, shadow.file_bytes = config, log.file_bytes
        del shadow.content[log.end.position - shadow.start :]
        shadow.end = shadow.written = log.end.position
        shadow.durable = min(shadow.durable, shadow.end)
        shadow.recovered = log.synced.position
        shadow.lost_power = False
        shadow.min_start = 0 if log.end.position else self._last_file(group)
        if config.is_master:
            if self._masters.get(group) is not shadow:
                self._masters[group], self._copied[group] = shadow, 0
            self._mark_diverged(shadow)
        return shadow

    def _mark_diverged(self, master: MasterSlaveShadow) -> None:
        """A master restarted, perhaps with less: what slaves have more is no copy of it."""
        self._copied[master.group] = min(self._copied[master.group], master.end)
        for slave in self.shadows.values():
            if slave.group != master.group or slave is master:
                continue
            slave.min_start = min(slave.min_start, master.end)
            if slave.end > master.end:
                slave.agrees_until = min(
                    master.end, slave.end if slave.agrees_until is None else slave.agrees_until
                )

    def lost_disk(self, name: str) -> None:
        """A broker lost its disk."""
        if name in self.shadows:
            self.shadows[name].lost_disk = True

    def ended(self, shadow: MasterSlaveShadow, *, loses_unsynced: bool) -> None:
        """A broker's process ended; with `loses_unsynced` unflushed bytes are lost."""
        shadow.lost_power = shadow.lost_power or loses_unsynced

    def _check_recovered(self, shadow: MasterSlaveShadow, log: PlainCommitLog) -> None:
        end = log.end.position
        kept, how = (shadow.written, "written")
        if shadow.lost_power:
            kept, how = (shadow.durable, "flushed")
        if not shadow.has_begun:
            kept = 0
        if end < kept:
            raise Violated("log-survives", f"the log ends at {end}, it was {how} up to {kept}")
        if end > shadow.end:
            raise Violated(
                "log-survives", f"the log ends at {end}, it was written up to {shadow.end}"
            )
        for at, data in _pieces(log, max(shadow.start, log.start.position)):
            if data != shadow.bytes_at(at, at + len(data)):
                raise Violated("log-survives", f"other bytes were recovered at {at}")

    # ---- the log ------------------------------------------------------------------------

    def ordered(self, shadow: MasterSlaveShadow, writes: Sequence[Write]) -> None:
        """A broker handed writes to its disk."""
        for write in writes:
            if isinstance(write, Append):
                batch = write.batch
                if batch.position != shadow.end:
                    raise Violated(
                        "log-contiguous", f"bytes {batch.position} come after {shadow.end}"
                    )
                if not shadow.config.is_master:
                    self._check_copy(shadow, batch.position, bytes(batch.data))
                self._check_start(shadow, batch.position)
                shadow.content += batch.data
                shadow.end = batch.end_position
            elif isinstance(write, Install):
                self._check_start(shadow, write.snapshot.end.position)
                shadow.reset_to(write.snapshot.end.position)
                shadow.has_begun = False
            elif isinstance(write, Compact):
                start = write.snapshot.end.position
                del shadow.content[: start - shadow.start]
                shadow.start = start

    def _last_file(self, group: str) -> int:
        """Return where the last file starts that the group's master has written."""
        master = self._masters.get(group)
        return master.written - master.written % master.file_bytes if master is not None else 0

    def _check_start(self, shadow: MasterSlaveShadow, position: int) -> None:
        """An empty slave starts with its master's last file, and copies no older ones."""
        min_start, shadow.min_start = shadow.min_start, 0
        if position < min_start:
            raise Violated(
                "slave-begins-late",
                f"its log starts at {position}, its master's last file began at {min_start}",
            )

    def _check_copy(self, shadow: MasterSlaveShadow, position: int, data: bytes) -> None:
        master = self._masters.get(shadow.group)
        if master is None:
            raise Violated("slave-copies-master", f"{len(data)} bytes came, and there is no master")
        end = position + len(data)
        if end > master.written:
            raise Violated(
                "slave-behind-master",
                f"it copies up to {end}, {master.name} has written up to {master.written}",
            )
        if position >= master.start and master.bytes_at(position, end) != data:
            raise Violated(
                "slave-copies-master", f"bytes at {position} are not what {master.name} has there"
            )

    def synced(self, shadow: MasterSlaveShadow, writes: Sequence[Write]) -> None:
        """Writes were carried out: the operating system has them."""
        for write in writes:
            if isinstance(write, Append):
                shadow.written = write.batch.end_position
            elif isinstance(write, Install):
                shadow.has_begun = True

    def flushed(self, shadow: MasterSlaveShadow, position: int) -> None:
        """The log reports all bytes before `position` durable."""
        if position > shadow.recovered:
            shadow.durable = max(shadow.durable, position)
        if not shadow.config.is_master:
            has = position if shadow.config.is_sync_flush else shadow.written
            if shadow.agrees_until is not None:
                if shadow.end <= shadow.agrees_until:
                    shadow.agrees_until = None  # it has truncated what its master lacks
                else:
                    has = min(has, shadow.agrees_until)
            self._copied[shadow.group] = max(self._copied.get(shadow.group, 0), has)

    def copied_elsewhere(self, group: str, position: int) -> None:
        """A slave that is no node of the run has its master's log up to `position`."""
        self._copied[group] = max(self._copied.get(group, 0), position)

    # ---- replies to clients -----------------------------------------------------------------

    def replied(self, shadow: MasterSlaveShadow, reply: bytes) -> None:
        """A client gets a reply: an acknowledged message is stored where the mode promises."""
        for position in acknowledged_positions(reply):
            self._check_kept(shadow, position)

    def _check_kept(self, shadow: MasterSlaveShadow, position: int) -> None:
        config = shadow.config
        size = int.from_bytes(shadow.bytes_at(position, position + _SIZE_BYTES), "big")
        end = position + max(1, size)
        has = max(shadow.durable, shadow.recovered) if config.is_sync_flush else shadow.written
        if end > has:
            raise Violated(
                "acknowledged-is-flushed",
                f"the message at {position} is acknowledged, the disk has {has} bytes",
            )
        copied = self._copied.get(shadow.group, 0)
        if config.role is BrokerRole.SYNC_MASTER and end > copied:
            raise Violated(
                "acknowledged-is-copied",
                f"the message at {position} is acknowledged, slaves have {copied} bytes",
            )


def _pieces(log: PlainCommitLog, position: int) -> Iterator[tuple[int, bytes]]:
    """Yield the log's bytes from a position to its end, and the position of each piece."""
    while position < log.end.position:
        found = log.read_entries(position, 1 << 20)
        yield position, bytes(found.data)
        position = found.end_position

"""Brokers without a group on a table: a master, its slaves, and the bytes between them.

Time stands still unless the test moves it; `settle` lets everything happen that can.
"""

from __future__ import annotations

from random import Random

from broker_group import FILE_BYTES, HOST, ROOT, STEPS_MAX, WALL_MS, decoded, frames_of

from shaketable.system.broker.broker_state import ranges_of
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.master_slave.core import BrokerRole, MasterSlaveConfig, PlainLogView
from shaketable.system.master_slave.mode import master_slave_mode
from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.node.master_slave.self_checks import (
    MasterSlaveSelfWatch,
    self_checked_master_slave,
)
from shaketable.system.raft.protocol import Write
from shaketable.system.remoting.command import Command, encode_command
from shaketable.system.remoting.requests import decode_request
from shaketable.system.sim.disk import SimDisk
from shaketable.system.store.broker_checkpoint import CheckpointFiles
from shaketable.system.store.log_writer import LogWriter
from shaketable.system.store.plain_commit_log import PlainCommitLog


class MasterSlaveBroker:
    """One broker on a simulated disk. Its writes and flushes can be held up.

    It checks itself, as in campaigns, if it is healthy or `checks_itself`.
    """

    def __init__(
        self,
        role: str = "ASYNC_MASTER",
        *,
        disk: SimDisk | None = None,
        is_sync_flush: bool = False,
        slave_read: bool = True,
        behind_bytes_max: int = 256 << 20,
        transfer_bytes_max: int = 32 << 10,
        topics_max: int = 10_000,
        mutant: Mutant = HEALTHY,
        checks_itself: bool = False,
    ) -> None:
        self.bug = mutant
        self.disk = disk or SimDisk()
        self.config = MasterSlaveConfig(
            BrokerRole(role),
            is_sync_flush=is_sync_flush,
            slave_behind_bytes_max=behind_bytes_max,
            transfer_bytes_max=transfer_bytes_max,
            tail_bytes_max=2000,
        )
        self.watch = MasterSlaveSelfWatch(role, self.config)
        if checks_itself or mutant is HEALTHY:
            mutant = self_checked_master_slave(mutant, self.watch)
        self.mutant = mutant
        self.limits = BrokerConfig(
            data_file_bytes=FILE_BYTES,
            store_host=HOST,
            slave_read_enable=slave_read,
            ack_timeout_ms=self.config.sync_flush_timeout_ms,
            key_items_max=1000,
            topics_max=topics_max,
        )
        self.now_ms, self.wall_ms = 0.0, WALL_MS
        self.writes_are_held = self.flushes_are_held = False
        self.replies: list[Command] = []
        self._writes: list[Write] = []
        self._write_seq = 0
        self.log = PlainCommitLog.open(self.disk, ROOT, f"{ROOT}/commitlog", FILE_BYTES)
        self.watch.started(self.log)
        self.writer = LogWriter(self.log, "page-cache")
        self.files = CheckpointFiles(self.disk, ROOT, ROOT, ranges_of, queue_file_bytes=200)
        checkpoint = self.files.load(self.log)
        view = PlainLogView(self.log, self.log.start, self.log.end, self.config.tail_bytes_max)
        self.core = mutant.master_slave.core("broker-a-0", view, self.config, now_ms=0.0)
        self.broker = mutant.broker(
            self.core,
            self.limits,
            checkpoint=checkpoint,
            reader=self.files.queues,
            key_reader=self.files.keys,
            mode=master_slave_mode(self.core, self.limits, mutant.master_slave.group_commit),
        )
        self.pump()

    def restarted(self, *, loses_unsynced: bool, seed: int = 0) -> MasterSlaveBroker:
        """Crash it, and start it again on its disk."""
        disk = self.disk.restart(loses_unsynced=loses_unsynced, rng=Random(seed))
        return MasterSlaveBroker(
            self.config.role.value,
            disk=disk,
            is_sync_flush=self.config.is_sync_flush,
            mutant=self.bug,
        )

    def pump(self) -> bool:
        """Carry out effects until there are none; True where there were some."""
        for step in range(STEPS_MAX):
            effects = self.broker.take(self.now_ms, self.wall_ms)
            self._writes += effects.writes
            self._write_seq = effects.write_seq
            for frames in effects.replies.values():
                self.replies += decoded(b"".join(frames))
            if not (self._write() or self._flush() or effects.replies or effects.has_more):
                return step > 0
        raise AssertionError("the broker never gets quiet")

    def _write(self) -> bool:
        if self.writes_are_held or not self._writes:
            return False
        writes, self._writes = self._writes, []
        self._writes = list(self.writer.carry_out(writes))
        if self._writes:
            self.broker.disk_full(True, self.now_ms)
            return False
        self.broker.synced(self._write_seq, self.now_ms)
        return True

    def _flush(self) -> bool:
        is_due = self.log.synced.index < self.log.end.index
        if self.flushes_are_held or not self.config.is_sync_flush or not is_due:
            return False
        self.log.sync()
        self.core.flushed(self.log.synced.index)
        return True

    def pass_time(self, ms: float) -> None:
        """Let time pass at once."""
        self.now_ms += ms
        self.wall_ms += int(ms)
        self.broker.tick(self.now_ms)
        self.pump()

    def ask(self, *commands: Command) -> list[Command]:
        """Let requests arrive in one piece; return what is answered by now."""
        data = b"".join(encode_command(command) for command in commands)
        requests = [decode_request(frame) for frame in frames_of(data)]
        self.broker.handle(1, HOST, requests, self.now_ms, self.wall_ms)
        self.pump()
        return self.take_replies()

    def take_replies(self) -> list[Command]:
        replies, self.replies = self.replies, []
        return replies

    def held(self) -> bytes:
        """All bytes of the log."""
        log, at, parts = self.core.log, self.core.log.start.index + 1, []
        while at <= log.end_index:
            for batch in log.batches_from(at, 1000):
                parts.append(batch.data)
                at = batch.last_index + 1
        return b"".join(parts)


class HALink:
    """A connection between a slave and its master; bytes may be delivered in any pieces."""

    def __init__(
        self, master: MasterSlaveBroker, slave: MasterSlaveBroker, rng: Random | None = None
    ):
        self.master, self.slave = master, slave
        to_slave, to_master = (
            master.mutant.master_slave.slave_connection,
            slave.mutant.master_slave.master_connection,
        )
        self.to_slave = to_slave(master.core, id(self), FILE_BYTES, master.now_ms)
        self.to_master = to_master(slave.core, FILE_BYTES, slave.now_ms)
        self._rng = rng

    def settle(self) -> None:
        """Deliver all that either has to say. Raises HAError."""
        for _ in range(STEPS_MAX):
            report = self.to_master.next_report(self.slave.now_ms)
            if report is not None:
                for part in self._parts(report):
                    self.to_slave.received(part, self.master.now_ms)
            frame = self.to_slave.next_frame(self.master.now_ms)
            if frame is not None:
                for part in self._parts(frame):
                    self.to_master.received(part, self.slave.now_ms)
            is_moving = [self.master.pump(), self.slave.pump()]
            if report is None and frame is None and not any(is_moving):
                return
        raise AssertionError("the two never get quiet")

    def _parts(self, data: bytes) -> list[bytes]:
        if self._rng is None:
            return [data]
        parts = []
        while data:
            size = self._rng.randint(1, len(data))
            parts.append(data[:size])
            data = data[size:]
        return parts

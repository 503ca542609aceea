"""Planted bugs in master-slave brokers: replication to slaves, the files of config/."""

from __future__ import annotations

from typing import ClassVar

from shaketable.system.broker.appender import PendingAppend
from shaketable.system.master_slave.config_files import DELAYS, OFFSETS
from shaketable.system.master_slave.core import MasterSlaveCore
from shaketable.system.master_slave.ha import MasterConnection, SlaveConnection
from shaketable.system.master_slave.mode import GroupCommit
from shaketable.system.mutants import MASTERS, Hunt, Mutant
from shaketable.system.node.master_slave.config_files import (
    TABLE_REQUESTS,
    ConfigFiles,
    SlaveSynchronize,
    TableRequests,
)
from shaketable.system.node.master_slave.parts import MasterSlaveParts
from shaketable.system.remoting.codes import ResponseCode


class AnyReportCounts(SlaveConnection):
    """Accepts any reported position."""

    def _check(self, position: int, sent_position: int) -> None:
        return


ANY_REPORT_COUNTS = Mutant(
    "any-report-counts",
    master_slave=MasterSlaveParts(slave_connection=AnyReportCounts),
    about="""
    A master believes every position that is reported to it, also one that it never sent.

    What is sent after that counts as copied while no slave has it.

    Source: https://github.com/apache/rocketmq/issues/3015 and
    https://github.com/apache/rocketmq/issues/1155 (push2SlaveMaxOffset becomes too large).
    """,
)


class DelaysNotSynchronized(SlaveSynchronize):
    """Synchronizes all but the delay offsets."""

    requests: ClassVar[TableRequests] = tuple(each for each in TABLE_REQUESTS if each[1] != DELAYS)


DELAYS_NOT_SYNCHRONIZED = Mutant(
    "delays-not-synchronized",
    master_slave=MasterSlaveParts(synchronize=DelaysNotSynchronized),
    hunt=Hunt("queue-delays", ("wipe",)),
    about="""
    A slave does not take over how far its master is with delayed messages.

    Made master, it delivers all of them once more.

    Source: https://github.com/apache/rocketmq/issues/2259 (the slave keeps the master's delayOffset
    in a file that is never read).
    """,
)


class FlushStandsForSlave(GroupCommit):
    """Waits for the disk only, not for the slave."""

    def _outcome_with_slave(self, append: PendingAppend) -> ResponseCode | None:
        return self._outcome_without_slave(append, ResponseCode.SUCCESS)


FLUSH_STANDS_FOR_SLAVE = Mutant(
    "flush-stands-for-slave",
    master_slave=MasterSlaveParts(group_commit=FlushStandsForSlave),
    targets=("sync-double-write",),
    hunt=Hunt("queue", ("wipe", "partition")),
    about="""
    A synchronous master answers SEND_OK as soon as its own disk has the message.

    The wait for the disk and the wait for the slave share one request, and the first ends it.

    Source: https://github.com/alibaba/rocketmq/issues/421 (SYNC_MASTER with SYNC_FLUSH does not
    wait for the slave).
    """,
)


_NOT_AT_SLAVE = (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)


class LateSlaveIsOk(GroupCommit):
    """Reports FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE as success."""

    def _reply(self, append: PendingAppend, code: ResponseCode) -> None:
        super()._reply(append, ResponseCode.SUCCESS if code in _NOT_AT_SLAVE else code)


LATE_SLAVE_IS_OK = Mutant(
    "late-slave-is-ok",
    master_slave=MasterSlaveParts(group_commit=LateSlaveIsOk),
    targets=("sync-double-write",),
    hunt=Hunt("queue", ("wipe", "partition")),
    about="""
    A synchronous master answers SEND_OK also where no slave has the message when the time is over.

    Source: https://github.com/apache/rocketmq/issues/4806 (SLAVE_NOT_AVAILABLE and
    FLUSH_SLAVE_TIMEOUT are considered to be written on the slave).
    """,
)


class LateWriteRefused(GroupCommit):
    """Refuses the sends that wait too long for being written."""

    def _answer_unknown(self, append: PendingAppend, why: str) -> None:
        del why
        self._reply(append, ResponseCode.SYSTEM_BUSY)


LATE_WRITE_REFUSED = Mutant(
    "late-write-refused",
    master_slave=MasterSlaveParts(group_commit=LateWriteRefused),
    targets=MASTERS,
    hunt=Hunt("queue", ("disk-stall", "disk-full")),
    about="""
    A send whose write takes too long is refused, and its message stays in the queue of writes.

    Its producer sends it again, and it is stored twice once the disk is well.

    Source: https://github.com/apache/rocketmq/pull/5845 (a comment: with "broker busy" a message
    is sometimes sent all the same).
    """,
)


_SIZE_BYTES = 4


class SlaveReadsOnAnywhere(MasterConnection):
    """Appends what it receives without comparing positions."""

    def _receive_body(self, position: int, body: bytes, now_ms: float) -> None:
        end = self._core.log.end_position + len(self._partial)
        super()._receive_body(end or position, body, now_ms)

    def _complete_bytes(self) -> int:
        begin = self._core.log.end_position
        room = begin - begin % self._file_bytes + self._file_bytes - begin
        at = 0
        while len(self._partial) - at > _SIZE_BYTES:
            size = int.from_bytes(self._partial[at : at + _SIZE_BYTES], "big")
            if not 0 < size <= min(room, len(self._partial)) - at:
                break
            at += size
        return at


SLAVE_READS_ON_ANYWHERE = Mutant(
    "slave-reads-on-anywhere",
    master_slave=MasterSlaveParts(master_connection=SlaveReadsOnAnywhere),
    hunt=Hunt("queue", ("reset", "disk-stall")),
    about="""
    A slave takes what its master sends as what follows its own log, wherever that ends.

    It compares no positions, neither the frame's nor the message's own. A slave whose flush is
    behind what it wrote asks from there on when its connection is lost, and has messages twice;
    behind a master that lost its end it serves messages from the wrong place.

    Source: https://github.com/apache/rocketmq/issues/323 (HAClient: "master pushed offset not equal
    the max phy offset in slave", which is where RocketMQ breaks the connection).
    """,
)


class ReportsWhatItReceived(MasterSlaveCore):
    """A slave that reports positions before it has written them."""

    @property
    def reported_position(self) -> int:
        """The end of the log in memory."""
        return self._log.end_position


SLAVE_REPORTS_WHAT_IT_RECEIVED = Mutant(
    "slave-reports-what-it-received",
    master_slave=MasterSlaveParts(core=ReportsWhatItReceived),
    about="""
    A slave reports what it has received, not what it has written.

    The master counts a copy that is in the memory of the slave's process; both may end.

    Source: https://github.com/alibaba/rocketmq/issues/359 (is a message of which the slave's disk
    has nothing called stored?); HAClient.reportSlaveMaxOffset.
    """,
)


# The files of config/.


class ConfigFileInPlace(ConfigFiles):
    """Overwrites the file in place, without a backup and without fsync."""

    def _replace(self, name: str, data: bytes) -> None:
        path = self._path(name)
        if self._disk.exists(path):
            self._disk.unlink(path)
        file = self._disk.create(path, len(data))
        file.pwrite([data], 0)
        file.close()


CONFIG_FILE_IN_PLACE = Mutant(
    "config-file-in-place",
    master_slave=MasterSlaveParts(config_files=ConfigFileInPlace),
    targets=MASTERS,
    hunt=Hunt("queue", ("power",)),
    about="""
    The files of topics and offsets are written in place, and not synced.

    A loss of power leaves half a file, and the broker does not start, or starts without offsets.

    Source: https://github.com/apache/rocketmq/issues/3401 (delayOffset.json and consumerOffset.json
    are corrupted when the machine crashes).
    """,
)


class OffsetsNotLoaded(ConfigFiles):
    """Skips the file of offsets."""

    def _load(self, name: str) -> None:
        if name != OFFSETS:
            super()._load(name)


OFFSETS_NOT_LOADED = Mutant(
    "offsets-not-loaded",
    master_slave=MasterSlaveParts(config_files=OffsetsNotLoaded),
    targets=MASTERS,
    hunt=Hunt("queue", ("kill", "rolling-restart")),
    about="""
    A broker that starts reads its topics, and not the offsets that groups had committed.

    All groups go on where they began; everything is consumed once more.

    Source: https://github.com/alibaba/rocketmq/issues/28 (after a restart of the master all
    messages that were consumed are consumed again).
    """,
)


PLUGINS = (
    ANY_REPORT_COUNTS,
    DELAYS_NOT_SYNCHRONIZED,
    FLUSH_STANDS_FOR_SLAVE,
    LATE_SLAVE_IS_OK,
    LATE_WRITE_REFUSED,
    SLAVE_READS_ON_ANYWHERE,
    SLAVE_REPORTS_WHAT_IT_RECEIVED,
    CONFIG_FILE_IN_PLACE,
    OFFSETS_NOT_LOADED,
)

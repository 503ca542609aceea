"""Completes sends as RocketMQ 4.9 does: once disk and slave have the message, or time out.

The response codes for a timeout or no slave (10, 11, 12) still mean that the master stored the
message, and carry its offset.
Source: RocketMQ 4.9's CommitLog (submitFlushRequest, submitReplicaRequest), GroupCommitService and
HAService.GroupTransferService; DLEDGER.md A.2 and D.2.
"""

from __future__ import annotations

from collections import deque

from shaketable.system.broker.appender import PendingAppend, PendingAppends
from shaketable.system.broker.effects import Outbox
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.master_slave.core import BrokerRole, MasterSlaveCore
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import with_code


class GroupCommit(PendingAppends):
    """The sends of one master that wait for their response.

    `waiting` holds sends that are not written yet, in log order. Written sends wait for the disk,
    and for a slave if one was available. Those that wait for no slave have a queue of their own:
    they must not queue behind sends that a slow slave holds up.
    """

    def __init__(self, core: MasterSlaveCore, outbox: Outbox, config: BrokerConfig) -> None:
        super().__init__(core, outbox)
        self._master = core
        self._put = outbox.put
        self._ack_timeout_ms = config.ack_timeout_ms
        self._limit = config.pending_sends_max
        self._without_slave: deque[tuple[PendingAppend, ResponseCode]] = deque()
        self._with_slave: deque[PendingAppend] = deque()
        self._now_ms = 0.0

    def acknowledge(self, index: int) -> None:
        """Let sends written up to `index` wait for disk and slave; answer those that need not."""
        core, waiting = self._master, self.waiting
        is_sync_master = core.config.role is BrokerRole.SYNC_MASTER
        while waiting and waiting[0].last_index <= index:
            if len(self._without_slave) + len(self._with_slave) >= self._limit:
                break
            append = waiting.popleft()
            if not append.wait_store_ok:
                self._reply(append, ResponseCode.SUCCESS)
            elif not is_sync_master:
                self._without_slave.append((append, ResponseCode.SUCCESS))
            elif core.is_slave_ok(append.last_index + 1):
                self._with_slave.append(append)
            else:
                self._without_slave.append((append, ResponseCode.SLAVE_NOT_AVAILABLE))
        self._answer()

    def expire(self, now_ms: float) -> None:
        """Answer the sends whose write, flush or replication timed out."""
        self._now_ms = now_ms
        while self.waiting and self.waiting[0].due_ms <= now_ms:
            why = "[502] the message was not written in time"
            self._answer_unknown(self.waiting.popleft(), why)
        self._answer()

    def _answer(self) -> None:
        without_slave, with_slave = self._without_slave, self._with_slave
        while (
            without_slave and (code := self._outcome_without_slave(*without_slave[0])) is not None
        ):
            self._reply(without_slave.popleft()[0], code)
        while with_slave and (code := self._outcome_with_slave(with_slave[0])) is not None:
            self._reply(with_slave.popleft(), code)

    def _outcome_without_slave(
        self, append: PendingAppend, code: ResponseCode
    ) -> ResponseCode | None:
        """Return the response code of an append that waits for no slave, None while it waits."""
        if self._is_flushed(append):
            return code
        if not self._timed_out(append, self._master.config.sync_flush_timeout_ms):
            return None
        # SUCCESS is 0; SLAVE_NOT_AVAILABLE takes precedence over the flush timeout.
        return code or ResponseCode.FLUSH_DISK_TIMEOUT

    def _outcome_with_slave(self, append: PendingAppend) -> ResponseCode | None:
        """Return the response code of an append that waits for a slave, None while it waits.

        A replication timeout overrides a flush timeout, as in RocketMQ.
        """
        config = self._master.config
        is_flushed = self._is_flushed(append)
        is_copied = append.last_index < self._master.slaves_position
        if not (is_flushed or self._timed_out(append, config.sync_flush_timeout_ms)):
            return None
        if not (is_copied or self._timed_out(append, config.slave_timeout_ms)):
            return None
        if not is_copied:
            return ResponseCode.FLUSH_SLAVE_TIMEOUT
        return ResponseCode.SUCCESS if is_flushed else ResponseCode.FLUSH_DISK_TIMEOUT

    def _is_flushed(self, append: PendingAppend) -> bool:
        core = self._master
        return not core.config.is_sync_flush or append.last_index <= core.flushed_index

    def _timed_out(self, append: PendingAppend, timeout_ms: float) -> bool:
        # `due_ms` is when the send arrived plus `_ack_timeout_ms`.
        return self._now_ms >= append.due_ms - self._ack_timeout_ms + timeout_ms

    def _reply(self, append: PendingAppend, code: ResponseCode) -> None:
        reply = append.reply if code == ResponseCode.SUCCESS else with_code(append.reply, code)
        self._put(append.connection, reply)

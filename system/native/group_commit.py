"""Answers sends as RocketMQ 4.9 does: when the disk and a slave have them, or are too late.

A late answer (10, 11, 12) says that the message is stored at the master all the same, and where.
Source: RocketMQ 4.9's CommitLog (submitFlushRequest, submitReplicaRequest), GroupCommitService and
HAService.GroupTransferService; DLEDGER.md A.2 and D.2.
"""

from __future__ import annotations

from collections import deque

from shaketable.system.broker.appender import PendingAppend, PendingAppends
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.outbox import Outbox
from shaketable.system.native.config import BrokerRole
from shaketable.system.native.core import NativeCore
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.responses import with_code


class GroupCommit(PendingAppends):
    """The sends of one master that are not answered yet.

    `waiting` holds those that are not written yet, in the log's order. Of the others those stand
    by themselves that wait for no slave, since none was there: they need not wait behind the rest.
    """

    def __init__(self, core: NativeCore, outbox: Outbox, config: BrokerConfig) -> None:
        super().__init__(core, outbox)
        self._native = core
        self._put = outbox.put
        self._ack_timeout_ms = config.ack_timeout_ms
        self._limit = config.pending_sends_max
        self._alone: deque[tuple[PendingAppend, ResponseCode]] = deque()
        self._replicated: deque[PendingAppend] = deque()
        self._now_ms = 0.0

    def acknowledge(self, index: int) -> None:
        """Answer what is written up to `index`, as far as disk and slave have it too."""
        core, waiting = self._native, self.waiting
        is_sync_master = core.config.role is BrokerRole.SYNC_MASTER
        while waiting and waiting[0].last_index <= index:
            if len(self._alone) + len(self._replicated) >= self._limit:
                break
            append = waiting.popleft()
            if not append.wait_store_ok:
                self._reply(append, ResponseCode.SUCCESS)
            elif not is_sync_master:
                self._alone.append((append, ResponseCode.SUCCESS))
            elif core.is_slave_ok(append.last_index + 1):
                self._replicated.append(append)
            else:
                self._alone.append((append, ResponseCode.SLAVE_NOT_AVAILABLE))
        self._answer()

    def expire(self, now_ms: float) -> None:
        """Let time pass: what disk or slave do not have in time is answered as late."""
        self._now_ms = now_ms
        while self.waiting and self.waiting[0].due_ms <= now_ms:
            why = "[502] the message was not written in time"
            self._answer_unknown(self.waiting.popleft(), why)
        self._answer()

    def _answer(self) -> None:
        alone, replicated = self._alone, self._replicated
        while alone and (code := self._outcome_alone(*alone[0])) is not None:
            self._reply(alone.popleft()[0], code)
        while replicated and (code := self._outcome(replicated[0])) is not None:
            self._reply(replicated.popleft(), code)

    def _outcome_alone(self, append: PendingAppend, code: ResponseCode) -> ResponseCode | None:
        """Say what became of an append that no slave is waited for; None: not known yet."""
        if self._is_flushed(append):
            return code
        if not self._is_over(append, self._native.config.sync_flush_timeout_ms):
            return None
        return code or ResponseCode.FLUSH_DISK_TIMEOUT

    def _outcome(self, append: PendingAppend) -> ResponseCode | None:
        """Say what became of an append; None: not known yet. The slave's word comes last."""
        config = self._native.config
        is_flushed = self._is_flushed(append)
        is_copied = append.last_index < self._native.slaves_position
        if not (is_flushed or self._is_over(append, config.sync_flush_timeout_ms)):
            return None
        if not (is_copied or self._is_over(append, config.slave_timeout_ms)):
            return None
        if not is_copied:
            return ResponseCode.FLUSH_SLAVE_TIMEOUT
        return ResponseCode.SUCCESS if is_flushed else ResponseCode.FLUSH_DISK_TIMEOUT

    def _is_flushed(self, append: PendingAppend) -> bool:
        core = self._native
        return not core.config.is_sync_flush or append.last_index <= core.flushed_index

    def _is_over(self, append: PendingAppend, timeout_ms: float) -> bool:
        return self._now_ms >= append.due_ms - self._ack_timeout_ms + timeout_ms

    def _reply(self, append: PendingAppend, code: ResponseCode) -> None:
        reply = append.reply if code == ResponseCode.SUCCESS else with_code(append.reply, code)
        self._put(append.connection, reply)

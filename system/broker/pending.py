"""Appends that wait until the group has acknowledged them.

Source: DLedgerEntryPusher's pendingAppendResponsesByTerm and QuorumAckChecker.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from shaketable.system.broker.appender import Refusal
from shaketable.system.broker.core import Core
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.outbox import Outbox
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.responses import response


class PendingAppend(NamedTuple):
    """An append and its last entry's index; `reply` says that the group has it.

    `is_waited`: its sender wants to know what became of disk and slave (setWaitStoreMsgOK).
    """

    last_index: int
    due_ms: float
    connection: Connection
    opaque: int
    serialize_type: int
    reply: bytes
    is_waited: bool = True


class PendingAppends:
    """The appends of one term, in the order of the log. Whoever adds keeps to the limit."""

    def __init__(self, core: Core, outbox: Outbox) -> None:
        self.waiting: deque[PendingAppend] = deque()
        self._core = core
        self._outbox = outbox
        self._term = core.term

    def acknowledge(self, index: int) -> None:
        """Answer the appends that the group acknowledged."""
        waiting, put = self.waiting, self._outbox.put
        while waiting and waiting[0].last_index <= index:
            append = waiting.popleft()
            put(append.connection, append.reply)

    def expire(self, now_ms: float) -> None:
        """Answer "unknown" to appends that nobody acknowledged in time."""
        while self.waiting and self.waiting[0].due_ms <= now_ms:
            self._answer_unknown(self.waiting.popleft(), "[502] no quorum acknowledged in time")

    def take_back(self, refusal: Refusal) -> None:
        """Refuse those whose entries the core did not take: they would stand behind its log."""
        code, remark = refusal
        end_index, waiting = self._core.log.end_index, self.waiting
        refused = []
        while waiting and waiting[-1].last_index > end_index:
            refused.append(waiting.pop())
        ext = {"leaderId": self._core.leader or ""}
        for append in reversed(refused):
            reply = response(append.opaque, code, remark, ext, serialize_type=append.serialize_type)
            self._outbox.put(append.connection, reply)

    def end_term(self) -> None:
        """The term in which they were appended is over for this member.

        What is committed as it was appended then is acknowledged; the rest is unknown.
        """
        log, committed = self._core.log, self._core.ledger.commit_index
        for append in self.waiting:
            stands = log.begin.index <= append.last_index <= committed
            if stands and log.term_at(append.last_index) == self._term:
                self._outbox.put(append.connection, append.reply)
            else:
                self._answer_unknown(append, "[501] the term changed before a quorum acknowledged")
        self.waiting.clear()

    def start_term(self) -> None:
        """What is added from now on is of the core's term."""
        self.end_term()
        self._term = self._core.term

    def _answer_unknown(self, append: PendingAppend, why: str) -> None:
        reply = response(
            append.opaque,
            ResponseCode.SYSTEM_ERROR,
            why,
            serialize_type=append.serialize_type,
        )
        self._outbox.put(append.connection, reply)

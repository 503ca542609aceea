"""The parts that make a broker a master-slave broker: its log format, dispatch and table events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from shaketable.system.broker.appender import PendingAppend, PendingAppends
from shaketable.system.broker.broker_state import encode_state
from shaketable.system.broker.core import Core, LogFormat
from shaketable.system.broker.effects import AnyRequest, Connection, Outbox
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.mode import Mode
from shaketable.system.broker.reading.queries import QUERY_CODES
from shaketable.system.broker.reput import Reput
from shaketable.system.master_slave.core import BrokerRole, MasterSlaveCore
from shaketable.system.raft.protocol import Snapshot
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import response, with_code
from shaketable.system.store.plain_commit_log import PlainBuilder, iter_plain_dispatches

# Completes sends as RocketMQ 4.9 does: once disk and slave have the message, or time out.
#
# The response codes for a timeout or no slave (10, 11, 12) still mean that the master stored the
# message, and carry its offset. Source: RocketMQ 4.9's CommitLog (submitFlushRequest,
# submitReplicaRequest), GroupCommitService and HAService.GroupTransferService; DLEDGER.md A.2 and
# D.2.


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


# Topic and offset changes of a master-slave broker: applied at once, without replication.
#
# The configuration files (`system.master_slave.config_files`) are written periodically, so after a
# crash an offset may go back: a known weakness of RocketMQ.
# Source: RocketMQ's TopicConfigManager and ConsumerOffsetManager; DLEDGER.md E24.


# What a broker is built of.


class TableEvents(EventLog):
    """Applies topic changes on a master. Slaves refuse them and copy their master's tables."""

    is_replicated: ClassVar[bool] = False

    @property
    def end_index(self) -> int:
        """Return -1: no change is ever pending."""
        return -1

    def version(self, queue_id: int) -> int:
        """Return how many changes of this kind there were."""
        return self._reput.tables.versions[queue_id]

    def write(self, queue_id: int, properties: bytes, body: bytes, wall_ms: int) -> None:
        """Apply the event to its table."""
        del properties, wall_ms
        tables = self._reput.tables
        tables.apply(queue_id, body)
        tables.versions[queue_id] += 1

    def answer_when_acknowledged(
        self,
        connection: Connection,
        request: AnyRequest,
        now_ms: float,
        ext: dict[str, str] | None = None,
    ) -> None:
        """Answer SUCCESS: the change is already in effect."""
        del now_ms
        if not request.is_oneway:
            serialize_type = request.serialize_type
            reply = response(
                request.opaque, ResponseCode.SUCCESS, ext=ext, serialize_type=serialize_type
            )
            self._outbox.put(connection, reply)

    def on_discard(self, callback: Callable[[int], None]) -> None:
        """Do nothing: a change is never rolled back."""


class OffsetEvents(TableEvents):
    """Applies offset commits on a master, and on a slave until it next copies its master's tables.

    Source: RocketMQ's ConsumerManageProcessor, which does not check the role.
    """

    @property
    def is_ready(self) -> bool:
        """Return True: offsets are accepted in every role."""
        return True

    def refuse_not_ready(self, connection: Connection, request: AnyRequest) -> bool:
        """Refuse nothing."""
        del connection, request
        return False


PLAIN_FORMAT = LogFormat(PlainBuilder, iter_plain_dispatches, may_skip=True)


class MasterSlaveReput(Reput):
    """Dispatches the messages of the log, which holds no topic or offset events."""

    may_lose_entries: ClassVar[bool] = True

    def install(self, snapshot: Snapshot) -> None:
        """Restart at the log's new first position, keeping the current topics and offsets."""
        super().install(replace(snapshot, state=encode_state(self.tables.state({}))))


def master_slave_mode(
    core: MasterSlaveCore, config: BrokerConfig, group_commit: type[GroupCommit] = GroupCommit
) -> Mode:
    """Return the parts of a master-slave broker around its core."""

    def pending(_: Core, outbox: Outbox) -> GroupCommit:
        return group_commit(core, outbox, config)

    return Mode(
        PLAIN_FORMAT,
        MasterSlaveReput,
        pending,
        TableEvents,
        OffsetEvents,
        status=core.status,
        not_leader="a slave takes nothing from clients, its master does",
        any_member_codes=QUERY_CODES,
    )

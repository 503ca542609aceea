"""The parts that make a broker a master-slave broker: its log format, dispatch and table events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from shaketable.system.broker.broker_state import encode_state
from shaketable.system.broker.core import Core, LogFormat
from shaketable.system.broker.effects import AnyRequest, Connection, Outbox
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.mode import Mode
from shaketable.system.broker.reading.queries import QUERY_CODES
from shaketable.system.broker.reput import Reput
from shaketable.system.master_slave.core import MasterSlaveCore
from shaketable.system.master_slave.group_commit import GroupCommit
from shaketable.system.raft.protocol import Snapshot
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import response
from shaketable.system.store.plain.batch import PlainBuilder, iter_plain_dispatches

# Topic and offset changes of a master-slave broker: applied at once, without replication.
#
# The configuration files (`system.master_slave.config_files`) are written periodically, so after a
# crash an offset may go back: a known weakness of RocketMQ.
# Source: RocketMQ's TopicConfigManager and ConsumerOffsetManager; DLEDGER.md E24.


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

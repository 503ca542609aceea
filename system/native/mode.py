"""The parts that make a broker a master-slave broker."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from shaketable.system.broker.broker_state import encode_state
from shaketable.system.broker.core import Core
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.log_format import LogFormat
from shaketable.system.broker.mode import Mode
from shaketable.system.broker.outbox import Outbox
from shaketable.system.broker.reading.queries import QUERY_CODES
from shaketable.system.broker.reput import Reput
from shaketable.system.native.core import NativeCore
from shaketable.system.native.group_commit import GroupCommit
from shaketable.system.native.table_events import OffsetEvents, TableEvents
from shaketable.system.raft.protocol import Snapshot
from shaketable.system.store.native.batch import iter_native_dispatches
from shaketable.system.store.native.builder import NativeBuilder

NATIVE_FORMAT = LogFormat(NativeBuilder, iter_native_dispatches, may_skip=True)


class NativeReput(Reput):
    """Dispatches the messages of the log, which holds no topic or offset events."""

    may_lose_entries: ClassVar[bool] = True

    def install(self, snapshot: Snapshot) -> None:
        """Restart at the log's new first position, keeping the current topics and offsets."""
        super().install(replace(snapshot, state=encode_state(self.tables.state({}))))


def native_mode(
    core: NativeCore, config: BrokerConfig, group_commit: type[GroupCommit] = GroupCommit
) -> Mode:
    """Return the parts of a master-slave broker around its core."""

    def pending(_: Core, outbox: Outbox) -> GroupCommit:
        return group_commit(core, outbox, config)

    return Mode(
        NATIVE_FORMAT,
        NativeReput,
        pending,
        TableEvents,
        OffsetEvents,
        status=core.status,
        not_leader="a slave takes nothing from clients, its master does",
        any_member_codes=QUERY_CODES,
    )

"""Planted bugs in consumer groups: members, locks, offsets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.groups.consumer_groups import (
    LEASE_MS,
    ClientHeartbeats,
    LockedQueue,
    QueueLocks,
)
from shaketable.system.broker.groups.group_offsets import OffsetTable, offset_key
from shaketable.system.broker.groups.group_requests import GroupRequests
from shaketable.system.broker.groups.offset_commits import OffsetCommits
from shaketable.system.broker.mode import DLEDGER, Mode
from shaketable.system.master_slave.mode import TableEvents
from shaketable.system.mutants import GROUP, Hunt, Mutant
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import (
    QueryConsumerOffset,
    QueueOffsetResponse,
    UpdateConsumerOffset,
)


class _KeepsClosedConsumers(ClientHeartbeats):
    """Keeps clients whose connection closed until their heartbeats are missed."""

    def connection_closed(self, connection: Connection) -> None:
        """Do nothing."""


class _GoneConsumersStayGroups(GroupRequests):
    heartbeats_type = _KeepsClosedConsumers


class GoneConsumersStay(Broker):
    """A broker with these heartbeats."""

    groups_type = _GoneConsumersStayGroups


GONE_CONSUMERS_STAY = Mutant(
    "gone-consumers-stay",
    broker=GoneConsumersStay,
    hunt=Hunt("queue-push", ("kill", "pause")),
    about="""
    A consumer whose connection has closed stays in its group until its heartbeats are missed.

    No consumer reads its share of the queues for two minutes.

    Source: https://github.com/apache/rocketmq/issues/2732 (consumers are told of members that are
    not there, and divide the queues by them).
    """,
)


class _LocksWithoutLease(QueueLocks):
    """Creates locks whose lease is already over."""

    def lock(
        self, group: str, client_id: str, queues: Sequence[LockedQueue], now_ms: float
    ) -> list[LockedQueue]:
        """Lock, but let new locks expire at once."""
        own = {
            queue
            for queue in queues
            if (lock := self._locks.get((group, queue))) is not None and lock.client_id == client_id
        }
        held = super().lock(group, client_id, queues, now_ms)
        for queue in set(held) - own:
            self._locks[group, queue] = replace(self._locks[group, queue], until_ms=now_ms)
        return held


class _LockCountsFromRenewalGroups(GroupRequests):
    locks_type = _LocksWithoutLease


class LockCountsFromRenewal(Broker):
    """A broker with these locks."""

    groups_type = _LockCountsFromRenewalGroups


LOCK_COUNTS_FROM_RENEWAL = Mutant(
    "lock-counts-from-renewal",
    broker=LockCountsFromRenewal,
    hunt=Hunt("queue-ordered", ("transfer",)),
    about="""
    A queue's lock counts from its first renewal: until then others of the group get it too.

    Two consumers handle the messages of an ordered queue at the same time.

    Source: https://github.com/apache/rocketmq/pull/9194 (RebalanceLockManager made an entry without
    the time at which it was taken).
    """,
)


class _LeaseInSeconds(GroupRequests):
    """Creates locks with a lease in the wrong unit at each new term."""

    def _current_locks(self) -> QueueLocks:
        is_new = self._locks_term != self._events.term
        super()._current_locks()
        if is_new:
            self._locks = QueueLocks(lease_ms=LEASE_MS / 1_000)
        return self._locks


class LockLeaseInSeconds(Broker):
    """A broker with these locks."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._groups.__class__ = _LeaseInSeconds  # the same object, with other locks


LOCK_LEASE_IN_SECONDS = Mutant(
    "lock-lease-in-seconds",
    broker=LockLeaseInSeconds,
    hunt=Hunt("queue-ordered", ("transfer",)),
    about="""
    The lease of a queue's lock is counted in seconds where milliseconds are meant: it lasts 60 ms.

    Another consumer is given the queue while the first is at work in it.

    Source: our own, after RocketMQ's RebalanceLockManager, whose REBALANCE_LOCK_MAX_LIVE_TIME is in
    milliseconds and whose clients count their own in seconds.
    """,
)


class _LocksOfClients(QueueLocks):
    """Locks that can be released for a client."""

    def release(self, gone: Collection[tuple[str, str]]) -> None:
        """Release the locks of clients, each named by group and id."""
        held = self._locks.items()
        for key in [key for key, lock in held if (key[0], lock.client_id) in gone]:
            del self._locks[key]


class _ReleasesLocksOfTheGone(GroupRequests):
    """Releases the locks of clients whose connection closed."""

    locks_type = _LocksOfClients

    def connection_closed(self, connection: Connection) -> None:
        """Drop the clients of a connection that closed, with their locks."""
        assert isinstance(self._locks, _LocksOfClients)
        self._locks.release(
            {
                (group.name, client.client_id)
                for group in self.heartbeats.groups
                for client in group.clients.values()
                if client.connection == connection
            }
        )
        super().connection_closed(connection)


class LocksEndWithConnection(Broker):
    """A broker with these locks."""

    groups_type = _ReleasesLocksOfTheGone


LOCKS_END_WITH_CONNECTION = Mutant(
    "locks-end-with-connection",
    broker=LocksEndWithConnection,
    hunt=Hunt("queue-ordered", ("client-links",)),
    about="""
    A client's queue locks are released as soon as its connection closes.

    It may live on, connect anew and still handle what it has pulled, while another consumer is
    given the queue.

    Source: our own, after RocketMQ's ClientHousekeepingService, which removes a closed channel's
    clients from their groups, and RebalanceLockManager, whose locks outlive it.
    """,
)


class _IgnoresOffsetResets(OffsetCommits):
    """Commits the higher of the known and the requested offset."""

    def _stage(self, key: str, queue_id: int, offset: int, wall_ms: int) -> None:
        topic, _, group = key.rpartition("@")
        known = self.table.get(group, topic, queue_id)
        super()._stage(key, queue_id, max(offset, known or 0), wall_ms)


class _OffsetResetIgnoredGroups(GroupRequests):
    offsets_type = _IgnoresOffsetResets


class OffsetResetIgnored(Broker):
    """A broker with these commits."""

    groups_type = _OffsetResetIgnoredGroups


OFFSET_RESET_IGNORED = Mutant(
    "offset-reset-ignored",
    broker=OffsetResetIgnored,
    hunt=Hunt("queue-offsets", ("transfer",)),
    about="""
    An offset that is set back is acknowledged, and the group goes on where it was.

    Source: https://github.com/mxsm/rocketmq-rust/issues/9607 (a commit below the stored offset is
    dropped, so that a reset has no effect); https://github.com/apache/rocketmq/issues/4206.
    """,
)


class _TablesOfTheLeader(TableEvents):
    """Changes the tables at once; reads still need a read index."""

    is_replicated = True
    is_migration_pending = False


class OffsetsNotReplicated(Broker):
    """A member that does not replicate offsets, like a master without a group."""

    def __init__(self, *args: Any, mode: Mode = DLEDGER, **more: Any) -> None:
        super().__init__(*args, mode=replace(mode, offset_events=_TablesOfTheLeader), **more)


OFFSETS_NOT_REPLICATED = Mutant(
    "offsets-not-replicated",
    broker=OffsetsNotReplicated,
    targets=GROUP,
    hunt=Hunt("offsets", ("kill", "partition")),
    about="""
    A leader keeps the offsets that groups commit to itself, and acknowledges them at once.

    The next leader knows nothing of them: an acknowledged commit goes back.

    Source: RocketMQ's ConsumerOffsetManager in DLedger mode (bug E24), where offsets are a file of
    each broker's own.
    """,
)


PULL = 16


class _RoundsOffsetsUp(OffsetTable):
    """Rounds offsets up to a whole pull."""

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        offset = super().get(group, topic, queue_id)
        return None if offset is None else -(-offset // PULL) * PULL


class OffsetsRoundedUp(Broker):
    """A broker with that table."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        known = self._reput.tables.offsets
        self._reput.tables.offsets = self._groups.offsets.table = coarse = _RoundsOffsetsUp()
        coarse.restore(known.state())


OFFSETS_ROUNDED_UP = Mutant(
    "offsets-rounded-up",
    broker=OffsetsRoundedUp,
    hunt=Hunt("offsets", ("kill", "partition")),
    about="""
    A group's offsets are read as if they meant whole pulls: rounded up to the next sixteen.

    The next owner of the queue starts after messages that no consumer was given.

    Source: our own, after "poll-skip" of jepsen.tests.kafka: a position ahead of what was given.
    """,
)


class OffsetsUnconfirmed(Broker):
    """A broker that answers offset queries without a read index."""

    def _command(
        self,
        connection: Connection,
        born_host: bytes,
        command: Command,
        now_ms: float,
        wall_ms: int,
    ) -> None:
        if command.is_response or command.code != RequestCode.QUERY_CONSUMER_OFFSET:
            super()._command(connection, born_host, command, now_ms, wall_ms)
            return
        request = QueryConsumerOffset.from_ext(command.ext)
        known = self.tables.offsets
        offset = known.get(request.consumer_group, request.topic, request.queue_id)
        if offset is None:
            remark = "nothing is committed here"
            self._outbox.answer(connection, command, ResponseCode.QUERY_NOT_FOUND, remark)
        else:
            self._outbox.answer(connection, command, ext=QueueOffsetResponse(offset).to_ext())


OFFSETS_UNCONFIRMED = Mutant(
    "offsets-unconfirmed",
    broker=OffsetsUnconfirmed,
    targets=GROUP,
    hunt=Hunt("offsets", ("pause", "partition")),
    about="""
    Any broker answers a request for a group's offset from its own table, whether it leads or not.

    A leader that was cut off, and replaced without knowing it, lets a group go on where it was
    before; so does a member that has not applied the last commits yet.

    Source: RocketMQ's ConsumerManageProcessor.queryConsumerOffset, which asks none (5.3.3).
    """,
)


class _KeepsLastQueueOnly(OffsetCommits):
    """Keeps only the last commit of a step for each topic and group."""

    def _stage(self, key: str, queue_id: int, offset: int, wall_ms: int) -> None:
        self._staged.pop(key, None)
        super()._stage(key, queue_id, offset, wall_ms)


class _OneCommitOfManyGroups(GroupRequests):
    offsets_type = _KeepsLastQueueOnly


class OneCommitOfMany(Broker):
    """A broker with these commits."""

    groups_type = _OneCommitOfManyGroups


ONE_COMMIT_OF_MANY = Mutant(
    "one-commit-of-many",
    broker=OneCommitOfMany,
    hunt=Hunt("offsets", ("kill",)),
    about="""
    Of the offsets that a group commits in several queues at once one is kept, all are acknowledged.

    Source: https://github.com/apache/rocketmq/pull/1427 (two clients that commit different queues
    of one group and topic make a map each, and one replaces the other's).
    """,
)


class _CommitsAllQueues(OffsetCommits):
    """Stores a one-way commit for every known queue of the topic."""

    def update(self, connection: Connection, command: Command, wall_ms: int) -> None:
        super().update(connection, command, wall_ms)
        if command.is_oneway and self._events.is_ready:
            fields = UpdateConsumerOffset.from_ext(command.ext)
            group, topic = fields.consumer_group, fields.topic
            for queue_id in self.table.state().get(offset_key(group, topic), {}):
                self.store(group, topic, queue_id, fields.commit_offset, wall_ms)


class OnewayCommitOfAllQueues(Broker):
    """A broker with these one-way commits."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._groups.offsets.__class__ = (
            _CommitsAllQueues  # the same object, with another way to commit
        )


ONEWAY_COMMIT_OF_ALL_QUEUES = Mutant(
    "oneway-commit-of-all-queues",
    broker=OnewayCommitOfAllQueues,
    hunt=Hunt("queue-offsets", ("transfer", "kill")),
    about="""
    A one-way commit of one queue is taken for all queues of the topic that the group has.

    Source: our own, after RocketMQ's RemoteBrokerOffsetStore.persistAll, which tells the offsets of
    all queues one-way and one after the other: a broker that reads one of them for the whole.
    """,
)


PLUGINS = (
    GONE_CONSUMERS_STAY,
    LOCK_COUNTS_FROM_RENEWAL,
    LOCK_LEASE_IN_SECONDS,
    LOCKS_END_WITH_CONNECTION,
    OFFSET_RESET_IGNORED,
    OFFSETS_NOT_REPLICATED,
    OFFSETS_ROUNDED_UP,
    OFFSETS_UNCONFIRMED,
    ONE_COMMIT_OF_MANY,
    ONEWAY_COMMIT_OF_ALL_QUEUES,
)

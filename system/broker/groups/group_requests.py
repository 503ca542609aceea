"""Serves requests about topics, consumer groups, their offsets and locks.

Source: RocketMQ's AdminBrokerProcessor, ClientManageProcessor, ConsumerManageProcessor; codes
as in DLEDGER.md A.2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from shaketable.system.broker.admin import BrokerInfo
from shaketable.system.broker.appender import Appender, PendingAppends
from shaketable.system.broker.core import Core
from shaketable.system.broker.deliveries import SendBack
from shaketable.system.broker.effects import Connection, Outbox
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.groups.consumer_groups import (
    ClientHeartbeats,
    LockedQueue,
    QueueLocks,
)
from shaketable.system.broker.groups.offset_commits import GROUP_BYTES_MAX, OffsetCommits
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.mode import Mode
from shaketable.system.broker.reput import Reput
from shaketable.system.broker.topic_tables.topic_rules import Topics
from shaketable.system.broker.topic_tables.topics import (
    INHERIT,
    QUEUES_MAX,
    READ,
    WRITE,
    TopicConfig,
    is_builtin,
    name_problem,
)
from shaketable.system.raft.protocol import NotLeaderError, Token, TooManyReadsError
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import I32, Command, CommandError
from shaketable.system.remoting.requests import (
    CreateTopic,
    DeleteTopic,
    PullMessage,
    QueryConsumerOffset,
    QueueOffsetResponse,
)
from shaketable.system.store.group_events import OFFSET_QUEUE, TOPIC_QUEUE

PULL_CODES = frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
COMMIT_OFFSET_FLAG = 1
"""Bit of a pull's sysFlag: the pull carries an offset to commit."""
LOCKED_QUEUES_MAX = 10_000
"""Limit for one request."""
RECENT_BYTES_MAX = 1 << 30
"""A new group starts at offset 0 if the queue's first message is this close to the log's end."""


class _QueueName(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str = ""
    queue_id: I32 = 0


class _LockBody(msgspec.Struct, rename="camel"):
    """The body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str
    client_id: str
    mq_set: list[_QueueName] = []


class GroupRequests:
    """Serves clients' requests about groups and topics; `topics` checks sends and pulls.

    Any member takes heartbeats; only the leader serves commits, offsets and locks.
    """

    offsets_type: ClassVar[type[OffsetCommits]] = OffsetCommits
    heartbeats_type: ClassVar[type[ClientHeartbeats]] = ClientHeartbeats
    locks_type: ClassVar[type[QueueLocks]] = QueueLocks

    def __init__(
        self,
        core: Core,
        reput: Reput,
        appender: Appender,
        pending: PendingAppends,
        outbox: Outbox,
        config: BrokerConfig,
        mode: Mode,
    ) -> None:
        self._core = core
        self._reput = reput
        self._outbox = outbox
        self._events = mode.topic_events(appender, pending, outbox, config, reput)
        self._offset_events = offset_events = (
            mode.offset_events(appender, pending, outbox, config, reput)
            if mode.offset_events is not None
            else self._events
        )
        self.topics = Topics(
            reput.tables.topics, self._events, lambda: reput.queues, config.topics_max
        )
        self.offsets = self.offsets_type(
            reput.tables.offsets, offset_events, self.topics.last_deletion
        )
        self.heartbeats = self.heartbeats_type(self.topics, outbox, config)
        self._locks = self.locks_type()
        self._locks_term = -1
        self._leader_requests = LeaderRequests(core, reput, outbox, config)
        self._topic_requests = TopicRequests(self.topics, self._events)
        send_back = SendBack(core, reput, appender, self.topics, self._events, config)
        groups = self.heartbeats.groups
        info = BrokerInfo(
            core, reput, groups, outbox, config, self._events, offset_events, mode.status
        )
        self._info = info
        self._serve: dict[int, Callable[[Connection, Command, float, int], None]] = {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: lambda connection, command, _, __: (
                self.heartbeats.unregister(connection, command)
            ),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda connection, command, _, __: (
                self.heartbeats.list_clients(connection, command)
            ),
            RequestCode.UPDATE_CONSUMER_OFFSET: lambda connection, command, _, wall_ms: (
                self.offsets.update(connection, command, wall_ms)
            ),
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._topic_requests.create,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: info.all_topics,
            RequestCode.GET_ALL_CONSUMER_OFFSET: info.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: info.all_delay_offsets,
            RequestCode.CONSUMER_SEND_MSG_BACK: send_back.handle,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: info.all_groups,
            RequestCode.GET_BROKER_RUNTIME_INFO: info.runtime,
            RequestCode.GET_BROKER_CONFIG: info.config,
            RequestCode.UPDATE_BROKER_CONFIG: info.refuse_config,
        }

    @property
    def topic_version(self) -> int:
        """How many topic events were applied: equal on all members."""
        return self._events.version(TOPIC_QUEUE)

    @property
    def offsets_version(self) -> int:
        """How many group offset events were applied."""
        return self._offset_events.version(OFFSET_QUEUE)

    def serves(self, code: int) -> bool:
        """Whether this object serves requests of this code."""
        return code in self._serve

    def handle(self, connection: Connection, command: Command, now_ms: float, wall_ms: int) -> None:
        """Handle a request whose code it serves. Raises CommandError if it is illegal."""
        self._serve[command.code](connection, command, now_ms, wall_ms)

    def refuses_pull(self, connection: Connection, command: Command, wall_ms: int) -> bool:
        """Check a pull's topic at the leader, and commit the offset that the pull carries.

        Return True if the pull was refused for its topic. Raises CommandError.
        """
        if command.code not in PULL_CODES or not self.topics.is_ready:
            return False  # `Reads` answers such a pull as a member that does not lead
        fields = PullMessage.from_ext(command.ext)
        if refusal := self.topics.pull_refusal(fields.topic, fields.queue_id):
            self._outbox.refuse(connection, command, *refusal)
            return True
        if fields.sys_flag & COMMIT_OFFSET_FLAG:
            self.offsets.store(
                fields.consumer_group, fields.topic, fields.queue_id, fields.commit_offset, wall_ms
            )
        return False

    @property
    def has_commits(self) -> bool:
        """Whether `build` has commits to write."""
        return self.offsets.has_staged

    def build(self, now_ms: float) -> None:
        """Write the commits since the last call as entries; the caller appends them."""
        self.offsets.build(now_ms)

    def tick(self, now_ms: float) -> None:
        """Advance the time."""
        self.heartbeats.tick(now_ms)
        self._info.tick(now_ms)

    def connection_closed(self, connection: Connection) -> None:
        """Drop the clients and replies of a connection that closed."""
        self.offsets.drop(connection)
        self.heartbeats.connection_closed(connection)

    def claim_reads(
        self, ready: Tokens, refused: Tokens, index: int, now_ms: float
    ) -> tuple[Tokens, Tokens]:
        """Claim and serve this object's reads among the core's answers; return the others."""
        rest = self._leader_requests.claim_reads(ready, refused, index)
        self._leader_requests.serve(now_ms)
        return rest

    def _heartbeat(
        self, connection: Connection, command: Command, now_ms: float, wall_ms: int
    ) -> None:
        is_leader = self._events.is_ready
        self.heartbeats.heartbeat(connection, command, now_ms, wall_ms, is_leader=is_leader)

    def _delete_topic(
        self, connection: Connection, command: Command, now_ms: float, wall_ms: int
    ) -> None:
        """Delete a topic after the commits staged before, so that it takes their offsets along."""
        if self.offsets.has_staged:
            self.offsets.build(now_ms)
        self._topic_requests.delete(connection, command, now_ms, wall_ms)

    def _query_offset(
        self, connection: Connection, command: Command, now_ms: float, _: int
    ) -> None:
        fields = QueryConsumerOffset.from_ext(command.ext)
        if not self._offset_events.is_replicated:
            self._answer_offset(connection, command, fields)
            return
        if self._offset_events.is_migration_pending:
            self._outbox.refuse_not_leader(connection, command)
            return
        self._leader_requests.submit(
            connection, command, lambda _: self._answer_offset(connection, command, fields), now_ms
        )

    def _answer_offset(
        self, connection: Connection, command: Command, fields: QueryConsumerOffset
    ) -> None:
        """Answer with the committed offset, or with 0 for a new group on a recent queue.

        Source: ConsumerManageProcessor.queryConsumerOffset.
        """
        group, topic, queue_id = fields.consumer_group, fields.topic, fields.queue_id
        offset = self._reput.tables.offsets.get(group, topic, queue_id)
        if offset is None and fields.set_zero_if_not_found and self._is_recent(topic, queue_id):
            offset = 0
        if offset is None:
            remark = f"group {group} has committed nothing of {topic}/{queue_id} yet"
            self._outbox.answer(connection, command, ResponseCode.QUERY_NOT_FOUND, remark)
            return
        self._outbox.answer(connection, command, ext=QueueOffsetResponse(offset).to_ext())

    def _is_recent(self, topic: str, queue_id: int) -> bool:
        """Whether no message has expired and the first one is near the log's end."""
        queues, queue = self._reput.queues, (topic.encode(), queue_id)
        if queues.min_offset(queue) > 0:
            return False
        first = queues.find(queue, 0, 1, 1)
        return not first or self._core.log.end_position - first[0][0] <= RECENT_BYTES_MAX

    def _lock(self, connection: Connection, command: Command, now_ms: float, _: int) -> None:
        body = _lock_body(command)

        def answer(then_ms: float) -> None:
            if not self._events.refuse_not_ready(connection, command):
                self._answer_lock(connection, command, body, then_ms)

        self._leader_requests.submit(connection, command, answer, now_ms)

    def _answer_lock(
        self, connection: Connection, command: Command, body: _LockBody, now_ms: float
    ) -> None:
        locks = self._current_locks()
        held = locks.lock(body.consumer_group, body.client_id, _queues(body), now_ms)
        named = [
            {"brokerName": broker, "queueId": queue_id, "topic": topic}
            for topic, broker, queue_id in held
        ]
        answer = msgspec.json.encode({"lockOKMQSet": named})
        self._outbox.answer(connection, command, body=answer)

    def _unlock(self, connection: Connection, command: Command, now_ms: float, _: int) -> None:
        """Release locks, after earlier requests: a renewal may still await its read index."""
        body = _lock_body(command)

        def answer(_: float) -> None:
            if not self._events.refuse_not_ready(connection, command):
                locks = self._current_locks()
                locks.unlock(body.consumer_group, body.client_id, _queues(body))
                self._outbox.answer(connection, command)

        self._leader_requests.submit(connection, command, answer, now_ms)

    def _current_locks(self) -> QueueLocks:
        """Return the locks of the current term; those of another term are dropped."""
        if self._locks_term != self._events.term:
            self._locks_term = self._events.term
            self._locks.clear()
        return self._locks


def _queues(body: _LockBody) -> list[LockedQueue]:
    return [(one.topic, one.broker_name, one.queue_id) for one in body.mq_set]


def _lock_body(command: Command) -> _LockBody:
    """Parse and check a lock or unlock request. Raises CommandError."""
    try:
        body = msgspec.json.decode(command.body, type=_LockBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"bad lock request: {error}") from None
    if problem := name_problem(body.consumer_group, GROUP_BYTES_MAX):
        raise CommandError(f"bad lock request: consumerGroup: {problem}")
    if not body.client_id:
        raise CommandError("bad lock request: clientId is missing")
    if len(body.mq_set) > LOCKED_QUEUES_MAX:
        raise CommandError(f"bad lock request: more than {LOCKED_QUEUES_MAX} queues")
    return body


# Operators' requests about topics: create, change and delete, by replicated entries.
#
# Source: RocketMQ's AdminBrokerProcessor.updateAndCreateTopic and deleteTopic.

ATTRIBUTES_BYTES_MAX = 4096
_FILTER_TYPES = frozenset(("SINGLE_TAG", "MULTI_TAG"))
_PERM_MAX = READ | WRITE | INHERIT


class TopicRequests:
    """Serves UPDATE_AND_CREATE_TOPIC and DELETE_TOPIC_IN_BROKER at the leader."""

    def __init__(self, topics: Topics, events: EventLog) -> None:
        self._topics = topics
        self._events = events

    def create(self, connection: Connection, command: Command, now_ms: float, wall_ms: int) -> None:
        """Create or change a topic; answered once acknowledged. Raises CommandError."""
        fields = CreateTopic.from_ext(command.ext)
        _check(fields)
        if self._is_refused(connection, command):
            return
        known = self._topics.get(fields.topic)
        config = TopicConfig(
            fields.topic,
            fields.read_queue_nums,
            fields.write_queue_nums,
            fields.perm,
            fields.topic_filter_type,
            fields.topic_sys_flag,
            fields.order,
            _attributes(known.attributes if known else "", fields.attributes or ""),
        )
        if refusal := self._topics.put(config, wall_ms):
            self._events.refuse(connection, command, *refusal)
        else:
            self._events.answer_when_acknowledged(connection, command, now_ms)

    def delete(self, connection: Connection, command: Command, now_ms: float, wall_ms: int) -> None:
        """Delete a topic; as in RocketMQ, a missing one is no error. Raises CommandError.

        Its messages stay in the log until they expire. A new topic of the same name continues at
        the next offsets.
        """
        topic = DeleteTopic.from_ext(command.ext).topic
        if problem := name_problem(topic):
            raise CommandError(f"topic: {problem}")
        if is_builtin(topic):
            raise CommandError(f"topic {topic} belongs to the broker: it cannot be deleted")
        if self._is_refused(connection, command):
            return
        self._topics.delete(topic, wall_ms)
        self._events.answer_when_acknowledged(connection, command, now_ms)

    def _is_refused(self, connection: Connection, command: Command) -> bool:
        command.body = b""
        return self._events.refuse_not_ready(connection, command) or self._events.refuse_full(
            connection, command
        )


def _check(fields: CreateTopic) -> None:
    """Raise CommandError if the topic's settings are illegal."""
    if problem := name_problem(fields.topic):
        raise CommandError(f"topic: {problem}")
    if is_builtin(fields.topic):
        raise CommandError(f"topic {fields.topic} belongs to the broker: choose another name")
    for name, count in (
        ("readQueueNums", fields.read_queue_nums),
        ("writeQueueNums", fields.write_queue_nums),
    ):
        if not 0 < count <= QUEUES_MAX:
            raise CommandError(f"{name} {count} is not in 1..{QUEUES_MAX}")
    if not 0 <= fields.perm <= _PERM_MAX:
        raise CommandError(
            f"perm {fields.perm} is not in 0..{_PERM_MAX}: 4 read, 2 write, 1 inherit"
        )
    if fields.topic_filter_type not in _FILTER_TYPES:
        raise CommandError(f"topicFilterType must be one of {', '.join(sorted(_FILTER_TYPES))}")
    if len(fields.attributes or "") > ATTRIBUTES_BYTES_MAX:
        raise CommandError(f"attributes of more than {ATTRIBUTES_BYTES_MAX} characters")


def _attributes(known: str, changes: str) -> str:
    """Apply changes of the form "+name=value,-name"; return "name=value,...", sorted.

    Raises CommandError for other changes, and for those that add too much to what is known.
    Source: RocketMQ's AttributeParser.
    """
    pairs = dict(part.split("=", 1) for part in known.split(",") if part)
    for change in filter(None, changes.split(",")):
        name, equals, value = change[1:].partition("=")
        if change[0] == "+" and name and equals:
            pairs[name] = value
        elif change[0] == "-" and name and not equals:
            pairs.pop(name, None)
        else:
            raise CommandError(f"attributes: {change!r} is not of the form +name=value or -name")
    text = ",".join(f"{name}={value}" for name, value in sorted(pairs.items()))
    if len(text) > max(len(known), ATTRIBUTES_BYTES_MAX):
        raise CommandError(f"attributes of {len(text)} characters, at most {ATTRIBUTES_BYTES_MAX}")
    return text


# Requests that only a leader may answer, held until a read index confirms that it leads.
#
# A quorum confirms the leadership, then the member applies every entry that was committed by
# then, so the answer is linearizable. Source: Ongaro's dissertation section 6.4 (read index).


@dataclass(frozen=True, slots=True)
class LeaderRequest:
    """A pending request, and the core's token for it. `number` identifies it.

    `answer` is called with the time once the request may be answered.
    """

    number: int
    connection: Connection
    command: Command = field(compare=False)
    answer: Callable[[float], None] = field(compare=False)


Tokens = Sequence[Token]


class LeaderRequests:
    """The requests that wait for their read index."""

    def __init__(self, core: Core, reput: Reput, outbox: Outbox, config: BrokerConfig) -> None:
        self._core = core
        self._reput = reput
        self._outbox = outbox
        self._held_max = config.reads_held_max
        self._unconfirmed = 0
        self._count = 0
        # confirmed: (index to be applied, request)
        self._held: deque[tuple[int, LeaderRequest]] = deque()

    def submit(
        self,
        connection: Connection,
        command: Command,
        answer: Callable[[float], None],
        now_ms: float,
    ) -> None:
        """Call `answer` with the time once a read index confirms the leadership, else refuse."""
        command.body = b""  # a kept command must not pin its frame's buffer
        self._count += 1
        request = LeaderRequest(self._count, connection, command, answer)
        if len(self._held) >= self._held_max:
            remark = f"[503] {len(self._held)} requests wait for entries to be applied"
            self._outbox.refuse(connection, command, ResponseCode.SYSTEM_BUSY, remark)
            return
        try:
            self._core.read(request, now_ms)
        except NotLeaderError:
            self._outbox.refuse_not_leader(connection, command)
        except TooManyReadsError as error:
            self._outbox.refuse(connection, command, ResponseCode.SYSTEM_BUSY, f"[503] {error}")
        else:
            self._unconfirmed += 1

    def claim_reads(self, ready: Tokens, refused: Tokens, index: int) -> tuple[Tokens, Tokens]:
        """Claim this object's tokens among the core's answers; return the others.

        Claimed requests that are ready may be answered once `index` is applied.
        """
        if not self._unconfirmed or not (ready or refused):
            return ready, refused
        others_ready: list[Token] = []
        others_refused: list[Token] = []
        for token in ready:
            if isinstance(token, LeaderRequest):
                self._unconfirmed -= 1
                self._held.append((index, token))
            else:
                others_ready.append(token)
        for token in refused:
            if isinstance(token, LeaderRequest):
                self._unconfirmed -= 1
                self._outbox.refuse_not_leader(token.connection, token.command)
            else:
                others_refused.append(token)
        return others_ready, others_refused

    def serve(self, now_ms: float) -> None:
        """Answer the confirmed requests for which enough is applied."""
        while self._held and self._held[0][0] <= self._reput.applied_index:
            self._held.popleft()[1].answer(now_ms)

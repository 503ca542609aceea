"""Serves operators: a member's state and figures, leadership transfers, membership changes.

The request codes are our own (`RequestCode`), on RocketMQ's frame: DLedger's membership is
static, and its LEADERSHIP_TRANSFER goes between members. A refusal is definite and gives its
reason. Its code is NO_PERMISSION if a retry would be refused again, so that clients do not retry.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shaketable.system.broker.appender import Appender, PendingAppend, PendingAppends, Refusal
from shaketable.system.broker.core import Core
from shaketable.system.broker.delay_levels import DELIVERY_GROUP
from shaketable.system.broker.effects import Connection, Outbox
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.groups.consumer_groups import ConsumerGroups
from shaketable.system.broker.groups.group_offsets import offset_key
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import Reput
from shaketable.system.broker.topic_tables.topics import SCHEDULE_TOPIC
from shaketable.system.raft.membership import (
    AddLearner,
    Change,
    MembershipError,
    Promote,
    Remove,
)
from shaketable.system.raft.protocol import NotLeaderError, Role, TransferError
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import VERSION, Command, CommandError, response
from shaketable.system.remoting.fastjson import dumps
from shaketable.system.remoting.requests import MemberRequest, MetadataResponse
from shaketable.system.store.group_events import OFFSET_QUEUE, TOPIC_QUEUE

ADMIN_CODES = frozenset(
    (RequestCode.TRANSFER_LEADERSHIP, RequestCode.ADD_MEMBER, RequestCode.REMOVE_MEMBER)
)
PORT_MAX = 65_535
PORT_DIGITS_MAX = 5
MEMBER_BYTES_MAX = 64
ADDRESS_BYTES_MAX = 253
_MEMBER = re.compile(r"[A-Za-z0-9_.]+")
"""The ids that a node's configuration accepts. A member with another id could never start."""


@dataclass(frozen=True, slots=True)
class _WaitingTransfer:
    connection: Connection
    command: Command
    target: str
    due_ms: float


class Admin:
    """Serves operators. At most one transfer is pending at a time, as in the core."""

    def __init__(
        self,
        core: Core,
        reput: Reput,
        appender: Appender,
        pending: PendingAppends,
        outbox: Outbox,
        config: BrokerConfig,
    ) -> None:
        self._core = core
        self._reput = reput
        self._appender = appender
        self._pending = pending
        self._outbox = outbox
        self._config = config
        self._transfer: _WaitingTransfer | None = None

    def handle(self, connection: Connection, command: Command, now_ms: float, wall_ms: int) -> None:
        """Start a transfer or a membership change. Raises CommandError for an illegal member."""
        fields = MemberRequest.from_ext(command.ext)
        if not self._appender.is_ready:
            self._outbox.refuse_not_leader(connection, command)
        elif command.code == RequestCode.TRANSFER_LEADERSHIP:
            self._start_transfer(connection, command, fields.member, now_ms)
        elif command.code == RequestCode.ADD_MEMBER:
            change = AddLearner(_checked_member(fields.member), _checked_address(fields.address))
            self._change(connection, command, change, now_ms, wall_ms)
        else:
            self._change(connection, command, Remove(fields.member), now_ms, wall_ms)

    def metadata(
        self, connection: Connection, command: Command, now_ms: float, wall_ms: int
    ) -> None:
        """Answer DLedger's METADATA with this member's state and clocks."""
        core = self._core
        memberships, start = core.ledger.memberships, core.log.start
        membership = memberships.current
        fields = MetadataResponse(
            core.member,
            core.role.value,
            core.term,
            core.leader or "",
            core.ledger.checkpoint_index,
            core.log.end_index,
            self._reput.applied_index,
            ";".join(membership.voters),
            ";".join(membership.learners),
            ";".join(f"{member}-{address}" for member, address in membership.addresses),
            memberships.current_index,
            start.index + 1,
            start.index,
            wall_ms,
            int(now_ms),
        )
        self._outbox.answer(connection, command, ext=fields.to_ext())

    def promote(self, learner: str, now_ms: float, wall_ms: int) -> None:
        """Promote a learner that has caught up to a voter; if refused, it is retried later."""
        if not self._appender.is_ready:
            return
        try:
            membership = self._core.plan_change(Promote(learner))
        except (MembershipError, NotLeaderError):
            return
        self._appender.append_membership(membership, now_ms, wall_ms)

    def settle(self, now_ms: float) -> None:
        """Answer the pending transfer once its outcome is known."""
        waiting, core = self._transfer, self._core
        if waiting is None:
            return
        if core.leader == waiting.target:
            self._outbox.answer(waiting.connection, waiting.command)
        elif now_ms >= waiting.due_ms or (core.role is Role.LEADER and core.transferee is None):
            self._outbox.answer(
                waiting.connection,
                waiting.command,
                ResponseCode.SYSTEM_ERROR,
                f"[418] {waiting.target} has not taken the leadership yet",
                {"leaderId": core.leader or ""},
            )
        else:
            return
        self._transfer = None

    def _start_transfer(
        self, connection: Connection, command: Command, target: str, now_ms: float
    ) -> None:
        if target == self._core.member:
            self._outbox.answer(connection, command)
            return
        self.settle(now_ms)  # the core may have aborted an earlier one since
        try:
            self._core.transfer(target, now_ms)
        except NotLeaderError:
            self._outbox.refuse_not_leader(connection, command)
        except TransferError as error:
            self._refuse(connection, command, (ResponseCode.NO_PERMISSION, f"[417] {error}"))
        else:
            due_ms = now_ms + self._config.ack_timeout_ms
            self._transfer = _WaitingTransfer(connection, command, target, due_ms)

    def _change(
        self,
        connection: Connection,
        command: Command,
        change: Change,
        now_ms: float,
        wall_ms: int,
    ) -> None:
        try:
            membership = self._core.plan_change(change)
        except NotLeaderError:
            self._outbox.refuse_not_leader(connection, command)
            return
        except MembershipError as error:
            self._refuse(connection, command, (ResponseCode.NO_PERMISSION, f"[504] {error}"))
            return
        if refusal := self._appender.append_membership(membership, now_ms, wall_ms):
            self._refuse(connection, command, refusal)
            return
        index = self._core.ledger.memberships.current_index
        self._pending.waiting.append(
            PendingAppend(
                index,
                now_ms + self._config.ack_timeout_ms,
                connection,
                command.opaque,
                command.serialize_type,
                response(
                    command.opaque,
                    ResponseCode.SUCCESS,
                    ext={"membershipIndex": str(index)},
                    serialize_type=command.serialize_type,
                ),
            )
        )

    def _refuse(self, connection: Connection, command: Command, refusal: Refusal) -> None:
        self._outbox.refuse(connection, command, *refusal)


def _checked_member(member: str) -> str:
    if len(member) > MEMBER_BYTES_MAX or not _MEMBER.fullmatch(member):
        raise CommandError(f"{member[:MEMBER_BYTES_MAX]!r} is no member id")
    return member


def _checked_address(address: str | None) -> str:
    host, _, port = (address or "").rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX
    if not (is_number and 0 < int(port) <= PORT_MAX and _is_host(host)):
        given = (address or "")[:ADDRESS_BYTES_MAX]
        raise CommandError(f"a member's address is host:port of its DLedger port, not {given!r}")
    return f"{host}:{int(port)}"


def _is_host(host: str) -> bool:
    """Whether a host name can be resolved. Every member would retry a bad one for ever."""
    if not host or len(host) > ADDRESS_BYTES_MAX or not host.isascii() or not host.isprintable():
        return False
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return ";" not in host and " " not in host


# Answers operators and slaves about the broker itself, in the form of RocketMQ's tools.
#
# Any member answers, from its applied state.
# Source: RocketMQ's AdminBrokerProcessor (prepareRuntimeInfo, getAllTopicConfig,
# getAllConsumerOffset, getAllSubscriptionGroup, getBrokerConfig), ClusterListSubCommand.

SAMPLE_INTERVAL_MS = 10_000.0
SAMPLES_MAX = 62
"""Samples kept: a little more than ten minutes."""
_WINDOWS_MS = (10_000.0, 60_000.0, 600_000.0)
VERSION_TEXT = "V4_9_8"
RETRY_TIMES_MAX = 16


class BrokerInfo:
    """Answers GET_ALL_TOPIC_CONFIG and similar requests."""

    def __init__(
        self,
        core: Core,
        reput: Reput,
        groups: ConsumerGroups,
        outbox: Outbox,
        config: BrokerConfig,
        topic_events: EventLog,
        offset_events: EventLog,
        status: Callable[[], dict[str, str]],
    ) -> None:
        self._core = core
        self._reput = reput
        self._groups = groups
        self._outbox = outbox
        self._config = config
        self._topic_events = topic_events
        self._offset_events = offset_events
        self._status = status
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)

    def tick(self, now_ms: float) -> None:
        """Sample the message count every SAMPLE_INTERVAL_MS."""
        if not self._samples or now_ms >= self._samples[-1][0] + SAMPLE_INTERVAL_MS:
            self._samples.append((now_ms, self._message_count))

    def all_topics(self, connection: Connection, request: Command, _: float, __: int) -> None:
        """Answer GET_ALL_TOPIC_CONFIG: all topics by name (TopicConfigSerializeWrapper)."""
        table = {topic.topic_name: topic.to_wire() for topic in self._reput.tables.topics}
        version = _version(self._topic_events.version(TOPIC_QUEUE))
        self._answer(connection, request, {"dataVersion": version, "topicConfigTable": table})

    def all_offsets(self, connection: Connection, request: Command, _: float, __: int) -> None:
        """Answer GET_ALL_CONSUMER_OFFSET: by "topic@group" and queue id (unquoted keys)."""
        table = self._reput.tables.offsets.state()
        self._answer(
            connection,
            request,
            {
                "dataVersion": self._offset_version,
                "offsetTable": table,
            },
        )

    def all_delay_offsets(
        self, connection: Connection, request: Command, _: float, __: int
    ) -> None:
        """Answer GET_ALL_DELAY_OFFSET: delivery progress by level, from 1 (delayOffset.json)."""
        done = self._reput.tables.offsets.state().get(
            offset_key(DELIVERY_GROUP, SCHEDULE_TOPIC), {}
        )
        table = {queue_id + 1: offset for queue_id, offset in sorted(done.items())}
        self._answer(
            connection,
            request,
            {
                "dataVersion": self._offset_version,
                "offsetTable": table,
            },
        )

    def all_groups(self, connection: Connection, request: Command, _: float, __: int) -> None:
        """Answer GET_ALL_SUBSCRIPTIONGROUP_CONFIG: the known groups, with default settings.

        A group is known if it has committed offsets or has clients here. Configurations from a
        master or a file replace the defaults.
        """
        tables = self._reput.tables
        names = tables.offsets.groups() | {group.name for group in self._groups}
        table = {name: group_config(name) for name in sorted(names)} | tables.groups
        version = self._offset_version
        self._answer(connection, request, {"dataVersion": version, "subscriptionGroupTable": table})

    def runtime(self, connection: Connection, request: Command, now_ms: float, _: int) -> None:
        """Answer GET_BROKER_RUNTIME_INFO: a table of names and texts (KVTable)."""
        core, rates = self._core, self._rates(now_ms)
        table = {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_TEXT,
            "brokerActive": "true",
            "dledgerRole": core.role.value,
            "putTps": rates,
            "putMessageTimesTotal": str(self._message_count),
            "commitLogMinOffset": str(core.log.start.position),
            "commitLogMaxOffset": str(core.log.end_position),
            "dledgerTerm": str(core.term),
            "dledgerLeader": core.leader or "",
            "consumerGroupsOnline": str(sum(1 for _ in self._groups)),
            "topics": str(sum(1 for _ in self._reput.tables.topics)),
        }
        table |= dict.fromkeys(_NOT_KEPT, "0") | self._status()
        for name in ("getTransferredTps", "getTransferedTps"):  # as 5.x and as 4.x spell it
            table[name] = "0.0 0.0 0.0"  # not counted, but the tools split it
        self._answer(connection, request, {"table": table})

    def config(self, connection: Connection, request: Command, _: float, __: int) -> None:
        """Answer GET_BROKER_CONFIG: the start configuration, as lines of a broker.conf."""
        lines = [f"{key}={value}\n" for key, value in sorted(self._config.properties.items())]
        self._outbox.answer(connection, request, body="".join(lines).encode())

    def refuse_config(self, connection: Connection, request: Command, _: float, __: int) -> None:
        """Refuse UPDATE_BROKER_CONFIG: a running broker's configuration cannot change."""
        remark = "the configuration is read at the start: change broker.conf and restart the node"
        self._outbox.refuse(connection, request, ResponseCode.NO_PERMISSION, remark)

    def _rates(self, now_ms: float) -> str:
        """Return messages a second over the last 10 s, minute and ten minutes, or since start."""
        texts = []
        for window_ms in _WINDOWS_MS:
            earlier = [one for one in self._samples if one[0] <= now_ms - window_ms]
            since_ms, count = (earlier or [*self._samples, (now_ms, 0)])[-1 if earlier else 0]
            passed_ms = now_ms - since_ms
            rate = (self._message_count - count) * 1000 / passed_ms if passed_ms else 0.0
            texts.append(f"{rate:.2f}")
        return " ".join(texts)

    @property
    def _message_count(self) -> int:
        """The number of messages ever dispatched: the sum of the max offsets."""
        return sum(end for _, end in self._reput.queues.ranges().values())

    @property
    def _offset_version(self) -> dict[str, int]:
        return _version(self._offset_events.version(OFFSET_QUEUE))

    def _answer(self, connection: Connection, request: Command, value: object) -> None:
        self._outbox.answer(connection, request, body=dumps(value, unquoted_integer_keys=True))


_NOT_KEPT = (
    "sendThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pageCacheLockTimeMills",
)
"""Sizes and waits of RocketMQ's thread pools, which this broker does not have."""


def _version(counter: int) -> dict[str, int]:
    """Return RocketMQ's DataVersion, which counts the applied changes."""
    return {"counter": counter, "stateVersion": 0, "timestamp": 0}


def group_config(name: str) -> dict[str, object]:
    """Return RocketMQ's default SubscriptionGroupConfig for a new group."""
    return {
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "groupName": name,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": RETRY_TIMES_MAX,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }

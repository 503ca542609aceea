"""Simulated clients: they carry out a schedule's calls and record the outcomes.

A client sends to the presumed leader, retries definite refusals with another member until its
timeout, and never retries an indeterminate operation (`system.client` does the same). Source:
RocketMQ's DefaultMQProducer; DESIGN.md decision 7.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Protocol

import msgspec

from shaketable.system.broker.delay_levels import SCHEDULE_TOPIC
from shaketable.system.broker.groups.group_offsets import OffsetEvent, offset_key
from shaketable.system.broker.reading.pulls import SUBSCRIPTION_FLAG, SUSPEND_FLAG
from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.protocol import Role
from shaketable.system.remoting.codes import RequestCode, ResponseCode, outcome_of
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import (
    PullMessage,
    QueryConsumerOffset,
    QueueOffsetRequest,
    SendMessageV2,
    SendRequest,
    UpdateConsumerOffset,
)
from shaketable.system.sim.event_heap import EventHeap
from shaketable.system.sim.key_queries import properties_of, tags_code
from shaketable.system.sim.member import SimMember
from shaketable.system.sim.rules.client_history import (
    APPEND,
    COMMIT,
    DELAY,
    FAIL,
    FETCH,
    MAX_OFFSET,
    OK,
    OPEN,
    PULL,
    STORED,
    UNKNOWN,
    WRITES,
    Operation,
    check_blame,
    check_filled,
    level_of,
)
from shaketable.system.sim.rules.invariants import Invariants
from shaketable.system.sim.run_trace import Counts
from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.sim.schedules.schedule import Call, Settings
from shaketable.system.store.group_events import EVENT_TOPIC, OFFSET_QUEUE
from shaketable.system.store.message import decode_message

TOPIC = "log"
TOPIC_BYTES = TOPIC.encode()
NOT_APPENDED = frozenset((DELAY, PULL, MAX_OFFSET, COMMIT, FETCH))
"""Kinds of calls that append no message to a client's queue."""
OPEN_OPERATIONS_MAX = 2_000
"""Most operations that one client has in flight; calls beyond it are skipped."""
RANDOM_TARGET_RATES = (0.0, 0.05, 0.4, 1.0)
"""How often a client starts a call at a random member, so that some stay with a replaced leader
while others use the new one. A client has one of these rates."""
VERIFY_RATES = (0.0, 0.2, 1.0)
"""How often a client whose append was acknowledged asks another member for the end at once."""
VERIFY_DELAY_MS = 0.1
RETRY_MIN_MS = 20.0
RETRY_MAX_MS = 100.0
_PREFIX = struct.Struct(">iI").unpack_from
_ASKED_MAX = (32, 32, 5, 64)
"""Most messages that a pull asks for; it follows from its number ..."""
_ASKED_BYTES_MAX = (None, 700, None, 6_000, 1)
"""... as do most bytes, if it limits them."""
_ASKED_TAGS = (None, None, "red", None, "green || größer", None, None)
"""The tags that a pull asks for, where messages have any; they follow from its number, too."""
_HELD_EVERY = 2
"""Every so-many-th pull may be held at the queue's end (long polling) ..."""
_HOLD_MAX_MS = 700
"""... for less than that; the time follows from its number."""
_MIXER = 2_654_435_761
_NOTHING_FOUND = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
_topics = attrgetter("_groups.topics")
_BIG_BYTES_MAX = 65_536
_BIG_SPREAD_BYTES = 300


class _Reply(msgspec.Struct, gc=False):
    """The header fields of a response that a client reads."""

    opaque: int
    code: int
    ext: dict[str, str] = msgspec.field(name="extFields", default_factory=dict)
    remark: str | None = None


_REPLY = msgspec.json.Decoder(_Reply)


def decode_reply(reply: bytes) -> _Reply:
    """Return the header of one encoded response."""
    body_at = 8 + (_PREFIX(reply)[1] & 0xFFFFFF)
    return _REPLY.decode(reply[8:body_at])


class ClientWorld(Protocol):
    """What clients need of the world they are in."""

    settings: Settings
    heap: EventHeap
    rngs: RandomStreams
    counts: Counts
    invariants: Invariants
    members: dict[str, SimMember]
    client_targets: list[str]
    """Members that clients may ask."""


class _Batch:
    """The operations of one call, which are sent and retried together."""

    __slots__ = ("client", "is_pipelined", "is_retrying", "refused")

    def __init__(self, client: Client, *, is_pipelined: bool) -> None:
        self.client = client
        self.is_pipelined = is_pipelined
        self.is_retrying = False
        self.refused: list[Operation] = []


class GroupOffsets:
    """A client's own consumer group: what it has committed in each queue.

    After a commit of unknown outcome it goes on with a new group: the old one's offset may change
    late, so nothing could be said of it. Of a queue one commit is open, or the same one twice.
    """

    __slots__ = ("_client", "_committed", "_number", "_open")

    def __init__(self, client: int) -> None:
        self._client = client
        self._number = 0
        self._committed: dict[int, int] = {}
        self._open: dict[int, int] = {}

    @property
    def name(self) -> str:
        """The group's name."""
        return f"group-{self._client}-{self._number}"

    def next(self, queue: int, *, again: bool) -> int | None:
        """Return the offset to commit now; None while another commit is open.

        Once, and if it is `again`, that offset is committed once more, as consumers do that have
        got no answer.
        """
        open_now = self._open.get(queue, 0)
        if open_now and not (again and open_now == 1):
            return None
        self._open[queue] = open_now + 1
        if open_now:
            return self._committed[queue]
        self._committed[queue] = self._committed.get(queue, 0) + 1
        return self._committed[queue]

    def ended(self, group: str, queue: int, outcome: str) -> None:
        """A commit ended."""
        if group != self.name:
            return
        self._open[queue] -= 1
        if outcome == UNKNOWN:
            self._number += 1
            self._committed.clear()
            self._open.clear()


class Client:
    """One client: its presumed leader, the queue ends that it knows, its open operations."""

    __slots__ = (
        "ends",
        "number",
        "offsets",
        "open",
        "random_target_rate",
        "rng",
        "target",
        "verify_rate",
    )

    def __init__(self, world: ClientWorld, number: int) -> None:
        self.number = number
        self.rng = world.rngs.stream(f"client/{number}")
        self.ends: dict[int, int] = {}
        self.offsets = GroupOffsets(number)
        self.open: dict[int, tuple[Operation, _Batch]] = {}
        self.target = ""
        self.random_target_rate = self.rng.choice(RANDOM_TARGET_RATES)
        self.verify_rate = self.rng.choice(VERIFY_RATES)


class Clients:
    """All clients of a world, and their history."""

    def __init__(self, world: ClientWorld, count: int) -> None:
        self._world = world
        self._clients = [Client(world, number) for number in range(count)]
        self._numbers = 0
        self._codes: dict[tuple[bytes, int], list[int]] = {}
        """The hash of the tags of each message of a queue, as far as a pull by tags has asked."""
        self._committed: dict[tuple[str, int], int] = {}
        """The groups' committed offsets, by topic and group, and queue."""
        self._events_seen = 0
        self.history: list[Operation] = []

    # ---- calls ------------------------------------------------------------------------

    def call(self, call: Call) -> None:
        """Make a call of the schedule."""
        client = self._clients[call.client % len(self._clients)]
        if len(client.open) + call.count > OPEN_OPERATIONS_MAX:
            return
        at = client.offsets.next(call.queue, again=is_again(call)) if call.kind == COMMIT else -1
        if at is None:
            return
        heap = self._world.heap
        if not client.target or client.rng.random() < client.random_target_rate:
            client.target = client.rng.choice(self._world.client_targets)
        batch = _Batch(client, is_pipelined=call.kind == "append")
        operations = [self._operation(client, call) for _ in range(call.count)]
        if call.kind == COMMIT:
            operations[0].end = at
        for operation in operations:
            client.open[operation.number] = (operation, batch)
        self._world.counts.operations += len(operations)
        self._send(client, batch, operations)
        heap.push(heap.now_ms + self._world.settings.client_timeout_ms, self._time_out, client,
                  operations)  # fmt: skip

    def _operation(self, client: Client, call: Call) -> Operation:
        self._numbers += 1
        kind = call.kind if call.kind in NOT_APPENDED else APPEND
        offset = max(0, client.ends.get(call.queue, 0) - call.back) if kind == PULL else -1
        group = group_of(call, client.number, [each.offsets for each in self._clients])
        now_ms = self._world.heap.now_ms
        operation = Operation(self._numbers, client.number, kind, call.queue, offset, now_ms, group)
        if kind in STORED:
            body_bytes = body_bytes_of(self._numbers, call.body_bytes, self._world.settings)
            operation.body = b"%d." % self._numbers + bytes(max(0, body_bytes - 8))
        self.history.append(operation)
        return operation

    def _send(self, client: Client, batch: _Batch, operations: list[Operation]) -> None:
        """Send to the presumed leader: all in one piece, or one by one if pipelined."""
        world = self._world
        member = world.members.get(client.target)
        if member is None:
            self._switch_target(client, "")
            member = world.members[client.target]
        for operation in operations:
            operation.node = member.name
        requests = [_request(operation, world.settings) for operation in operations]
        at_ms = world.heap.now_ms + world.settings.client_delay_ms
        if batch.is_pipelined:
            for request in requests:
                world.heap.push(at_ms, self._arrive, member, client, [request])
        else:
            world.heap.push(at_ms, self._arrive, member, client, requests)

    def _arrive(
        self, member: SimMember, client: Client, requests: list[SendRequest | Command]
    ) -> None:
        if member.is_up:
            for request in requests:
                found = client.open.get(request.opaque)
                if found is not None and _may_be_held(found[0]):
                    found[0].arrival = _holding(member)
            member.handle(client.number, requests)
            return
        for request in requests:  # connection refused: definitely not done
            found = client.open.get(request.opaque)
            if found is not None:
                self._refused(client, *found, "")

    # ---- answers ----------------------------------------------------------------------

    def reply(self, member: SimMember, connection: int, replies: list[bytes]) -> None:
        """Receive a member's replies, and check at once what they acknowledge. Raises Violated.

        The check is at sending, since the committed state may have grown when the client reads it.
        """
        client = self._clients[connection]
        heap, invariants = self._world.heap, self._world.invariants
        arrived: list[tuple[_Reply, bytes]] = []
        for reply in replies:
            length, word = _PREFIX(reply)
            body_at = 8 + (word & 0xFFFFFF)
            header = _REPLY.decode(reply[8:body_at])
            body = reply[body_at:]
            assert len(reply) == 4 + length
            found = client.open.get(header.opaque)
            if found is not None and header.code != 0:
                check_blame(found[0], header.code, header.remark)
            if found is not None:
                operation = found[0]
                if operation.kind == PULL and header.code in (0, *_NOTHING_FOUND):
                    self._pulled(operation, member, header, body)
                elif operation.kind in STORED and header.code == 0:
                    offset = int(header.ext["queueOffset"])
                    invariants.acknowledged(stored_in(operation), offset, operation.body)
                elif operation.kind == COMMIT and header.code == 0:
                    self._check_committed(operation)
            arrived.append((header, body))
        heap.push(heap.now_ms + self._world.settings.client_delay_ms, self._answered, member.name,
                  client, arrived)  # fmt: skip

    def _check_committed(self, commit: Operation) -> None:
        """Raise Violated where a group's offset is acknowledged that is not committed."""
        stored = self._world.invariants.queues.get((EVENT_TOPIC, OFFSET_QUEUE), [])
        for message in filter(None, stored[self._events_seen :]):
            for key, offsets in msgspec.json.decode(decode_message(message).body, type=OffsetEvent):
                self._committed.update({(key, queue): offset for queue, offset in offsets})
        self._events_seen = len(stored)
        has = self._committed.get((offset_key(commit.group, TOPIC), commit.queue), -1)
        if has < commit.end:
            text = f"{commit!r} is acknowledged, the group's committed offset is {has}"
            raise Violated("acknowledged-is-committed", text)

    def _pulled(self, pull: Operation, member: SimMember, answer: _Reply, body: bytes) -> None:
        """Check what a pull brought, or that it was held. Raises Violated."""
        next_offset = int(answer.ext["nextBeginOffset"])
        codes = _codes_of(pull.number) if self._world.settings.keyed else None
        # A pull by tags that skipped messages without them is answered at once.
        if answer.code != 0 and (codes is None or next_offset <= pull.offset):
            _check_held(pull, member)
            return
        queue = (TOPIC_BYTES, pull.queue)
        is_wanted = None if codes is None else lambda at: self._code_at(queue, at) in codes
        self._world.invariants.pulled(queue, pull.offset, next_offset, body, is_wanted)
        self._check_filled(pull, next_offset, int(answer.ext["maxOffset"]), is_wanted)

    def _check_filled(
        self,
        pull: Operation,
        next_offset: int,
        max_offset: int,
        is_wanted: Callable[[int], bool] | None,
    ) -> None:
        """Check that the pull brought what waited, within its limits and the broker's."""
        settings = self._world.settings
        stored = self._world.invariants.queues.get((TOPIC_BYTES, pull.queue), [])
        brought: Iterable[int] = range(pull.offset, next_offset)
        left: Iterable[int] = range(next_offset, min(max_offset, len(stored)))
        asked, asked_bytes = _limits_of(pull.number)
        count_max = min(asked, settings.pull_messages_max)
        if is_wanted is not None:
            brought, left = filter(is_wanted, brought), filter(is_wanted, left)
            if next_offset - pull.offset >= max(count_max, settings.filtered_units_max):
                left = ()  # as far as one pull looks
        check_filled(
            [len(stored[at]) for at in brought],
            next((len(stored[at]) for at in left), None),
            count_max,
            min(asked_bytes or settings.pull_bytes_max, settings.pull_bytes_max),
        )

    def _code_at(self, queue: tuple[bytes, int], offset: int) -> int:
        """Return the hash of the tags of a committed message."""
        codes = self._codes.setdefault(queue, [])
        stored = self._world.invariants.queues[queue]
        for message in stored[len(codes) : offset + 1]:
            codes.append(tags_code(decode_message(message).properties) if message else 0)
        return codes[offset]

    def _answered(self, node: str, client: Client, replies: list[tuple[_Reply, bytes]]) -> None:
        acknowledged: Operation | None = None
        for header, _ in replies:
            found = client.open.get(header.opaque)
            if found is None or found[0].node != node:
                continue
            operation, batch = found
            outcome = outcome_of(header.code)
            if outcome == OK:
                self._done(client, operation, header.ext)
                if operation.kind in WRITES:
                    acknowledged = operation
            elif outcome == FAIL:
                self._refused(client, operation, batch, header.ext.get("leaderId", ""))
            elif operation.kind in WRITES:
                self._end(client, operation, UNKNOWN)
            else:
                self._refused(client, operation, batch, "")

        if acknowledged and client.verify_rate and client.rng.random() < client.verify_rate:
            heap = self._world.heap
            heap.push(heap.now_ms + VERIFY_DELAY_MS, self._verify, client, node, acknowledged)

    def _verify(self, client: Client, node: str, done: Operation) -> None:
        """Ask another member for what was written: it must not be stale.

        One that still holds itself for the leader is asked first: it would answer.
        """
        others = [name for name in self._world.client_targets if name != node]
        others = [name for name in others if self._leads(name)] or others
        if others:
            client.target = client.rng.choice(others)
            kind = FETCH if done.kind == COMMIT else MAX_OFFSET
            at_ms, number = int(self._world.heap.now_ms), client.number
            self.call(Call(at_ms, number, kind, done.queue, back=number))

    def _leads(self, name: str) -> bool:
        member = self._world.members.get(name)
        return member is not None and member.is_up and member.core.role is Role.LEADER

    def _done(self, client: Client, operation: Operation, ext: dict[str, str]) -> None:
        if operation.kind == APPEND:
            operation.offset = int(ext["queueOffset"])
            end = operation.offset + 1
            self._world.counts.acknowledged += 1
        elif operation.kind == DELAY:
            operation.offset = int(ext["queueOffset"])
            self._world.counts.acknowledged += 1
            self._end(client, operation, OK)
            return
        elif operation.kind in (COMMIT, FETCH):
            if operation.kind == FETCH:
                operation.end = int(ext.get("offset", 0))  # no fields: nothing was committed
            self._end(client, operation, OK)
            return
        else:
            self._world.counts.reads += 1
            if operation.kind == PULL:
                end = operation.end = int(ext["maxOffset"])
                operation.count = int(ext["nextBeginOffset"]) - operation.offset
            else:
                end = operation.end = int(ext["offset"])
        client.ends[operation.queue] = max(end, client.ends.get(operation.queue, 0))
        self._end(client, operation, OK)

    def _refused(self, client: Client, operation: Operation, batch: _Batch, leader: str) -> None:
        """The operation was definitely not done: retry it a little later with another member."""
        operation.node = ""
        batch.refused.append(operation)
        if not batch.is_retrying:
            batch.is_retrying = True
            self._switch_target(client, leader)
            heap = self._world.heap
            wait_ms = client.rng.uniform(RETRY_MIN_MS, RETRY_MAX_MS)
            heap.push(heap.now_ms + wait_ms, self._retry, client, batch)

    def _retry(self, client: Client, batch: _Batch) -> None:
        batch.is_retrying = False
        operations = [operation for operation in batch.refused if operation.outcome == OPEN]
        batch.refused = []
        if operations:
            self._send(client, batch, operations)

    def _switch_target(self, client: Client, leader: str) -> None:
        """Switch to the named leader, or else to a random member."""
        targets = self._world.client_targets
        if leader in targets and leader != client.target:
            client.target = leader
        else:
            client.target = client.rng.choice(targets)

    def _time_out(self, client: Client, operations: list[Operation]) -> None:
        for operation in operations:
            if operation.outcome == OPEN:
                if operation.node == client.target:
                    self._switch_target(client, "")
                # An append that was refused and not sent again definitely failed.
                is_known = operation.kind not in WRITES or not operation.node
                self._end(client, operation, FAIL if is_known else UNKNOWN)

    def disconnected(self, name: str) -> None:
        """A member's process ended: appends that it has not answered are indeterminate."""
        for client in self._clients:
            for operation, batch in list(client.open.values()):
                if operation.node == name:
                    if operation.kind in WRITES:
                        self._end(client, operation, UNKNOWN)
                    else:
                        self._refused(client, operation, batch, "")

    def _end(self, client: Client, operation: Operation, outcome: str) -> None:
        operation.outcome = outcome
        operation.end_ms = self._world.heap.now_ms
        if operation.kind == COMMIT:
            client.offsets.ended(operation.group, operation.queue, outcome)
        del client.open[operation.number]
        if outcome == FAIL:
            self._world.counts.refused += 1
        elif outcome == UNKNOWN:
            self._world.counts.unknown += 1


def is_again(call: Call) -> bool:
    """Whether a commit is of the offset that is being committed, if one is."""
    return call.back % 2 == 0


def group_of(call: Call, client: int, offsets: Sequence[GroupOffsets]) -> str:
    """Return the group that a commit or fetch is of; "" for other calls."""
    if call.kind == COMMIT:
        return offsets[client].name
    return offsets[call.back % len(offsets)].name if call.kind == FETCH else ""


def _request(operation: Operation, settings: Settings) -> SendRequest | Command:
    keyed = settings.keyed
    if operation.kind in STORED:
        fields = SendMessageV2("simulated", TOPIC, operation.queue)
        if operation.kind == DELAY:
            fields.properties = delayed_properties(operation)
        elif keyed:
            fields.properties = properties_of(operation.number, keyed)
        return SendRequest(operation.number, 0, fields, memoryview(operation.body), 0)
    if operation.kind == PULL:
        count_max, bytes_max = _limits_of(operation.number)
        pull = PullMessage("simulated", TOPIC, operation.queue, operation.offset, count_max)
        pull.max_msg_bytes = bytes_max
        if keyed and (tags := _tags_of(operation.number)):
            pull.subscription, pull.sys_flag = tags, SUBSCRIPTION_FLAG
        if _may_be_held(operation):
            pull.sys_flag |= SUSPEND_FLAG
            pull.suspend_timeout_millis = _hold_ms(operation.number)
        return Command(RequestCode.PULL_MESSAGE, operation.number, ext=pull.to_ext())
    if operation.kind == COMMIT:
        commit = UpdateConsumerOffset(operation.group, TOPIC, operation.queue, operation.end)
        return Command(RequestCode.UPDATE_CONSUMER_OFFSET, operation.number, ext=commit.to_ext())
    if operation.kind == FETCH:
        fetch = QueryConsumerOffset(operation.group, TOPIC, operation.queue, False)
        return Command(RequestCode.QUERY_CONSUMER_OFFSET, operation.number, ext=fetch.to_ext())
    asked = QueueOffsetRequest(TOPIC, operation.queue)
    return Command(RequestCode.GET_MAX_OFFSET, operation.number, ext=asked.to_ext())


def delayed_properties(operation: Operation) -> str:
    """Return the properties of a delayed message."""
    return f"DELAY\x01{level_of(operation.number)}\x02"


def stored_in(operation: Operation) -> tuple[bytes, int]:
    """Return the queue in which an operation's message is stored at first."""
    if operation.kind == DELAY:
        return SCHEDULE_TOPIC, level_of(operation.number) - 1
    return TOPIC_BYTES, operation.queue


def _holding(member: SimMember) -> tuple[float, tuple[object, ...]]:
    """Return a member's clock, and what may not change while it holds a pull."""
    broker = member.broker
    is_ready = _topics(broker).is_ready
    core = member.core
    return member.local_ms(), (member.incarnation, broker.queues, is_ready, core.term, core.role)


def _check_held(pull: Operation, member: SimMember) -> None:
    """Raise Violated where a pull that found nothing was not held for as long as it may be."""
    if not _may_be_held(pull) or pull.arrival is None:
        return
    (before_ms, before), (now_ms, now) = pull.arrival, _holding(member)
    held_ms, hold_ms = now_ms - before_ms, _hold_ms(pull.number)
    if before == now and held_ms < hold_ms - 1:
        raise Violated(
            "held-pulls-wait", f"{pull!r} found nothing after {held_ms:.0f} of {hold_ms} ms"
        )


def _may_be_held(operation: Operation) -> bool:
    """Whether an operation is a pull that may be held at the queue's end."""
    return operation.kind == PULL and operation.number % _HELD_EVERY == 0


def _hold_ms(number: int) -> int:
    """Return for how long pull `number` may be held."""
    return number * _MIXER // 65_536 % _HOLD_MAX_MS


def _tags_of(number: int) -> str | None:
    """Return which tags pull `number` asks for; None: for every message."""
    return _ASKED_TAGS[number % len(_ASKED_TAGS)]


def _codes_of(number: int) -> frozenset[int] | None:
    """Return the hashes of the tags that pull `number` asks for."""
    tags = _tags_of(number)
    if tags is None:
        return None
    return frozenset(tags_code(f"TAGS\x01{tag}".encode()) for tag in tags.split(" || "))


def _limits_of(number: int) -> tuple[int, int | None]:
    """Return the most messages, and bytes, that pull `number` asks for."""
    return _ASKED_MAX[number // 2 % len(_ASKED_MAX)], _ASKED_BYTES_MAX[
        number % len(_ASKED_BYTES_MAX)
    ]


def body_bytes_of(number: int, body_bytes: int, settings: Settings) -> int:
    """Return the body size of append `number`: some nearly fill a data file, or exceed it."""
    if settings.big_every and number % settings.big_every == 0:
        room = min(settings.data_file_bytes, _BIG_BYTES_MAX)
        return room - _BIG_SPREAD_BYTES + number // settings.big_every * 37 % _BIG_SPREAD_BYTES
    return body_bytes


def stored_numbers(messages: list[bytes]) -> list[int]:
    """Return the number of the append that each stored message came from."""
    numbers = []
    for message in messages:
        number, dot, _ = message[88:108].partition(b".")
        if not dot:
            raise Violated("stored-is-sent", "a stored message is not what a client sent")
        numbers.append(int(number))
    return numbers

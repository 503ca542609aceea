"""Invalid requests of operators and clients, with the code of their refusal.

Each is sent to the current leader, and is refused whatever happens to the group meanwhile. Requests
whose validity depends on the members of the moment are not among them.

Source: RocketMQ's AdminBrokerProcessor and TopicValidator (names of topics, system topics),
SendMessageProcessor (a topic that may not be written), RouteInfoManager; Ongaro's dissertation,
section 4 (membership changes) and 3.10 (leadership is transferred to a voter).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shaketable.system.client import (
    AdminClient,
    GroupMembership,
    MessageQueue,
    Producer,
    PullConsumer,
    RefusedError,
    ResponseCode,
    brokers,
)

UNKNOWN_MEMBER: Final = "n909"
"""A member id that no group has."""
UNKNOWN_ADDRESS: Final = "127.0.0.1:9"
SYSTEM_TOPICS: Final = ("TBW102", "SCHEDULE_TOPIC_XXXX")
READ_ONLY, WRITE_ONLY, GONE = "readonly", "writeonly", "gone"
"""Suffixes of topic names: of a topic that may only be read, that may only be written, and of those
that are created to be deleted."""
PERM_READ, PERM_WRITE = 4, 2
SPREAD: Final = "spread"
"""Suffix of the topic whose queues the producer chooses."""
SPREAD_QUEUES: Final = 3
NEW: Final = "new"
"""Part of the names of topics that are created by their first message."""
NEW_TOPICS: Final = 6
NEW_TIMES: Final = 12
"""So many messages are sent to one: more than a new topic has queues."""
SPREAD_TIMES: Final = 4
"""So many messages are sent for each of its queues."""
RETRY: Final = "%RETRY%"
DELAYED: Final = "DELAY\x011\x02"
"""Properties of a delayed message."""
TRY_AGAIN = "NO_MATCHED_MSG"
"""The status of PULL_RETRY_IMMEDIATELY, which no leader answers to a pull without a filter."""
MESSAGE_BYTES_MAX: Final = (4 << 20) - 4096
"""Largest message body that brokers take; with some properties it exceeds a log entry."""
PROPERTY_BYTES: Final = 8192
NOT_NOW: Final = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
        ResponseCode.TOPIC_NOT_EXIST,
    )
)
"""Transient refusals, which say nothing about the request: no leader, a full disk, or a name server
that does not know the topic yet.
"""
NOT_DONE: Final = 1
"""The code of a request that had no effect without being refused; no refusal has this code."""
TOOK_EFFECT: Final = 0
"""The code of a request that was not refused, RocketMQ's SUCCESS."""


@dataclass(frozen=True, slots=True)
class Asker:
    """What requests are sent with: clients of the brokers, and one of the current leader.

    `unique` is part of a name that is used nowhere else, `names` are the name servers.
    """

    producer: Producer
    consumer: PullConsumer
    admin: AdminClient
    topic: str
    broker: str
    leader: str
    consumer_of: Callable[[str], PullConsumer]
    membership_of: Callable[[PullConsumer, str, str], GroupMembership]
    topics_max: int
    group_members_max: int
    unique: str
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class InvalidRequest:
    """One request that must be refused with a code."""

    label: str
    code: int
    ask: Callable[[Asker], Awaitable[object]]


async def code_of(request: InvalidRequest, asker: Asker) -> int:
    """Send the request; return the code of the refusal, TOOK_EFFECT if it was not refused.

    Raises RefusedError if the refusal says nothing about the request, and OutcomeUnknownError.
    """
    try:
        await request.ask(asker)
    except RefusedError as error:
        if error.code < 0 or (error.code in NOT_NOW and error.code != request.code):
            raise
        return error.code
    return TOOK_EFFECT


@contextmanager
def _to_prepare() -> Iterator[None]:
    """Run a preparing step: its refusal says nothing about the request itself."""
    try:
        yield
    except RefusedError as error:
        raise RefusedError(-1, str(error)) from error


async def _leads(asker: Asker) -> bool:
    """Return whether the node at the leader's address says, asked once, that it leads now."""
    client = asker.admin.client
    (member,) = client.members
    return (await client.metadata(member)).role == "leader"


async def _write_where_only_reads_are_allowed(asker: Asker) -> None:
    topic = f"{asker.topic}-{READ_ONLY}"
    with _to_prepare():  # each time: a broker that lost its disk lost its topics too
        await asker.producer.create_topic(topic, 1, perm=PERM_READ)
    # The topic is its own pattern, so that a master that has lost it since, or that did not get it
    # because it was not registered, does not create it for this message.
    queue = MessageQueue(topic, asker.broker, 0)
    await asker.producer.send(topic, b"0", queue=queue, create_topic_key=topic)


async def _send_back_where_only_reads_are_allowed(asker: Asker) -> None:
    """Send a message back to a group whose retry topic may only be read.

    That it was taken counts only if the topic still refuses other messages: a broker that lost its
    disk meanwhile has created the topic anew.
    """
    group = f"{asker.topic}-{READ_ONLY}"
    topic, queue = f"{RETRY}{group}", MessageQueue(asker.topic, asker.broker, 0)
    with _to_prepare():
        await asker.producer.create_topic(topic, 1, perm=PERM_READ)
        first = await asker.consumer.min_offset(queue)
        pulled = await asker.consumer.pull(queue, first, count_max=1)
        if not pulled.messages:
            raise RefusedError(-1, "there is no message yet")
    await asker.consumer.send_back(queue, pulled.messages[0].physical_offset, group=group)
    with _to_prepare():
        try:
            own = MessageQueue(topic, queue.broker_name, 0)
            await asker.producer.send(topic, b"0", queue=own, create_topic_key=topic)
        except RefusedError as error:
            if error.code == ResponseCode.NO_PERMISSION:
                return
            raise
        raise RefusedError(-1, "the topic may be written by now")


async def _read_where_only_writes_are_allowed(asker: Asker) -> None:
    topic = f"{asker.topic}-{WRITE_ONLY}"
    with _to_prepare():
        await asker.producer.create_topic(topic, 1, perm=PERM_WRITE)
    pulled = await asker.consumer.pull(MessageQueue(topic, asker.broker, 0), 0)
    # A member that does not lead checks no topic: it answers "try again at once", and a slave has
    # nothing. Neither proves that the leader would have served the pull.
    if pulled.status == TRY_AGAIN or asker.consumer.last_address != asker.leader:
        raise RefusedError(-1, "the leader did not answer")
    # A master that lost its disk comes back as a slave, at the same address.
    with _to_prepare():
        if not await _leads(asker):
            raise RefusedError(-1, "who answered does not lead")


async def _read_what_is_gone(asker: Asker) -> None:
    """Read from a topic that was deleted, at a broker: the client still has the route.

    Each call uses another topic, so that no client recreates one that another deletes.
    """
    topic = f"{asker.topic}-{GONE}-{asker.unique}"
    queue = MessageQueue(topic, asker.broker, 0)
    with _to_prepare():
        await asker.producer.create_topic(topic, 1)
        await asker.consumer.pull(queue, 0)
        await asker.producer.delete_topic(topic)
    await asker.consumer.pull(queue, 0)
    # Proves nothing: a slave may have answered, or a master that the deletion did not reach.
    raise RefusedError(-1, "who answers has not heard that the topic is gone")


def _send(body_bytes: int, property_bytes: int = 0) -> Callable[[Asker], Awaitable[object]]:
    """Return a request that sends a message of that size to the topic's first queue."""
    properties = {"LONG": "x" * property_bytes} if property_bytes else None

    def ask(asker: Asker) -> Awaitable[object]:
        queue = MessageQueue(asker.topic, asker.broker, 0)
        body = bytes(body_bytes)
        return asker.producer.send(asker.topic, body, queue=queue, properties=properties)

    return ask


async def _make_too_many_topics(asker: Asker) -> None:
    """Create one topic more than allowed, beside the existing ones.

    That none was refused counts only if the leader has all of them: one that lost its disk
    meanwhile had room again.
    """
    names = [f"{asker.topic}-more-{number}" for number in range(asker.topics_max + 1)]
    try:
        for name in names:
            await asker.producer.create_topic(name, 1)
    except RefusedError as error:
        if error.code != ResponseCode.NO_PERMISSION:
            raise RefusedError(-1, str(error)) from error
        raise
    with _to_prepare():
        missing = set(names) - await asker.consumer.topics(asker.leader)
        if missing:
            raise RefusedError(-1, f"the leader has lost {len(missing)} of the topics")


async def _crowd_a_group(asker: Asker) -> None:
    """Add one client more to a group than allowed; the last one is refused.

    Brokers that restarted meanwhile have forgotten some clients; their answer does not count.
    """
    group = f"{asker.topic}-crowd"
    crowd = asker.consumer_of(group)
    members = [
        asker.membership_of(crowd, f"{group}-{number}", asker.topic)
        for number in range(asker.group_members_max + 1)
    ]
    try:
        for member in members:
            await member.heartbeat()
        known = await members[0].members(asker.leader)
    finally:
        crowd.close()
    if len(known) == asker.group_members_max:
        raise RefusedError(NOT_DONE, "the group is full")
    if len(known) < asker.group_members_max:
        raise RefusedError(-1, f"{len(known)} clients are known")


async def _stay_in_a_group_that_was_left(asker: Asker) -> None:
    """Leave a group while the connection stays open, and check that it no longer lists this client.

    Only the answer of a broker that listed this client and then acknowledged the leave counts. The
    group's name is unique, so no other client is in it.
    """
    group = f"{asker.topic}-left-{asker.unique}"
    consumer = asker.consumer_of(group)
    member = asker.membership_of(consumer, group, asker.topic)
    try:
        with _to_prepare():
            await member.heartbeat()
            is_listed = group in await member.members(asker.leader)
            is_told = asker.leader in await member.leave()
        if not is_listed or not is_told:
            raise RefusedError(-1, "the leader did not get it")
        try:
            is_listed = group in await member.members(asker.leader)
        except RefusedError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise RefusedError(-1, str(error)) from error
            is_listed = False  # the answer for a group without clients
    finally:
        consumer.close()
    if not is_listed:
        raise RefusedError(NOT_DONE, "the group does not list who left it")


async def _leave_out_a_queue(asker: Asker) -> None:
    """Send without a queue, and look whether one of a broker's is never chosen.

    A queue that was missed by chance, because a broker refused some messages, is not missed by so
    many of them.
    """
    topic = f"{asker.topic}-{SPREAD}"
    with _to_prepare():
        known = await brokers(asker.names)
        await asker.producer.create_topic(topic, SPREAD_QUEUES)
        queues = await asker.consumer.queues(topic)
        sent = [
            await asker.producer.send(topic, b"spread") for _ in range(SPREAD_TIMES * len(queues))
        ]
    chosen = Counter(each.queue for each in sent)
    for name in known:
        own = [queue for queue in queues if queue.broker_name == name]
        times = [chosen[queue] for queue in own]
        if sum(times) >= SPREAD_TIMES * len(own) and not all(times):
            return
    raise RefusedError(NOT_DONE, "every queue is chosen")


async def _miss_the_queues_of_a_new_topic(asker: Asker) -> None:
    """Send to a topic that the first message creates; the producer chooses queues that it gets."""
    number = int.from_bytes(asker.unique.encode(), "big") % NEW_TOPICS
    try:
        for _ in range(NEW_TIMES):
            await asker.producer.send(f"{asker.topic}-{NEW}-{number}", b"new")
    except RefusedError as error:
        if error.code != ResponseCode.MESSAGE_ILLEGAL:
            raise RefusedError(-1, str(error)) from error
        raise
    raise RefusedError(NOT_DONE, "every queue is there")


async def _add_the_leader(asker: Asker) -> None:
    """Add the current leader; a broker without a group has no members, and accepts none."""
    leader = await asker.admin.membership()
    member = leader.member if leader.voters else UNKNOWN_MEMBER
    await asker.admin.add_member(member, UNKNOWN_ADDRESS)


async def _remove_the_only_voter(asker: Asker) -> None:
    """Remove the only voter of a group of one; in other groups, a non-member."""
    leader = await asker.admin.membership()
    member = leader.member if leader.voters == (leader.member,) else UNKNOWN_MEMBER
    await asker.admin.remove_member(member)


def _invalid_requests() -> tuple[InvalidRequest, ...]:
    """Return the invalid requests about topics, messages and groups."""
    illegal, forbidden = ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION

    def made(topic: str, queues: int = 1, perm: int = 6) -> Callable[[Asker], Awaitable[object]]:
        return lambda asker: asker.producer.create_topic(topic, queues, perm=perm)

    def deleted(topic: str) -> Callable[[Asker], Awaitable[object]]:
        return lambda asker: asker.producer.delete_topic(topic)

    made_anew = (InvalidRequest(f"make {each} anew", illegal, made(each)) for each in SYSTEM_TOPICS)
    gone = (InvalidRequest(f"delete {each}", illegal, deleted(each)) for each in SYSTEM_TOPICS)
    return (
        *made_anew,
        *gone,
        InvalidRequest("make a topic with a name of blanks", illegal, made("no name")),
        InvalidRequest("make a topic with too long a name", illegal, made("long" * 64)),
        InvalidRequest("make a topic without queues", illegal, made("no-queues", 0)),
        InvalidRequest("make a topic of unknown permissions", illegal, made("odd", perm=99)),
        InvalidRequest("delete a topic with a name of blanks", illegal, deleted("no name")),
        InvalidRequest(
            "send to a topic that may only be read", forbidden, _write_where_only_reads_are_allowed
        ),
        InvalidRequest(
            "send to a queue that the topic has not",
            illegal,
            lambda asker: asker.producer.send(
                asker.topic, b"0", queue=MessageQueue(asker.topic, asker.broker, 4095)
            ),
        ),
        InvalidRequest(
            "read a topic that may only be written", forbidden, _read_where_only_writes_are_allowed
        ),
        InvalidRequest(
            "read a topic that was deleted", ResponseCode.TOPIC_NOT_EXIST, _read_what_is_gone
        ),
        InvalidRequest(
            "send a message back to a topic that may only be read",
            forbidden,
            _send_back_where_only_reads_are_allowed,
        ),
        InvalidRequest(
            "append to a retry topic on a condition",
            illegal,
            lambda asker: asker.admin.client.send_at(f"{RETRY}{asker.topic}-consumers", 0, b"0", 0),
        ),
        InvalidRequest(
            "append later, on a condition",
            illegal,
            lambda asker: asker.admin.client.send_at(asker.topic, 0, b"0", 0, properties=DELAYED),
        ),
        InvalidRequest("stay in a group that was left", NOT_DONE, _stay_in_a_group_that_was_left),
        InvalidRequest("leave out a queue of a topic", NOT_DONE, _leave_out_a_queue),
        InvalidRequest(
            "choose a queue that a new topic has not", NOT_DONE, _miss_the_queues_of_a_new_topic
        ),
        InvalidRequest("send a message that is too large", illegal, _send(MESSAGE_BYTES_MAX + 1)),
        InvalidRequest(
            "send too large an entry", illegal, _send(MESSAGE_BYTES_MAX, PROPERTY_BYTES)
        ),
    )


def _invalid_changes() -> tuple[InvalidRequest, ...]:
    """Return the invalid changes of the group's members and of its leader."""
    illegal, forbidden = ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION

    def added(member: str, address: str) -> Callable[[Asker], Awaitable[object]]:
        return lambda asker: asker.admin.add_member(member, address)

    return (
        InvalidRequest(
            "add a member with an id of blanks", illegal, added("no id", UNKNOWN_ADDRESS)
        ),
        InvalidRequest("add a member without a host", illegal, added(UNKNOWN_MEMBER, ":9")),
        InvalidRequest(
            "add a member of a host of blanks", illegal, added(UNKNOWN_MEMBER, "no host:9")
        ),
        InvalidRequest(
            "add a member without a port", illegal, added(UNKNOWN_MEMBER, "127.0.0.1:0")
        ),
        InvalidRequest("add the leader", forbidden, _add_the_leader),
        InvalidRequest("remove the only voter", forbidden, _remove_the_only_voter),
        InvalidRequest(
            "remove a node that is no member",
            forbidden,
            lambda asker: asker.admin.remove_member(UNKNOWN_MEMBER),
        ),
        InvalidRequest(
            "transfer leadership to a node that is no member",
            forbidden,
            lambda asker: asker.admin.transfer_leadership(UNKNOWN_MEMBER),
        ),
    )


INVALID_REQUESTS: Final = (*_invalid_requests(), *_invalid_changes())
BEYOND_LIMITS: Final = (
    InvalidRequest(
        "make more topics than there may be", ResponseCode.NO_PERMISSION, _make_too_many_topics
    ),
    InvalidRequest("have more clients in a group than there may be", NOT_DONE, _crowd_a_group),
)
"""Additional requests to brokers with low limits."""
TOPICS_LOW: Final = 48
GROUP_MEMBERS_LOW: Final = 20
TOPICS_KEY: Final = "shaketableTopicsMax"
GROUP_MEMBERS_KEY: Final = "shaketableGroupMembersMax"


def limits_of(options: Mapping[str, object]) -> dict[str, str | int | Path]:
    """Return lines of a broker.conf: low limits where a campaign's options ask for them."""
    if options.get("limits") != "low":
        return {}
    return {TOPICS_KEY: TOPICS_LOW, GROUP_MEMBERS_KEY: GROUP_MEMBERS_LOW}

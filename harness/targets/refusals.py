"""What an operator, or a client, asks for that must be refused, and with which code.

Each is asked of whoever leads. It is refused as it stands, whatever happens to the group meanwhile:
what is true of the members now and false a moment later is not asked here.

Source: RocketMQ's AdminBrokerProcessor and TopicValidator (names of topics, system topics),
SendMessageProcessor (a topic that may not be written), RouteInfoManager; Ongaro's dissertation,
section 4 (changes of members) and 3.10 (a leader hands over to a voter).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
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
)

STRANGER: Final = "n909"
"""No group ever has a member of that id."""
STRANGERS_ADDRESS: Final = "127.0.0.1:9"
SYSTEM_TOPICS: Final = ("TBW102", "SCHEDULE_TOPIC_XXXX")
READ_ONLY, WRITE_ONLY, GONE = "readonly", "writeonly", "gone"
"""Behind the name of a topic: those of one that may be read only, or written only, and of those
that are made to be deleted."""
PERM_READ, PERM_WRITE = 4, 2
MESSAGE_BYTES_MAX: Final = (4 << 20) - 4096
"""Of a message's body, as brokers take it; with some properties it fits no entry of a log."""
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
"""Refusals that say nothing of what was asked for: nobody leads, a disk is full, a name server has
not heard of the topic yet."""
NOT_DONE: Final = 1
"""The code of what was not done, where no refusal says so: none that refusals have."""
TOOK_EFFECT: Final = 0
"""The code of what was not refused, RocketMQ's SUCCESS."""


@dataclass(frozen=True, slots=True)
class Asker:
    """With what it is asked: clients of the brokers, and one of whoever leads now.

    `unique` is part of a name that nobody else gives to anything.
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


@dataclass(frozen=True, slots=True)
class Misrequest:
    """One request that must be refused with a code."""

    told: str
    code: int
    ask: Callable[[Asker], Awaitable[object]]


async def code_of(misrequest: Misrequest, asker: Asker) -> int:
    """Ask for it; return the code of the refusal, TOOK_EFFECT if it was done.

    Raises RefusedError where that says nothing of what was asked for, OutcomeUnknownError.
    """
    try:
        await misrequest.ask(asker)
    except RefusedError as error:
        if error.code < 0 or (error.code in NOT_NOW and error.code != misrequest.code):
            raise
        return error.code
    return TOOK_EFFECT


@contextmanager
def _to_prepare() -> Iterator[None]:
    """Do what comes before: a refusal of it says nothing of what is asked."""
    try:
        yield
    except RefusedError as error:
        raise RefusedError(-1, str(error)) from error


async def _write_where_only_reads_are_allowed(asker: Asker) -> None:
    topic = f"{asker.topic}-{READ_ONLY}"
    with _to_prepare():  # each time: a broker that lost its disk lost its topics as well
        await asker.producer.create_topic(topic, 1, perm=PERM_READ)
    await asker.producer.send(topic, b"0", queue=MessageQueue(topic, asker.broker, 0))


async def _read_where_only_writes_are_allowed(asker: Asker) -> None:
    topic = f"{asker.topic}-{WRITE_ONLY}"
    with _to_prepare():
        await asker.producer.create_topic(topic, 1, perm=PERM_WRITE)
    await asker.consumer.pull(MessageQueue(topic, asker.broker, 0), 0)


async def _read_what_is_gone(asker: Asker) -> None:
    """Read from a topic that was deleted, of a broker: this reader still knows where it was.

    Each time it is another topic. Nobody makes one anew that somebody else deletes.
    """
    topic = f"{asker.topic}-{GONE}-{asker.unique}"
    queue = MessageQueue(topic, asker.broker, 0)
    with _to_prepare():
        await asker.producer.create_topic(topic, 1)
        await asker.consumer.pull(queue, 0)
        await asker.producer.delete_topic(topic)
    await asker.consumer.pull(queue, 0)
    # No proof: a slave may answer, or a master that nobody told, for want of a route to it.
    raise RefusedError(-1, "who answers has not heard that the topic is gone")


def _send(body_bytes: int, property_bytes: int = 0) -> Callable[[Asker], Awaitable[object]]:
    """Send a message of a size to the topic's first queue."""
    properties = {"LONG": "x" * property_bytes} if property_bytes else None

    def ask(asker: Asker) -> Awaitable[object]:
        queue = MessageQueue(asker.topic, asker.broker, 0)
        body = bytes(body_bytes)
        return asker.producer.send(asker.topic, body, queue=queue, properties=properties)

    return ask


async def _make_too_many_topics(asker: Asker) -> None:
    """Make one topic more than there may be, beside those that there are already."""
    try:
        for number in range(asker.topics_max + 1):
            await asker.producer.create_topic(f"{asker.topic}-more-{number}", 1)
    except RefusedError as error:
        if error.code != ResponseCode.NO_PERMISSION:
            raise RefusedError(-1, str(error)) from error
        raise


async def _crowd_a_group(asker: Asker) -> None:
    """Have one client more in a group than there may be; the last one is refused.

    Brokers that were started meanwhile have forgotten some: they are not asked.
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
    """Leave a group, and be listed in it still, while the connection stays open.

    Asked of a broker that listed this client, and then took it that it left: nobody else is of
    that name.
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
            raise RefusedError(-1, "whoever leads was not told")
        try:
            is_listed = group in await member.members(asker.leader)
        except RefusedError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise RefusedError(-1, str(error)) from error
            is_listed = False  # as a broker says of a group without clients
    finally:
        consumer.close()
    if not is_listed:
        raise RefusedError(NOT_DONE, "the group does not list who left it")


async def _add_the_leader(asker: Asker) -> None:
    """Add whoever leads; a broker without a group has no members, and takes nobody."""
    leader = await asker.admin.membership()
    member = leader.member if leader.voters else STRANGER
    await asker.admin.add_member(member, STRANGERS_ADDRESS)


async def _remove_the_only_voter(asker: Asker) -> None:
    """Remove the only voter of a group of one; of others, who is no member."""
    leader = await asker.admin.membership()
    member = leader.member if leader.voters == (leader.member,) else STRANGER
    await asker.admin.remove_member(member)


def _misrequests() -> tuple[Misrequest, ...]:
    illegal, forbidden = ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION

    def made(topic: str, queues: int = 1, perm: int = 6) -> Callable[[Asker], Awaitable[object]]:
        return lambda asker: asker.producer.create_topic(topic, queues, perm=perm)

    def added(member: str, address: str) -> Callable[[Asker], Awaitable[object]]:
        return lambda asker: asker.admin.add_member(member, address)

    def deleted(topic: str) -> Callable[[Asker], Awaitable[object]]:
        return lambda asker: asker.producer.delete_topic(topic)

    made_anew = (Misrequest(f"make {each} anew", illegal, made(each)) for each in SYSTEM_TOPICS)
    gone = (Misrequest(f"delete {each}", illegal, deleted(each)) for each in SYSTEM_TOPICS)
    return (
        *made_anew,
        *gone,
        Misrequest("make a topic with a name of blanks", illegal, made("no name")),
        Misrequest("make a topic with too long a name", illegal, made("long" * 64)),
        Misrequest("make a topic without queues", illegal, made("no-queues", 0)),
        Misrequest("make a topic of unknown permissions", illegal, made("odd", perm=99)),
        Misrequest("delete a topic with a name of blanks", illegal, deleted("no name")),
        Misrequest(
            "send to a topic that may only be read", forbidden, _write_where_only_reads_are_allowed
        ),
        Misrequest(
            "send to a queue that the topic has not",
            illegal,
            lambda asker: asker.producer.send(
                asker.topic, b"0", queue=MessageQueue(asker.topic, asker.broker, 4095)
            ),
        ),
        Misrequest(
            "read a topic that may only be written", forbidden, _read_where_only_writes_are_allowed
        ),
        Misrequest(
            "read a topic that was deleted", ResponseCode.TOPIC_NOT_EXIST, _read_what_is_gone
        ),
        Misrequest("stay in a group that was left", NOT_DONE, _stay_in_a_group_that_was_left),
        Misrequest("send a message that is too large", illegal, _send(MESSAGE_BYTES_MAX + 1)),
        Misrequest("send too large an entry", illegal, _send(MESSAGE_BYTES_MAX, PROPERTY_BYTES)),
        Misrequest("add a member with an id of blanks", illegal, added("no id", STRANGERS_ADDRESS)),
        Misrequest("add a member without a host", illegal, added(STRANGER, ":9")),
        Misrequest("add a member of a host of blanks", illegal, added(STRANGER, "no host:9")),
        Misrequest("add a member without a port", illegal, added(STRANGER, "127.0.0.1:0")),
        Misrequest("add the leader", forbidden, _add_the_leader),
        Misrequest("remove the only voter", forbidden, _remove_the_only_voter),
        Misrequest(
            "remove who is no member",
            forbidden,
            lambda asker: asker.admin.remove_member(STRANGER),
        ),
        Misrequest(
            "hand over to who is no member",
            forbidden,
            lambda asker: asker.admin.transfer_leadership(STRANGER),
        ),
    )


MISREQUESTS: Final = _misrequests()
BEYOND_LIMITS: Final = (
    Misrequest(
        "make more topics than there may be", ResponseCode.NO_PERMISSION, _make_too_many_topics
    ),
    Misrequest("have more clients in a group than there may be", NOT_DONE, _crowd_a_group),
)
"""What is asked beside these of brokers whose limits are low."""
TOPICS_LOW: Final = 48
GROUP_MEMBERS_LOW: Final = 20
TOPICS_KEY: Final = "shaketableTopicsMax"
GROUP_MEMBERS_KEY: Final = "shaketableGroupMembersMax"


def limits_of(options: Mapping[str, object]) -> dict[str, str | int | Path]:
    """Return lines of a broker.conf: low limits where a campaign's options ask for them."""
    if options.get("limits") != "low":
        return {}
    return {TOPICS_KEY: TOPICS_LOW, GROUP_MEMBERS_KEY: GROUP_MEMBERS_LOW}

"""What clients and operators ask about topics, consumer groups, offsets and locks, for tests."""

from __future__ import annotations

import msgspec
from broker_group import Member

from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import ONEWAY_FLAG, Command
from shaketable.system.remoting.requests import (
    CreateTopic,
    DeleteTopic,
    GroupRequest,
    QueryConsumerOffset,
    UnregisterClient,
    UpdateConsumerOffset,
)


def commit(
    group: str, topic: str, queue: int, offset: int, opaque: int = 1, *, oneway: bool = False
) -> Command:
    """Commit an offset."""
    ext = UpdateConsumerOffset(group, topic, queue, offset).to_ext()
    flag = ONEWAY_FLAG if oneway else 0
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, opaque, flag, ext=ext)


def query(group: str, topic: str, queue: int, opaque: int = 2, *, zero: bool = True) -> Command:
    """Ask for the offset that a group committed."""
    ext = QueryConsumerOffset(group, topic, queue, zero).to_ext()
    return Command(RequestCode.QUERY_CONSUMER_OFFSET, opaque, ext=ext)


def committed(member: Member, group: str, topic: str, queue: int) -> int | None:
    """Return what a member says that a group committed."""
    (reply,) = member.answer(query(group, topic, queue, zero=False))
    return int(reply.ext["offset"]) if reply.code == 0 else None


def create_topic(topic: str, *, opaque: int = 3, **fields: object) -> Command:
    """Make or change a topic."""
    ext = CreateTopic(topic, **fields).to_ext()  # type: ignore[arg-type]
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC, opaque, ext=ext)


def delete_topic(topic: str) -> Command:
    """Delete a topic."""
    return Command(RequestCode.DELETE_TOPIC_IN_BROKER, 4, ext=DeleteTopic(topic).to_ext())


def heartbeat(
    client_id: str, *groups: str, topics: tuple[str, ...] = ("t",), tags: str = "*"
) -> Command:
    """Say that a client consumes topics in some groups."""
    consumers = [
        {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [
                {"topic": topic, "subString": tags, "tagsSet": [], "codeSet": [], "subVersion": 7}
                for topic in topics
            ],
            "unitMode": False,
        }
        for group in groups
    ]
    body = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": consumers}
    return Command(RequestCode.HEART_BEAT, 5, body=msgspec.json.encode(body))


def unregister(client_id: str, group: str) -> Command:
    """Say that a client leaves a group."""
    ext = UnregisterClient(client_id, None, group).to_ext()
    return Command(RequestCode.UNREGISTER_CLIENT, 6, ext=ext)


def consumer_list(group: str) -> Command:
    """Ask who consumes in a group."""
    ext = GroupRequest(group).to_ext()
    return Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, 7, ext=ext)


def lock(code: RequestCode, group: str, client_id: str, *queues: int, opaque: int = 8) -> Command:
    """Lock or unlock queues of topic "t"."""
    names = [{"topic": "t", "brokerName": "b", "queueId": queue} for queue in queues]
    body = {
        "consumerGroup": group,
        "clientId": client_id,
        "onlyThisBroker": False,
        "mqSet": names,
    }
    return Command(code, opaque, body=msgspec.json.encode(body))

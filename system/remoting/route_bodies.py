"""Bodies of name servers' responses: topic routes (105), brokers (106), topic names (206).

They are encoded in the JSON dialect that the client reads (`reads_standard_json`).
Source: RocketMQ's TopicRouteData, QueueData, BrokerData, ClusterInfo and TopicList; DLEDGER.md
A.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from shaketable.system.remoting.command import I32, I64, CommandError
from shaketable.system.remoting.fastjson import dumps, loads

MASTER_ID = 0
"""The broker id of the master, which takes messages, among the brokers of one name."""
STANDARD_JSON_SINCE = 401
"""V4_9_4: clients from this version on read maps with integer keys as standard JSON."""

Kind = TypeVar("Kind")


class QueueData(msgspec.Struct, frozen=True, rename="camel"):
    """A topic's queues on the brokers of one name. `perm`: 4 read, 2 write, 1 inherit."""

    broker_name: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_sys_flag: I32 = 0


class BrokerData(msgspec.Struct, frozen=True, rename="camel"):
    """The brokers of one name: "host:port" by broker id, 0 for the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[I64, str]
    enable_acting_master: bool = False


class TopicRoute(msgspec.Struct, frozen=True, rename="camel"):
    """Where a topic's queues are (RocketMQ's TopicRouteData)."""

    broker_datas: tuple[BrokerData, ...] = ()
    queue_datas: tuple[QueueData, ...] = ()
    order_topic_conf: str | None = None


class ClusterInfo(msgspec.Struct, frozen=True, rename="camel"):
    """All brokers by name, and the names of each cluster's brokers."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, tuple[str, ...]]


def reads_standard_json(version: int, accept_standard_json_only: bool = False) -> bool:
    """Whether a client of `version` gets integer keys in quotes."""
    return accept_standard_json_only or version >= STANDARD_JSON_SINCE


def encode_route(route: TopicRoute, *, is_standard: bool) -> bytes:
    """Encode the response body of GET_ROUTEINFO_BY_TOPIC."""
    value: dict[str, Any] = {
        "brokerDatas": [_broker(data) for data in route.broker_datas],
        "filterServerTable": {},
        "orderTopicConf": route.order_topic_conf,
        "queueDatas": [msgspec.to_builtins(data, order="sorted") for data in route.queue_datas],
    }
    return dumps(value, unquoted_integer_keys=not is_standard)


def decode_route(data: bytes | memoryview) -> TopicRoute:
    """Decode such a body in either dialect. Raises CommandError."""
    return _convert(loads(data), TopicRoute)


def encode_cluster_info(info: ClusterInfo, *, is_standard: bool) -> bytes:
    """Encode the response body of GET_BROKER_CLUSTER_INFO."""
    value = {
        "brokerAddrTable": {name: _broker(data) for name, data in info.broker_addr_table.items()},
        "clusterAddrTable": info.cluster_addr_table,
    }
    return dumps(value, unquoted_integer_keys=not is_standard)


def decode_cluster_info(data: bytes | memoryview) -> ClusterInfo:
    """Decode such a body in either dialect. Raises CommandError."""
    return _convert(loads(data), ClusterInfo)


def encode_topic_list(topics: Iterable[str]) -> bytes:
    """Encode the response body of GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    return dumps({"topicList": list(topics)}, unquoted_integer_keys=False)


def decode_topic_list(data: bytes | memoryview) -> tuple[str, ...]:
    """Decode such a body. Raises CommandError."""
    return _convert(loads(data), _TopicList).topic_list


class _TopicList(msgspec.Struct, frozen=True, rename="camel"):
    topic_list: tuple[str, ...] = ()


def _broker(data: BrokerData) -> dict[str, Any]:
    return {
        "brokerAddrs": data.broker_addrs,
        "brokerName": data.broker_name,
        "cluster": data.cluster,
        "enableActingMaster": data.enable_acting_master,
    }


def _convert(value: object, kind: type[Kind]) -> Kind:
    try:
        # Integer keys arrive as strings; maps whose keys are typed as integers convert them.
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise CommandError(f"bad {kind.__name__} body: {error}") from None

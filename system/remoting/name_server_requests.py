"""Requests to name servers, and their responses: registration, headers, routes."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec

from shaketable.system.remoting.command import I32, I64, CommandError
from shaketable.system.remoting.fastjson import BODY_BYTES_MAX, dumps, loads
from shaketable.system.remoting.requests import Fields

# The body of REGISTER_BROKER (103): a broker's topics and their version.
#
# Brokers send it as JSON; some 4.x versions also as zlib of length-prefixed parts, which is decoded
# here too. Source: RocketMQ's RegisterBrokerBody, TopicConfigSerializeWrapper, TopicConfig and
# DataVersion; DLEDGER.md A.3.

TOPICS_MAX = 65_536
"""Limit for one body."""
NAME_LENGTH_MAX = 255
"""Limit in characters for the name of a topic, broker or cluster (%RETRY% topics fit)."""
BARE_WRAPPER_BELOW = 37
"""V3_0_11: brokers below this version send the topics without the enclosing wrapper."""
_ATTRIBUTES_MAX = 64
_U32 = struct.Struct(">I")
_ENCODER = msgspec.json.Encoder()

Kind = TypeVar("Kind")
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """The version of a broker's topics; a difference in any field is a change.

    If two brokers claim one id, the one with the higher `state_version` gets it: in DLedger mode
    that is the Raft term. `timestamp` is in milliseconds since 1970.
    """

    state_version: I64 = 0
    timestamp: I64 = 0
    counter: I64 = 0


class TopicConfig(msgspec.Struct, frozen=True, rename="camel"):
    """A topic's configuration on its broker. `perm`: 4 read, 2 write, 1 inherit."""

    topic_name: Name
    read_queue_nums: I32 = 16
    write_queue_nums: I32 = 16
    perm: I32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: Annotated[dict[str, str], msgspec.Meta(max_length=_ATTRIBUTES_MAX)] | None = {}


class RegisterBody(msgspec.Struct, frozen=True):
    """A broker's topics by name, and their version."""

    version: DataVersion = DataVersion()
    topics: dict[str, TopicConfig] = {}


class _Topics(msgspec.Struct, rename="camel"):
    """RocketMQ's TopicConfigSerializeWrapper. The map's key names the topic."""

    data_version: DataVersion | None = None
    topic_config_table: (
        Annotated[dict[Name, dict[str, Any]], msgspec.Meta(max_length=TOPICS_MAX)] | None
    ) = None


class _Body(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _Topics | None = None


def encode_register_body(topics: Iterable[TopicConfig], version: DataVersion) -> bytes:
    """Encode the body as 5.x brokers send it: standard JSON, not compressed.

    The topics are encoded without conversion, for speed: a broker may have 10,000 of them.
    Raises CommandError.
    """
    wrapper = {
        "dataVersion": version,
        "topicConfigTable": {topic.topic_name: topic for topic in topics},
    }
    try:
        return _ENCODER.encode({"filterServerList": (), "topicConfigSerializeWrapper": wrapper})
    except UnicodeEncodeError as error:
        raise CommandError(f"topics cannot be written as JSON: {error}") from None


def decode_register_body(
    data: bytes | memoryview, *, is_compressed: bool, version: int
) -> RegisterBody:
    """Decode the body from a broker of `version` (its MQVersion number).

    An empty body is a broker without topics. Raises only CommandError.
    """
    if not data:
        return RegisterBody()
    if is_compressed:
        return _decode_compressed(_inflated(data))
    value = loads(data)
    if version < BARE_WRAPPER_BELOW:
        value = {"topicConfigSerializeWrapper": value}
    wrapper = _convert(value, _Body).topic_config_serialize_wrapper
    if wrapper is None:
        return RegisterBody()
    table = {
        name: _convert({**config, "topicName": name}, TopicConfig)
        for name, config in (wrapper.topic_config_table or {}).items()
    }
    return RegisterBody(wrapper.data_version or DataVersion(), table)


def encode_data_version(version: DataVersion) -> bytes:
    """Encode the body of QUERY_DATA_VERSION (322) and of its response."""
    return dumps(msgspec.to_builtins(version), unquoted_integer_keys=False)


def decode_data_version(data: bytes | memoryview) -> DataVersion:
    """Decode such a body. Raises CommandError."""
    return _convert(loads(data), DataVersion)


def body_crc32(data: bytes | memoryview) -> int:
    """Return the header's bodyCrc32 (RocketMQ's UtilAll.crc32)."""
    return zlib.crc32(data) & 0x7FFFFFFF


def _convert(value: object, kind: type[Kind]) -> Kind:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise CommandError(f"bad register body: {error}") from None


def _inflated(data: bytes | memoryview) -> memoryview:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, BODY_BYTES_MAX)
    except zlib.error as error:
        raise CommandError(f"bad compressed register body: {error}") from None
    if not inflater.eof:
        raise CommandError(
            f"bad compressed register body: cut off, or of more than {BODY_BYTES_MAX} bytes"
        )
    return memoryview(plain)


def _decode_compressed(data: memoryview) -> RegisterBody:
    """Decode i32 length and the version as JSON, i32 count, and each topic: i32 length, text.

    The rest (filter servers, queue mappings) is ignored.
    """
    version_part, at = _part(data, 0)
    version = decode_data_version(version_part)
    count, at = _number(data, at)
    if count > TOPICS_MAX:
        raise CommandError(f"bad register body: {count} topics, at most {TOPICS_MAX}")
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):
        part, at = _part(data, at)
        topic = _topic_from_text(part)
        topics[topic.topic_name] = topic
    return RegisterBody(version, topics)


def _topic_from_text(part: memoryview) -> TopicConfig:
    """Decode "name readQueueNums writeQueueNums perm SINGLE_TAG [attributes as JSON]"."""
    try:
        fields_text = str(part, "utf-8").split(" ", 5)
    except UnicodeDecodeError as error:
        raise CommandError(f"bad register body: a topic's config is no text: {error}") from None
    if len(fields_text) < 5:
        raise CommandError("bad register body: a topic's config is cut off")
    name, read_nums, write_nums, perm, filter_type, *rest = fields_text
    fields = {
        "topicName": name,
        "readQueueNums": read_nums,
        "writeQueueNums": write_nums,
        "perm": perm,
        "topicFilterType": filter_type,
        "attributes": loads(rest[0].encode()) if rest and rest[0] else {},
    }
    try:
        return msgspec.convert(fields, TopicConfig, strict=False)
    except msgspec.ValidationError as error:
        raise CommandError(f"bad register body: {error}") from None


def _part(data: memoryview, at: int) -> tuple[memoryview, int]:
    """Return the length-prefixed bytes at `at` and where the next part starts."""
    length, start = _number(data, at)
    if length > len(data) - start:
        raise CommandError(
            f"bad register body: a part of {length} bytes where {len(data) - start} are left"
        )
    return data[start : start + length], start + length


def _number(data: memoryview, at: int) -> tuple[int, int]:
    if len(data) - at < _U32.size:
        raise CommandError("bad register body: cut off")
    (number,) = _U32.unpack_from(data, at)
    return number, at + _U32.size


# Typed headers of requests to name servers, and of their responses.
#
# Source: RocketMQ's RegisterBrokerRequestHeader, UnRegisterBrokerRequestHeader,
# GetRouteInfoRequestHeader and their responses; DLEDGER.md A.2.

_ADDRESS = re.compile(r"[^\s:;,]{1,255}:[0-9]{1,5}")
BrokerId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class BrokerHeader(Fields, gc=False, rename="camel"):
    """UNREGISTER_BROKER (104) and QUERY_DATA_VERSION (322): names one broker."""

    broker_name: Name
    broker_addr: str
    cluster_name: Name
    broker_id: BrokerId = 0

    def __post_init__(self) -> None:
        """Raise ValueError for a malformed address."""
        _check_address(self.broker_addr)


class RegisterBrokerHeader(Fields, gc=False, rename="camel"):
    """REGISTER_BROKER (103); the topics are in the body (`RegisterBody`).

    A `body_crc32` of 0 is not checked. Only RocketMQ 5 sends `heartbeat_timeout_millis` and
    `enable_acting_master`.
    """

    broker_name: Name
    broker_addr: str
    cluster_name: Name
    broker_id: BrokerId
    ha_server_addr: str | None = None
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = 0

    def __post_init__(self) -> None:
        """Raise ValueError for a malformed address."""
        _check_address(self.broker_addr)


class RegisterBrokerResponse(Fields, gc=False, rename="camel"):
    """The response to REGISTER_BROKER: for a slave, the addresses of its live master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class DataVersionAnswer(Fields, gc=False, rename="camel"):
    """The response to QUERY_DATA_VERSION."""

    changed: bool


class HeartbeatHeader(Fields, gc=False, rename="camel"):
    """BROKER_HEARTBEAT (904)."""

    broker_addr: str
    cluster_name: str = ""
    broker_name: str = ""


class RouteHeader(Fields, gc=False, rename="camel"):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


class TopicHeader(Fields, gc=False, rename="camel"):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str


class ClusterHeader(Fields, gc=False, rename="camel"):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class KvHeader(Fields, gc=False, rename="camel"):
    """PUT_KV_CONFIG (100), GET_KV_CONFIG (101) and DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str
    value: str = ""


class NamespaceHeader(Fields, gc=False, rename="camel"):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class BrokerNameHeader(Fields, gc=False, rename="camel"):
    """WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


def _check_address(address: str) -> None:
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"brokerAddr {address[:NAME_LENGTH_MAX]!r} is not of the form host:port")


# Bodies of name servers' responses: topic routes (105), brokers (106), topic names (206).
#
# They are encoded in the JSON dialect that the client reads (`reads_standard_json`).
# Source: RocketMQ's TopicRouteData, QueueData, BrokerData, ClusterInfo and TopicList; DLEDGER.md
# A.3.

MASTER_ID = 0
"""The broker id of the master, which takes messages, among the brokers of one name."""
STANDARD_JSON_SINCE = 401
"""V4_9_4: clients from this version on read maps with integer keys as standard JSON."""


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
    return _convert_keyed(loads(data), TopicRoute)


def encode_cluster_info(info: ClusterInfo, *, is_standard: bool) -> bytes:
    """Encode the response body of GET_BROKER_CLUSTER_INFO."""
    value = {
        "brokerAddrTable": {name: _broker(data) for name, data in info.broker_addr_table.items()},
        "clusterAddrTable": info.cluster_addr_table,
    }
    return dumps(value, unquoted_integer_keys=not is_standard)


def decode_cluster_info(data: bytes | memoryview) -> ClusterInfo:
    """Decode such a body in either dialect. Raises CommandError."""
    return _convert_keyed(loads(data), ClusterInfo)


def encode_topic_list(topics: Iterable[str]) -> bytes:
    """Encode the response body of GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    return dumps({"topicList": list(topics)}, unquoted_integer_keys=False)


def decode_topic_list(data: bytes | memoryview) -> tuple[str, ...]:
    """Decode such a body. Raises CommandError."""
    return _convert_keyed(loads(data), _TopicList).topic_list


class _TopicList(msgspec.Struct, frozen=True, rename="camel"):
    topic_list: tuple[str, ...] = ()


def _broker(data: BrokerData) -> dict[str, Any]:
    return {
        "brokerAddrs": data.broker_addrs,
        "brokerName": data.broker_name,
        "cluster": data.cluster,
        "enableActingMaster": data.enable_acting_master,
    }


def _convert_keyed(value: object, kind: type[Kind]) -> Kind:
    try:
        # Integer keys arrive as strings; maps whose keys are typed as integers convert them.
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise CommandError(f"bad {kind.__name__} body: {error}") from None

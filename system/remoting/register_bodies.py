"""The body of REGISTER_BROKER (103): a broker's topics and their version.

Brokers send it as JSON; some 4.x versions also as zlib of length-prefixed parts, which is decoded
here too. Source: RocketMQ's RegisterBrokerBody, TopicConfigSerializeWrapper, TopicConfig and
DataVersion; DLEDGER.md A.3.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec

from shaketable.system.remoting.command import I32, I64, CommandError
from shaketable.system.remoting.fastjson import BODY_BYTES_MAX, dumps, loads

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

"""Routes, brokers and registrations on the wire: as Java writes them, and as bytes break them."""

import json
import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shaketable.system.remoting.command import CommandError
from shaketable.system.remoting.fastjson import BODY_BYTES_MAX
from shaketable.system.remoting.name_server_requests import (
    TOPICS_MAX,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    RegisterBody,
    TopicConfig,
    TopicRoute,
    body_crc32,
    decode_cluster_info,
    decode_data_version,
    decode_register_body,
    decode_route,
    decode_topic_list,
    encode_cluster_info,
    encode_data_version,
    encode_register_body,
    encode_route,
    encode_topic_list,
    reads_standard_json,
)

ROUTE = TopicRoute(
    (BrokerData("c", "b", {0: "127.0.0.1:10911", 2: "127.0.0.1:10921"}),),
    (QueueData("b", 8, 4, 6),),
)
JAVA_ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",2:"127.0.0.1:10921"},"brokerName":"b",'
    b'"cluster":"c","enableActingMaster":false}],"filterServerTable":{},"queueDatas":'
    b'[{"brokerName":"b","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":4}]}'
)
INFO = ClusterInfo({"b": BrokerData("c", "b", {0: "h:1"})}, {"c": ("b",)})
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VERSION = st.builds(DataVersion, I64, I64, I64)
TOPIC = st.builds(
    TopicConfig,
    NAME,
    I32,
    I32,
    I32,
    st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    I32,
    st.booleans(),
    st.none() | st.dictionaries(NAME, NAME, max_size=3),
)
TOPICS = st.lists(TOPIC, max_size=4, unique_by=lambda topic: topic.topic_name)


def test_old_clients_get_keys_without_quotes() -> None:
    assert encode_route(ROUTE, is_standard=False) == JAVA_ROUTE
    assert decode_route(JAVA_ROUTE) == ROUTE
    assert b'"brokerAddrs":{0:"h:1"}' in encode_cluster_info(INFO, is_standard=False)


def test_new_clients_get_standard_json() -> None:
    route = encode_route(ROUTE, is_standard=True)
    assert json.loads(route)["brokerDatas"][0]["brokerAddrs"] == {
        "0": "127.0.0.1:10911",
        "2": "127.0.0.1:10921",
    }
    assert decode_route(route) == ROUTE
    json.loads(encode_cluster_info(INFO, is_standard=True))


@pytest.mark.parametrize(
    ("version", "accepts", "is_standard"),
    [
        (62, False, False),
        (400, False, False),
        (400, True, True),
        (401, False, True),
        (479, True, True),
    ],
)
def test_the_version_tells_the_dialect(version: int, accepts: bool, is_standard: bool) -> None:
    assert reads_standard_json(version, accepts) is is_standard


@pytest.mark.parametrize("is_standard", [True, False])
def test_brokers_and_topics_are_read_back(is_standard: bool) -> None:
    assert decode_cluster_info(encode_cluster_info(INFO, is_standard=is_standard)) == INFO
    assert decode_topic_list(encode_topic_list(["a", "b"])) == ("a", "b")


@given(TOPICS, VERSION)
def test_a_registration_is_read_back(topics: list[TopicConfig], version: DataVersion) -> None:
    body = encode_register_body(topics, version)
    found = decode_register_body(body, is_compressed=False, version=409)
    assert found == RegisterBody(version, {topic.topic_name: topic for topic in topics})
    assert decode_data_version(encode_data_version(version)) == version


JAVA_BODY = {
    "filterServerList": [],
    "topicConfigSerializeWrapper": {
        "dataVersion": {"counter": 3, "timestamp": 7},
        "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 7},
        "topicConfigTable": {
            "t": {
                "order": False,
                "perm": 6,
                "readQueueNums": 4,
                "topicFilterType": "SINGLE_TAG",
                "topicName": "t",
                "topicSysFlag": 1,
                "writeQueueNums": 8,
            }
        },
        "topicQueueMappingInfoMap": {},
    },
}


def test_what_java_brokers_send_is_understood() -> None:
    expected = RegisterBody(DataVersion(0, 7, 3), {"t": TopicConfig("t", 4, 8, 6, "SINGLE_TAG", 1)})
    body = json.dumps(JAVA_BODY).encode()
    assert decode_register_body(body, is_compressed=False, version=479) == expected
    bare = json.dumps(JAVA_BODY["topicConfigSerializeWrapper"]).encode()
    assert decode_register_body(bare, is_compressed=False, version=36) == expected
    assert decode_register_body(b"", is_compressed=False, version=409) == RegisterBody()
    assert decode_register_body(b"{}", is_compressed=False, version=409) == RegisterBody()


def part(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def compressed(*topics: bytes, count: int | None = None) -> bytes:
    version = part(b'{"counter":3,"stateVersion":2,"timestamp":7}')
    number = (len(topics) if count is None else count).to_bytes(4, "big")
    return zlib.compress(b"".join((version, number, *map(part, topics), part(b"[]"))))


def test_compressed_registrations_are_understood() -> None:
    body = compressed(b"t 4 8 6 SINGLE_TAG", b'u 1 1 2 SINGLE_TAG {"a":"b"}')
    assert decode_register_body(body, is_compressed=True, version=409) == RegisterBody(
        DataVersion(2, 7, 3),
        {
            "t": TopicConfig("t", 4, 8, 6),
            "u": TopicConfig("u", 1, 1, 2, attributes={"a": "b"}),
        },
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"no zlib", "compressed register body"),
        (compressed(b"t 4 8 6 SINGLE_TAG")[:-5], "cut off"),
        (zlib.compress(bytes(BODY_BYTES_MAX + 1)), "of more than"),
        (zlib.compress(b"\0\0"), "cut off"),
        (compressed(b"t", count=1), "a topic's config is cut off"),
        (compressed(b"t 4 8 six SINGLE_TAG"), "Expected `int`"),
        (compressed(b" 4 8 6 SINGLE_TAG"), "length >= 1"),
        (compressed(b"\xff 4 8 6 SINGLE_TAG"), "no text"),
        (compressed(count=TOPICS_MAX + 1), "at most"),
        (compressed(count=5), "a part of|cut off"),
    ],
)
def test_damaged_compressed_registrations_are_refused(body: bytes, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        decode_register_body(body, is_compressed=True, version=409)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[]", "Expected `object`"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"":{}}}}', "length >= 1"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"perm":"x"}}}}', "perm"),
        (b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":"x"}}}', "counter"),
    ],
)
def test_wrong_registrations_are_refused(body: bytes, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        decode_register_body(body, is_compressed=False, version=409)


def test_the_checksum_is_javas() -> None:
    assert body_crc32(b"123456789") == 0xCBF43926 & 0x7FFFFFFF


@given(st.binary(max_size=60), st.booleans(), st.integers(0, 500))
def test_bytes_raise_a_command_error_or_nothing(data: bytes, is_packed: bool, version: int) -> None:
    for body, is_compressed in ((data, is_packed), (zlib.compress(data), True)):
        with suppress(CommandError):
            decode_register_body(body, is_compressed=is_compressed, version=version)
    for decode in (decode_route, decode_cluster_info, decode_topic_list, decode_data_version):
        with suppress(CommandError):
            decode(data)


@given(st.integers(0, len(JAVA_ROUTE) - 1), st.binary(max_size=3), st.integers(0, 3))
@settings(max_examples=300)
def test_a_damaged_route_raises_a_command_error_or_nothing(at: int, put: bytes, gone: int) -> None:
    for good in (JAVA_ROUTE, json.dumps(JAVA_BODY).encode()):
        data = good[:at] + put + good[at + gone :]
        with suppress(CommandError):
            decode_route(data)
        with suppress(CommandError):
            decode_register_body(data, is_compressed=False, version=409)

"""Headers in both serialisations: round trips, mutations, and what clients really send."""

import json
import struct
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shaketable.system.remoting.codes import RequestCode, ResponseCode, outcome_of
from shaketable.system.remoting.command import (
    Command,
    CommandError,
    FrameBuffer,
    FrameError,
    SerializeType,
    decode_command,
    encode_command,
    encode_frame,
    response,
    send_response,
)
from shaketable.system.remoting.requests import (
    PullMessage,
    PullMessageResponse,
    QueueOffsetRequest,
    QueueOffsetResponse,
    SendMessage,
    SendMessageResponse,
    SendMessageV2,
    SendRequest,
    decode_request,
    encode_send,
)

I16 = st.integers(-(2**15), 2**15 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=30)
KINDS = st.sampled_from(list(SerializeType))
COMMAND = st.builds(
    Command,
    code=I16,
    opaque=I32,
    flag=I32,
    language=st.sampled_from(["JAVA", "CPP", "PYTHON", "OTHER", "GO", "NODE_JS"]),
    version=I16,
    remark=st.none() | st.text(min_size=1, max_size=30),
    ext=st.dictionaries(TEXT, TEXT, max_size=5),
    body=st.binary(max_size=100),
    serialize_type=KINDS,
)
SEND = st.builds(
    SendMessageV2,
    producer_group=TEXT,
    topic=TEXT,
    queue_id=I32,
    born_ms=I64,
    default_topic=TEXT,
    default_topic_queue_nums=I32,
    sys_flag=I32,
    flag=I32,
    properties=TEXT,
    reconsume_times=I32,
    unit_mode=st.booleans(),
    max_reconsume_times=st.none() | I32,
    batch=st.booleans(),
    broker_name=st.none() | st.text(min_size=1).filter(lambda text: text.lower() != "null"),
)


def only_frame(data: bytes):
    buffer = FrameBuffer()
    while data:
        space = buffer.writable()
        piece, data = data[: len(space)], data[len(space) :]
        space[: len(piece)] = piece
        buffer.received(len(piece))
        if frames := buffer.frames():
            assert not data
            (frame,) = frames
            return frame
    raise FrameError("no whole frame")


def json_frame(header: object, body: bytes = b""):
    return only_frame(encode_frame(json.dumps(header).encode(), body))


@settings(deadline=None)
@given(COMMAND)
def test_a_command_comes_back_as_it_was_sent(command):
    decoded = decode_command(only_frame(encode_command(command)))
    decoded.body = bytes(decoded.body)
    assert decoded == command


@settings(deadline=None)
@given(COMMAND | SEND, st.data())
def test_mutated_frames_raise_nothing_but_the_typed_errors(thing, data):
    whole = (
        encode_command(thing)
        if isinstance(thing, Command)
        else encode_send(thing, b"body", 7, data.draw(KINDS))
    )
    mutated = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(8, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    for decode in (decode_command, decode_request):
        with suppress(CommandError, FrameError):
            decode(only_frame(bytes(mutated)))


@settings(deadline=None)
@given(st.binary(max_size=200), KINDS)
def test_arbitrary_headers_raise_nothing_but_command_error(header, kind):
    for decode in (decode_command, decode_request):
        with suppress(CommandError):
            decode(only_frame(encode_frame(header, b"", kind)))


JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            key: JSON_VALUE | I32 | st.just(310)
            for key in ("code", "opaque", "flag", "language", "version", "remark", "extFields")
        },
    )
)
def test_json_of_any_shape_raises_nothing_but_command_error(header):
    for decode in (decode_command, decode_request):
        with suppress(CommandError):
            decode(json_frame(header))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 200_000,
        b'{"code":10,"x":' + b'{"x":' * 40_000,
        b'{"code":' + b"9" * 100_000 + b"}",
        b'{"code":1e999}',
        b'{"code":10,"extFields":{"a":"\xff"}}',
        b'{"code":10,"remark":"\\ud800"}',
        b'{"code":310,"extFields":{"a":"g","b":"t","e":99999999999}}',
        b'{"code":310}',
        b"",
        b"null",
    ],
    ids=range(10),
)
def test_nasty_headers_are_command_errors(header):
    with pytest.raises(CommandError):
        decode_request(only_frame(encode_frame(header)))


def test_ext_values_that_are_no_strings_become_strings():
    frame = json_frame(
        {"code": 11, "extFields": {"n": 5, "b": True, "f": 1.5, "z": None}, "unknown": [1]}
    )
    assert decode_command(frame).ext == {"n": "5", "b": "true", "f": "1.5"}


@pytest.mark.parametrize("kind", SerializeType)
@settings(deadline=None)
@given(fields=SEND, opaque=I32)
def test_send_v2_comes_back(kind, fields, opaque):
    request = decode_request(only_frame(encode_send(fields, b"value", opaque, kind)))
    assert isinstance(request, SendRequest)
    assert (request.opaque, request.fields, bytes(request.body)) == (opaque, fields, b"value")
    assert request.serialize_type == kind


def test_a_java_client_header_takes_the_fast_path_and_the_general_path_alike():
    ext = {
        "a": "group", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "2", "f": "0",
        "g": "1700000000000", "h": "0", "i": "KEYS\x01k\x02WAIT\x01true\x02", "j": "0",
        "k": "false", "m": "false", "n": "broker-n0",
    }  # fmt: skip
    header = {"code": 310, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": 9}
    fast = decode_request(json_frame(header, b"x"))
    binary = encode_command(
        Command(310, 9, ext=ext, body=b"x", serialize_type=SerializeType.ROCKETMQ)
    )
    general = decode_request(only_frame(binary))
    assert isinstance(fast, SendRequest)
    assert isinstance(general, SendRequest)
    assert fast.fields == general.fields
    assert fast.fields.queue_id == 2
    assert fast.fields.properties == ext["i"]
    assert fast.fields.batch is False


def test_send_message_under_long_names_is_the_same_request():
    long = SendMessage("g", "t", 3, born_timestamp=5, properties="p", batch=True)
    frame = json_frame({"code": 10, "opaque": 1, "extFields": long.to_ext()}, b"b")
    request = decode_request(frame)
    assert request.fields == SendMessageV2("g", "t", 3, 5, properties="p", batch=True)


def test_a_response_of_code_310_is_no_request():
    ext = SendMessageV2("g", "t", 1).to_ext()
    assert isinstance(
        decode_request(json_frame({"code": 310, "flag": 1, "extFields": ext})), Command
    )


def test_a_missing_or_bad_field_is_named():
    with pytest.raises(CommandError, match="`e`"):
        decode_request(json_frame({"code": 310, "extFields": {"a": "g", "b": "t"}}))
    with pytest.raises(CommandError, match=r"\$\.queueId"):
        QueueOffsetRequest.from_ext({"topic": "t", "queueId": "x"})


@pytest.mark.parametrize(
    "fields",
    [
        PullMessage("g", "t", 1, 2**40, 32, 2, 0, 15_000, "*", 0, "TAG", None),
        PullMessageResponse(0, 5, 0, 9),
        QueueOffsetRequest("t", 3),
        QueueOffsetResponse(2**50),
        SendMessageResponse("A" * 32, 3, 4, None),
    ],
    ids=lambda fields: type(fields).__name__,
)
def test_typed_fields_come_back_from_ext(fields):
    ext = fields.to_ext()
    assert all(isinstance(value, str) for value in ext.values())
    assert type(fields).from_ext(ext) == fields


def test_pull_fields_carry_rocketmq_names():
    assert set(PullMessage("g", "t", 1, 2, subscription="*").to_ext()) == {
        "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag",
        "commitOffset", "suspendTimeoutMillis", "subscription", "subVersion",
    }  # fmt: skip


@pytest.mark.parametrize("kind", SerializeType)
@settings(deadline=None)
@given(opaque=I32, queue_id=I32, offset=I64)
def test_the_send_template_reads_like_an_encoded_response(kind, opaque, queue_id, offset):
    message_id = b"0A000001000078980000000000000130"
    by_template = decode_command(
        only_frame(send_response(opaque, message_id, queue_id, offset, kind))
    )
    fields = SendMessageResponse(message_id.decode(), queue_id, offset)
    by_encoder = decode_command(
        only_frame(response(opaque, 0, ext=fields.to_ext(), serialize_type=kind))
    )
    assert by_template == by_encoder
    assert by_template.is_response
    assert SendMessageResponse.from_ext(by_template.ext) == fields


def test_a_response_joins_a_body_of_many_buffers():
    frame = only_frame(response(3, 19, "nothing", body=[b"ab", memoryview(b"cd")]))
    assert bytes(frame.body) == b"abcd"
    assert msgspec.json.decode(bytes(frame.header))["remark"] == "nothing"


def test_a_field_too_long_for_the_wire_is_a_command_error():
    with pytest.raises(CommandError, match="does not fit"):
        encode_command(Command(2**20, serialize_type=SerializeType.ROCKETMQ))
    with pytest.raises(CommandError, match="does not fit"):
        encode_command(Command(1, ext={"k" * 70_000: ""}, serialize_type=SerializeType.ROCKETMQ))


def test_rocketmq_header_bytes_are_the_documented_ones():
    """Written out by hand from RocketMQSerializable, not by our encoder."""
    header = (
        struct.pack(">hBhii", 30, 0, 409, 77, 0) + struct.pack(">i", 0)
        + struct.pack(">i", 14) + struct.pack(">h", 5) + b"topic" + struct.pack(">i", 3) + b"abc"
    )  # fmt: skip
    command = decode_command(only_frame(encode_frame(header, b"", SerializeType.ROCKETMQ)))
    assert (command.code, command.opaque, command.language) == (30, 77, "JAVA")
    assert command.ext == {"topic": "abc"}


@pytest.mark.parametrize(
    ("code", "durable", "outcome"),
    [
        (0, True, "ok"),
        (1, True, "info"),
        (2, True, "fail"),
        (14, True, "fail"),
        (16, True, "fail"),
        (10, True, "info"),
        (11, True, "info"),
        (12, True, "info"),
        (10, False, "ok"),
        (12, False, "ok"),
        (19, True, "ok"),
        (215, True, "fail"),
        (4, True, "info"),
        (99_999, False, "info"),
    ],
)
def test_the_outcome_table(code, durable, outcome):
    assert outcome_of(code, durable) == outcome


def test_codes_are_rocketmqs():
    assert (RequestCode.SEND_MESSAGE_V2, RequestCode.DLEDGER_PUSH) == (310, 51004)
    assert ResponseCode.SERVICE_NOT_AVAILABLE == 14

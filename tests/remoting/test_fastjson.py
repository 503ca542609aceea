"""The JSON dialect: both forms are read, each is written on demand, no bytes crash it."""

import json
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shaketable.system.remoting.command import CommandError
from shaketable.system.remoting.fastjson import BODY_BYTES_MAX, DEPTH_MAX, dumps, loads

KEYS = st.text(max_size=8) | st.integers(-(2**40), 2**40)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=10)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
SNIPPETS = st.lists(
    st.sampled_from(
        [
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"0",
            b"-1",
            b'"',
            b"\\",
            b'"a"',
            b" ",
            b"null",
            b"\xff",
        ]
    ),
    max_size=30,
).map(b"".join)


def as_read(value):
    """What a written value is read back as: keys are strings, fields that are None are gone."""
    if isinstance(value, dict):
        return {str(key): as_read(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [as_read(item) for item in value]
    return value


def has_twins(value) -> bool:
    """Whether an integer and a text are the same key on the wire."""
    if isinstance(value, dict):
        names = [str(key) for key in value]
        return len(names) != len(set(names)) or any(map(has_twins, value.values()))
    return isinstance(value, list) and any(map(has_twins, value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"127.0.0.1:10911"}', {"0": "127.0.0.1:10911"}),
        ('{"0":"127.0.0.1:10911"}', {"0": "127.0.0.1:10911"}),
        ("{ -1 : 2 , 3:[4,5,{6:7}] }", {"-1": 2, "3": [4, 5, {"6": 7}]}),
        ('{"t@g":{0:10,1:3}}', {"t@g": {"0": 10, "1": 3}}),
        ('{0:"a,1:b","{2:":3}', {"0": "a,1:b", "{2:": 3}),
        ('{0:"\\",1:\\\\",2:"é"}', {"0": '",1:\\', "2": "é"}),
        ("[1,2]", [1, 2]),
    ],
)
def test_both_forms_are_read(text: str, value: object) -> None:
    assert loads(text.encode()) == value
    assert loads(memoryview(text.encode())) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{0}",
        b"{0:}",
        b"{a:1}",
        b"{1.5:2}",
        b"[0:1]",
        b"nul",
        b"1 2",
        b'"\xff"',
        b"{'a':1}",
    ],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(CommandError, match="bad JSON body"):
        loads(data)


def test_the_dialect_is_for_those_who_ask_for_it() -> None:
    value = {"brokerAddrs": {0: "a", 1: "b"}, "zoneName": None, "keys": [b"\x00\x01", None]}
    assert (
        dumps(value, unquoted_integer_keys=True)
        == b'{"brokerAddrs":{0:"a",1:"b"},"keys":["AAE=",null]}'
    )
    assert json.loads(dumps(value, unquoted_integer_keys=False)) == {
        "brokerAddrs": {"0": "a", "1": "b"},
        "keys": ["AAE=", None],
    }


@given(VALUES.filter(lambda value: not has_twins(value)), st.booleans())
def test_what_is_written_is_read_back(value: object, is_bare: bool) -> None:
    assert loads(dumps(value, unquoted_integer_keys=is_bare)) == as_read(value)


@given(st.binary(max_size=60) | SNIPPETS)
@example(b'{0:"')
@example(b'{"a\\')
@settings(max_examples=500)
def test_bytes_raise_a_command_error_or_nothing(data: bytes) -> None:
    with suppress(CommandError):
        value = loads(data)
        assert loads(dumps(value, unquoted_integer_keys=True)) == as_read(value)


@pytest.mark.parametrize("value", [{1.5: 2}, {True: 1}, {"a": object()}, "\ud800", {"\ud800": 1}])
def test_what_json_does_not_know_cannot_be_written(value: object) -> None:
    with pytest.raises(CommandError):
        dumps(value, unquoted_integer_keys=False)


def test_depth_is_bounded() -> None:
    good = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    assert loads(good)
    assert loads(b"[%b]" % b",".join([b'"[{"'] * 1000)) == ["[{"] * 1000
    with pytest.raises(CommandError, match="deeper"):
        loads(b"[%b]" % good)
    with pytest.raises(CommandError, match="deeper"):
        loads(b'{0:"[",1:%b' % (b"{0:" * 100_000))
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(CommandError, match="deeper"):
        dumps(endless, unquoted_integer_keys=False)


def test_size_is_bounded() -> None:
    with pytest.raises(CommandError, match="at most 5"):
        loads(b"[1,2,3]", bytes_max=5)
    with pytest.raises(CommandError, match="at most"):
        loads(b" " * (BODY_BYTES_MAX + 1))


@pytest.mark.parametrize("piece", [b'\\"', b'"', b"{0:", b"{ ", b",1"])
def test_no_byte_is_looked_at_for_each_other_byte(piece: bytes) -> None:
    """As many bytes as there may be: looking back at them all would run into the timeout."""
    start = b'{0:"'
    with pytest.raises(CommandError):
        loads(start + piece * ((BODY_BYTES_MAX - len(start)) // len(piece)))

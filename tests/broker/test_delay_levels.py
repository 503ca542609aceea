"""Delay levels: what properties say, and that each delayed message is delivered once, in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.system.broker.delay_levels import (
    DEFAULT_LEVELS_MS,
    DELAY_MARK,
    DELIVERED_MARK,
    delay_level,
    delivered_from,
    delivered_properties,
    destination,
    parse_levels,
    scheduled_properties,
    undelayed_properties,
)
from shaketable.system.remoting.command import CommandError
from shaketable.system.store.message import find_property

NAMES = ("TAGS", "KEYS", "DELAY", "FROM_DELAY", "REAL_TOPIC", "REAL_QID", "MYDELAY")
WORDS = st.text("ab12:", max_size=4)


def test_rocketmqs_levels() -> None:
    assert len(DEFAULT_LEVELS_MS) == 18
    assert DEFAULT_LEVELS_MS[:5] == (1000, 5000, 10_000, 30_000, 60_000)
    assert DEFAULT_LEVELS_MS[-1] == 7_200_000


@pytest.mark.parametrize("text", ["", "1", "s", "1y", "+1s", "1.5s", "٣s", "9999999999s"])
def test_what_is_no_list_of_levels(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no time|0 levels"):
        parse_levels(text)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"", 0),
        (b"TAGS\x01a\x02", 0),
        (b"DELAY\x013\x02", 3),
        (b"DELAY\x0199\x02", 18),
        (b"DELAY\x010\x02", 0),
        (b"DELAY\x01-1\x02", 0),
        (b"MYDELAY\x015\x02", 0),
        (b"DELAY\x013\x02DELAY\x014", 4),
    ],
)
def test_the_level_that_properties_ask_for(properties: bytes, expected: int) -> None:
    assert delay_level(properties, 18) == expected


@pytest.mark.parametrize("value", [b"soon", b"-", b"1 ", b"1234567890"])
def test_a_level_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(CommandError, match="DELAY is a level"):
        delay_level(b"DELAY\x01%b\x02" % value, 18)


@given(st.lists(st.tuples(st.sampled_from(NAMES), WORDS), max_size=8), st.booleans())
def test_properties_on_their_way_through_the_schedule(
    pairs: list[tuple[str, str]], ends_open: bool
) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    properties = text[:-1] if ends_open else text
    waiting = scheduled_properties(properties, b"t", 5, 3)
    assert delay_level(waiting, 18) == 3
    assert destination(waiting) == (b"t", 5)
    assert delivered_from(waiting) is None
    done = delivered_properties(waiting, 2, 1234)
    assert delivered_from(done) == (2, 1234)
    assert delay_level(done, 18) == 0
    assert destination(done) == (b"t", 5), "consumers see where it was sent"
    assert DELIVERED_MARK in done
    assert DELAY_MARK.encode() in done
    for name in (b"TAGS", b"KEYS", b"MYDELAY"):
        assert find_property(done, name) == find_property(properties, name)
    assert delivered_from(undelayed_properties(done)) is None
    assert destination(b"TAGS\x01a\x02") is None
    assert destination(b"REAL_TOPIC\x01t\x02REAL_QID\x01x\x02") is None

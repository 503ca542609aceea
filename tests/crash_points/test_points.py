"""Which points are chosen, and how they are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.crash_points.points import Point, choose, parse_calls, parse_points
from shaketable.harness.volatile_disk.requests import CHANGING

CALLS = st.dictionaries(st.sampled_from(CHANGING), st.integers(1, 400), min_size=1)


@given(calls=CALLS, count=st.integers(1, 1000), seed=st.text(max_size=4))
def test_so_many_different_points_are_chosen_and_all_of_them_exist(
    calls: Mapping[str, int], count: int, seed: str
) -> None:
    chosen = choose(calls, count, seed)
    assert len(set(chosen)) == len(chosen) == min(count, sum(calls.values()))
    assert all(1 <= point.nth <= calls[point.call] for point in chosen)
    assert chosen == choose(calls, count, seed)


@given(calls=CALLS, count=st.integers(1, 1000))
def test_no_kind_has_fewer_points_than_another_unless_it_has_no_more_calls(
    calls: Mapping[str, int], count: int
) -> None:
    counts = Counter(point.call for point in choose(calls, count, "7"))
    most = max(counts.values())
    assert all(counts[call] in (most, most - 1, there_are) for call, there_are in calls.items())


@given(there_are=st.integers(1, 400), count=st.integers(1, 400), seed=st.text(max_size=4))
def test_points_are_spread_over_all_calls(there_are: int, count: int, seed: str) -> None:
    chosen = sorted(point.nth for point in choose({"fsync": there_are}, count, seed))
    stretch = there_are / len(chosen)
    assert all(later - earlier < 2 * stretch + 1 for earlier, later in pairwise(chosen))
    assert chosen[0] <= stretch + 1
    assert chosen[-1] >= there_are - stretch


def test_points_are_in_an_order_that_the_seed_gives() -> None:
    calls = {"fsync": 50, "rename": 50}
    first = choose(calls, 100, "1")
    assert sorted(first) == sorted(choose(calls, 100, "2"))
    assert first != choose(calls, 100, "2")
    assert {point.call for point in first[:20]} == {"fsync", "rename"}


def test_names_are_read_back() -> None:
    points = (Point("fsync-dir", 17), Point("rename", 1))
    assert parse_points(",".join(map(str, points))) == points
    assert parse_points("write:2, write:2") == (Point("write", 2),)
    assert parse_calls("rename,fsync") == ("rename", "fsync")
    assert parse_calls("all") == CHANGING


@pytest.mark.parametrize(
    "text", ["fsync", "fsync:0", "fsync:-1", "fsync:x", "fsync:²", "read:1", ""]
)
def test_what_is_no_point_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--point"):
        parse_points(text)


def test_an_unknown_call_is_refused_with_a_better_one() -> None:
    with pytest.raises(UsageError, match="did you mean 'rename'"):
        parse_calls("fsync,renam")

"""Samples of the nodes as series: lag against where the others were then, gaps, limits."""

from __future__ import annotations

import numpy as np
import pytest

from shaketable.reports.plotting.series import NODE_POINTS_MAX, NODES_MAX, read_samples

S = 1_000_000_000


def row(time_s: float, node: str, committed: int, **more: object) -> dict[str, object]:
    time_ns = round(time_s * S)
    return {"time_ns": time_ns, "node": node, "committed_index": committed,
            "end_index": committed + 2, **more}  # fmt: skip


def test_nodes_asked_at_different_moments_are_not_behind_for_that() -> None:
    rows = [row(step / 2, "n0", step * 500) for step in range(20)]
    rows += [row(step / 2 + 0.25, "n1", step * 500 + 250) for step in range(20)]
    first, second = read_samples(rows).nodes
    assert (first.node, second.node) == ("n0", "n1")
    assert first.lag[:-1].max() == 0
    assert second.lag[:-1].max() == 0


def test_a_node_that_stands_still_is_behind_by_what_the_others_commit() -> None:
    rows = [row(step, "n0", step * 100) for step in range(10)]
    rows += [row(step, "n1", min(step, 4) * 100) for step in range(10)]
    _, behind = read_samples(rows).nodes
    assert behind.lag.tolist() == [0, 0, 0, 0, 0, 100, 200, 300, 400, 500]


def test_groups_are_not_compared_with_each_other() -> None:
    rows = [row(0, "n0", 5, group="a"), row(0, "n1", 5000, group="b")]
    assert [one.lag.tolist() for one in read_samples(rows).nodes] == [[0], [0]]


def test_no_line_goes_over_the_time_in_which_a_node_did_not_answer() -> None:
    times = [0.0, 0.5, 1.0, 1.5, 9.0, 9.5]
    [series] = read_samples(row(time, "n0", 7, wall_offset_ms=1.5) for time in times).nodes
    assert np.isnan(series.committed).tolist() == [False] * 4 + [True] + [False] * 2
    assert series.times_s[4] == pytest.approx(5.25)
    assert series.has_clocks
    assert np.isnan(series.monotonic_ms).all()


def test_of_a_long_run_the_worst_moments_stay() -> None:
    rows = [row(step / 2, "n0", step) for step in range(20_000)]
    rows += [
        row(step / 2, "n1", step - (400 if step == 13_337 else 1),
            wall_offset_ms=-90_000.0 if step == 7_007 else 0.1)
        for step in range(20_000)
    ]  # fmt: skip
    _, series = read_samples(rows).nodes
    assert len(series.times_s) <= NODE_POINTS_MAX
    assert np.nanmax(series.lag) == 400
    assert np.nanmin(series.wall_ms) == -90_000


@pytest.mark.parametrize(
    "hostile",
    [
        {"time_ns": "now"}, {"time_ns": -1}, {"committed_index": None}, {"end_index": True},
        {"committed_index": 10**400}, {"time_ns": float("nan")}, {"end_index": [3]},
    ],
)  # fmt: skip
def test_rows_that_make_no_sense_are_counted_and_left_out(hostile: dict[str, object]) -> None:
    found = read_samples([row(0, "n0", 1), {**row(1, "n0", 2), **hostile}, {}])
    assert found.left_out == 2
    [series] = found.nodes
    assert series.committed.tolist() == [1]


def test_clocks_that_are_no_numbers_are_not_known() -> None:
    [series] = read_samples(
        [row(0, "n0", 1, wall_offset_ms="soon", monotonic_offset_ms=2**60)]
    ).nodes
    assert not series.has_clocks


def test_only_so_many_nodes_are_shown() -> None:
    found = read_samples(row(0, f"n{n}", 1) for n in range(NODES_MAX + 3))
    assert len(found.nodes) == NODES_MAX
    assert found.left_out == 3

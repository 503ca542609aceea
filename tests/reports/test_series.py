from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.plotting.series import (
    BUCKETS_MAX,
    bucket_ns,
    latency,
    slices,
    slowest_and_sample,
    throughput,
)

S = 1_000_000_000


def table(rows: list[tuple[int, int, str]]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"op": n, "f": "append", "call_ns": call, "outcome": outcome,
             "return_ns": None if outcome == "info" else call + took}
            for n, (call, took, outcome) in enumerate(rows)
        ],
        schema=OPERATIONS,
    )  # fmt: skip


ROWS = st.lists(
    st.tuples(
        st.integers(0, 100 * S), st.integers(0, 5 * S), st.sampled_from(("ok", "fail", "info"))
    ),
    max_size=50,
)


@given(st.integers(0, 10**17))
def test_buckets_are_bounded_in_number(duration_ns: int) -> None:
    assert duration_ns <= bucket_ns(duration_ns) * BUCKETS_MAX
    assert bucket_ns(duration_ns) >= S // 10


@given(ROWS, st.integers(100 * S, 130 * S))
def test_throughput_counts_every_operation_once(
    rows: list[tuple[int, int, str]], duration_ns: int
) -> None:
    series = throughput(table(rows), duration_ns)
    lengths = np.diff([*series.starts_s, 0])
    lengths[:-1] = series.width_s
    lengths[-1] = max(duration_ns / 1e9 - series.starts_s[-1], series.width_s / 2)
    for outcome in ("ok", "fail", "info"):
        counted = float((getattr(series, outcome) * lengths).sum())
        assert round(counted) == sum(row[2] == outcome for row in rows)


@given(ROWS)
def test_latency_is_of_ok_operations_by_their_call(rows: list[tuple[int, int, str]]) -> None:
    series = latency(table(rows), 100 * S)
    elapsed = [took / 1e6 for _, took, outcome in rows if outcome == "ok"]
    shown = series.max_ms[~np.isnan(series.max_ms)]
    assert (max(shown) if len(shown) else None) == (max(elapsed) if elapsed else None)
    known = ~np.isnan(series.p50_ms)
    assert (series.p50_ms[known] <= series.p99_ms[known]).all()
    assert (series.p99_ms[known] <= series.max_ms[known]).all()
    assert set(series.p50_ms[known]) <= set(elapsed)


@given(st.integers(1, 30_000), st.integers(4, 400), st.randoms(use_true_random=False))
def test_a_sample_is_bounded_and_keeps_the_slowest(
    total: int, points_max: int, random: object
) -> None:
    elapsed = np.arange(total, dtype=np.float64)
    random.shuffle(elapsed)  # type: ignore[attr-defined]
    points = slowest_and_sample(elapsed, points_max)
    assert len(points.rows) <= max(points_max, 0) or total <= points_max
    assert points.total == total
    assert elapsed.max() in elapsed[points.rows]
    assert len(set(points.rows.tolist())) == len(points.rows)


def test_a_slice_names_what_overlaps_it_and_not_what_ended_as_it_starts() -> None:
    leads = [("n0", 0, 5 * S), ("n1", 5 * S, 10 * S), ("n2", 5 * S, 5 * S), ("n3", 0, 0)]
    rows = slices(table([(0, 1, "ok")]), 40 * S, (), leads, None)
    assert [(row.start_ns, row.leaders) for row in rows[4:6]] == [
        (4 * S, ("n0",)),
        (5 * S, ("n1", "n2")),  # n2 led for an instant
    ]
    assert [row.leaders for row in (rows[0], rows[9], rows[10])] == [("n0", "n3"), ("n1",), ()]

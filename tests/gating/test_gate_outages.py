"""Outages that no call shows: every client waits, nobody calls, and yet the time counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.history.export import GIVEN_UP
from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.availability import (
    NEVER_NS,
    ClientActivity,
    PhaseSpan,
    active_until,
    outages,
    recovery_times,
)
from shaketable.reports.gating.run_measures import measure_operations

S = 1_000_000_000
LIMIT = 40 * S
NEVER = float("inf")


class Op(NamedTuple):
    """An operation in seconds; `end` is when its client heard or gave up, None if it never did."""

    process: int
    call: float
    end: float | None
    outcome: str
    f: str = "append"


def ns(seconds: float) -> int:
    return round(seconds * S)


def table(operations: Sequence[Op]) -> pa.Table:
    rows = []
    for number, op in enumerate(operations):
        row = dict.fromkeys(OPERATIONS.names)
        row |= {"op": number, "process": op.process, "f": op.f, "key": "q/0"}
        row |= {"call_ns": ns(op.call), "outcome": op.outcome}
        is_known = op.end is not None and op.outcome != "info"
        rows.append({**row, "return_ns": ns(op.end or 0) if is_known else None})
    return pa.Table.from_pylist(rows, schema=OPERATIONS)


def activity(operations: Sequence[Op], until_ns: int = LIMIT) -> ClientActivity:
    rows = [
        {"process": op.process, "time_ns": ns(op.end)}
        for op in operations
        if op.outcome == "info" and op.end is not None
    ]
    return ClientActivity(until_ns, pa.Table.from_pylist(rows, schema=GIVEN_UP))


def steady(until: float, every: float = 0.01, process: int = 0, f: str = "append") -> list[Op]:
    """Operations that are acknowledged after 2 ms each, from 0 to `until`."""
    count = round(until / every)
    return [Op(process, number * every, number * every + 0.002, "ok", f) for number in range(count)]


def measured(operations: Sequence[Op], kill_s: float = 30.0) -> dict[str, float]:
    window = FaultWindow(
        0, "kill", "kill n0", ns(kill_s), ns(kill_s + 2), took_effect=True, evidence=""
    )
    found = measure_operations(table(operations), [window], activity(operations), 1.0)
    return {**found.values, **dict.fromkeys(found.missing, float("nan"))}


def test_an_outage_in_which_all_clients_wait_is_seen() -> None:
    # Both clients called just before the kill, and wait until their time is over, and after.
    blocked = [Op(0, 29.999, 46.0, "info"), Op(1, 29.9995, None, "info")]
    found = measured([*steady(29.99), *blocked])
    assert found["recovery_worst_s"] == NEVER
    assert found["unavailable_longest_s"] == pytest.approx(10.001)
    assert found["unavailable_total_s"] == pytest.approx(10.001)


def test_an_outage_after_which_blocked_clients_are_answered_lasts_until_then() -> None:
    found = measured([*steady(29.99), Op(1, 29.999, 42.5, "ok")])
    assert found["recovery_worst_s"] == pytest.approx(12.5)
    assert found["unavailable_longest_s"] == pytest.approx(12.5, abs=0.02)


def test_calls_after_the_fault_that_nobody_answers_count_to_the_end_of_the_clients_time() -> None:
    found = measured([*steady(30.0), Op(1, 30.1, 46.1, "info"), Op(2, 30.2, 46.2, "info")])
    assert found["recovery_worst_s"] == NEVER
    assert found["unavailable_longest_s"] == pytest.approx(40 - 30.1, abs=0.02)


def test_a_client_that_was_sent_away_at_once_does_not_wait() -> None:
    # The connection broke with the kill, 10 ms before the clients' time was over.
    found = measured([*steady(39.98), Op(1, 39.985, 39.9901, "info")], kill_s=39.99)
    assert found["recovery_worst_s"] != found["recovery_worst_s"], "nobody asked, nothing is known"
    assert found["unavailable_longest_s"] < 0.03


@pytest.mark.parametrize("f", ["read", "add", "write"])
def test_where_nothing_is_appended_the_time_after_the_clients_is_no_outage(f: str) -> None:
    finals = [Op(0, 47.0, 47.002, "ok", f)]
    found = measured([*steady(40.0, f=f), *finals])
    assert found["unavailable_longest_s"] == pytest.approx(0.002)
    assert found["unavailable_total_s"] == 0
    assert found["recovery_worst_s"] == pytest.approx(0.002)


def test_an_answer_to_a_last_read_after_the_clients_time_is_no_recovery() -> None:
    blocked = [Op(1, 30.1, 46.1, "info", "read")]
    found = measured([*steady(30.0, f="read"), *blocked, Op(2, 47.0, 47.1, "ok", "read")])
    assert found["recovery_worst_s"] == NEVER


def test_time_in_which_nobody_calls_is_no_outage() -> None:
    seldom = [Op(0, 5.0 * number, 5.0 * number + 0.1, "ok") for number in range(8)]
    assert measured(seldom)["unavailable_longest_s"] == pytest.approx(0.1)
    refused = [Op(0, 20.0, 20.001, "fail"), *seldom[:4], *seldom[5:]]
    assert measured(refused)["unavailable_longest_s"] == pytest.approx(5.1)


def test_who_waits_through_one_fault_into_the_next_waits_for_the_first_one_too() -> None:
    operations = [*steady(9.99), Op(1, 9.999, 21.0, "ok"), *steady(40.0)[2100:]]
    windows = [
        FaultWindow(number, "kill", "", ns(start), ns(start + 1), took_effect=True, evidence="")
        for number, start in enumerate((10.0, 15.0))
    ]
    first, second = recovery_times(table(operations), windows, activity(operations))
    assert (first.asked, second.asked > 0) == (1, True)
    assert first.recovery_ns == pytest.approx(11.002 * S)
    assert second.recovery_ns == pytest.approx(6.002 * S)


OPS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 30), st.sampled_from(("ok", "fail", "info"))),
    max_size=20,
)


@given(OPS, st.integers(0, 70))
def test_outages_against_a_clock_that_ticks(drawn: list[tuple[int, int, str]], until: int) -> None:
    operations = [
        Op(number, float(call), float(call + took), outcome)
        for number, (call, took, outcome) in enumerate(drawn)
    ]
    starts, stops = outages(table(operations), activity(operations, until * S))
    mine = [op for op in operations if op.call <= until]
    ok_ends = sorted(op.end or 0 for op in mine if op.outcome == "ok")
    for start, stop in zip((starts / S).tolist(), (stops / S).tolist(), strict=True):
        assert start < stop
        assert start < until
        assert not [end for end in ok_ends if start < end < stop]
        assert any(op.call <= start < (op.end or NEVER_NS) for op in mine), "somebody asked"
        assert stop in (*ok_ends, until)
    for tick in range(until):  # whoever waits at a tick stands in an outage
        if any(op.call <= tick < (op.end or NEVER_NS) for op in mine):
            assert any(a <= tick * S < b for a, b in zip(starts, stops, strict=True))


@pytest.mark.parametrize(
    ("phases", "limit", "until"),
    [
        ([("steady", 2, 10), ("chaos", 10, 47), ("heal", 47, 48), ("drain", 48, 50)], 40.0, 42),
        ([("steady", 2, 10), ("chaos", 10, 20), ("heal", 20, 24), ("drain", 24, 30)], 40.0, 24),
        ([("steady", 2, 10), ("chaos", 10, 31)], 40.0, 31),
        ([("chaos", 2, 44), ("retry", 44, 50), ("heal", 50, 51), ("drain", 51, 60)], 40.0, 50),
        ([("steady", 2, 10), ("chaos", 10, 47), ("drain", 48, 50)], None, 47),
        ([("steady", 2, 10)], float("nan"), 10),
        ([("steady", 2, 10)], float("inf"), 10),
        ([("setup", 0, 2), ("teardown", 2, 3)], 40.0, None),
    ],
)
def test_until_when_clients_worked(
    phases: list[tuple[str, int, int]], limit: float | None, until: int | None
) -> None:
    spans = [PhaseSpan(name, start * S, stop * S) for name, start, stop in phases]
    found = active_until(spans, limit)
    assert found == (None if until is None else until * S)

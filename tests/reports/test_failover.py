"""Failover: from the SIGKILL of the leader to the next write that a new leader acknowledged."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.availability import (
    Failover,
    Recovery,
    failover_json,
    measure_failover,
    summarise_failover,
)

MS = 1_000_000
NODES = 5
GOALS_S = (1.0, 2.0)


def history(*appends: tuple[int, int | None]) -> pa.Table:
    """Appends as (invoked, acknowledged) in ms; None for an outcome that is unknown."""
    rows = [
        {
            "op": number, "process": number, "f": "append", "key": "q/0", "call_ns": call * MS,
            "return_ns": None if back is None else back * MS,
            "outcome": "info" if back is None else "ok",
        }
        for number, (call, back) in enumerate(appends)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=OPERATIONS)


def kill(number: int, sent_ms: int, gone_ms: int, name: str = "kill", took_effect: bool = True):
    return FaultWindow(
        number, name, "", gone_ms * MS, (gone_ms + 500) * MS, took_effect, "", sent_ms * MS
    )


def plan(*victims: str, leader: str | None = "n0") -> dict[str, object]:
    return {"victims": list(victims), "leader": leader}


def test_it_counts_from_the_signal_to_what_was_asked_of_the_next_leader() -> None:
    appends = [(90, 99), (101, 130), (104, None), (120, 480), (700, 710)]
    found = measure_failover(history(*appends), [kill(0, 100, 110)], {0: plan("n0")}, NODES)
    # Invoked at 101: sent to the dying leader or before it was gone, it proves nothing.
    assert found == Failover(1, 0, 380 * MS, 380 * MS, 380 * MS)


def test_planted_bug_counting_what_was_under_way_would_flatter() -> None:
    """The append of 101 was acknowledged by the old leader: 30 ms would be no failover."""
    table = history((101, 130), (120, 480))
    window = kill(0, 100, 110)
    careless = FaultWindow(0, "kill", "", window.from_ns, window.stop_ns, True, "")
    flattered = measure_failover(table, [careless], {0: plan("n0")}, NODES)
    assert flattered is not None
    assert flattered.median_ns == 30 * MS
    found = measure_failover(table, [window], {0: plan("n0")}, NODES)
    assert found is not None
    assert found.median_ns == 380 * MS


@pytest.mark.parametrize(
    ("window", "aimed"),
    [
        (kill(0, 100, 110, name="pause"), plan("n0")),
        (kill(0, 100, 110, took_effect=False), plan("n0")),
        (kill(0, 100, 110), plan("n1")),
        (kill(0, 100, 110), plan("n1", leader=None)),
        (kill(0, 100, 110), plan("n0", "n1", "n2")),
        (kill(0, 100, 110), {}),
    ],
    ids=["a pause", "did not bite", "a follower", "nobody led", "no majority left", "no plan"],
)
def test_what_is_no_kill_of_the_leader_with_a_majority_left(window, aimed) -> None:
    assert measure_failover(history((120, 480)), [window], {0: aimed}, NODES) is None


def test_a_kill_after_which_nobody_asked_is_left_out_and_one_without_an_answer_is_not() -> None:
    windows = [kill(0, 100, 110), kill(1, 1000, 1010), kill(2, 2000, 2010)]
    table = history((120, 300), (1500, 1600), (2100, None), (4200, None))
    plans = dict.fromkeys(range(3), plan("n0"))
    found = measure_failover(table, windows, plans, NODES, None, GOALS_S)
    assert found == Failover(3, 1, 400 * MS, 600 * MS, 600 * MS, GOALS_S)
    assert not found.meets_goals, "a write that never came is no met goal"
    nobody = measure_failover(history((50, 60)), windows, plans, NODES)
    assert nobody is None


def times(*ms: int) -> Failover:
    recoveries = (Recovery(number, one * MS, None, 5, 0) for number, one in enumerate(ms))
    found = summarise_failover(recoveries, GOALS_S)
    assert found is not None
    return found


def test_the_99th_percentile_is_a_time_that_was_measured() -> None:
    assert times(*range(1, 21)).p99_ns == 20 * MS, "of 20 the slowest"
    assert times(*range(1, 101)).p99_ns == 99 * MS
    assert times(*range(1, 201)).p99_ns == 198 * MS
    assert times(5).p99_ns == times(5).median_ns == 5 * MS


def test_the_goals_are_met_or_missed() -> None:
    assert times(*[400] * 19, 2000).meets_goals
    assert not times(*[400] * 19, 2001).meets_goals
    assert not times(1001, 1002).meets_goals
    assert failover_json(times(400, 600)) == {
        "leader_kills": 2, "never": 0, "median_s": 0.5, "p99_s": 0.6, "worst_s": 0.6,
        "goal_median_s": 1.0, "goal_p99_s": 2.0, "meets_goals": True,
    }  # fmt: skip
    without = replace(times(400, 600), goals_s=None)
    assert without.meets_goals is None
    assert list(failover_json(without)) == ["leader_kills", "never", "median_s", "p99_s", "worst_s"]

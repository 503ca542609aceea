"""recovery_times and longest_gap against a deliberately dumb twin, and their edges by hand."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.availability import (
    WATCH_MIN_NS,
    Gap,
    Recovery,
    longest_gap,
    recovery_times,
    summarise,
)

TIMES = st.integers(0, 60)
ROWS = st.lists(
    st.tuples(st.sampled_from(("append", "append", "read")), TIMES, st.integers(0, 30),
              st.sampled_from(("ok", "ok", "fail", "info"))),
    max_size=25,
)  # fmt: skip
WINDOWS = st.lists(st.tuples(TIMES, st.integers(0, 20)), max_size=5)


def table(rows: list[tuple[str, int, int, str]]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "op": n, "process": n, "f": f, "key": "q/0", "call_ns": call, "outcome": outcome,
                "return_ns": None if outcome == "info" else call + took,
            }
            for n, (f, call, took, outcome) in enumerate(rows)
        ],
        schema=OPERATIONS,
    )  # fmt: skip


def window(fault: int, start: int, stop: int) -> FaultWindow:
    return FaultWindow(fault, "kill", "kill n0", start, stop, took_effect=True, evidence="")


def windows_of(drawn: list[tuple[int, int]]) -> list[FaultWindow]:
    return [window(n, start, start + length) for n, (start, length) in enumerate(drawn)]


@given(ROWS, WINDOWS)
def test_recovery_is_the_first_acknowledgement_of_what_was_called_after_the_effect(
    rows: list[tuple[str, int, int, str]], drawn: list[tuple[int, int]]
) -> None:
    windows = windows_of(drawn)
    found = recovery_times(table(rows), windows)
    assert [recovery.fault for recovery in found] == [w.fault for w in windows]
    for recovery, w in zip(found, windows, strict=True):
        returns = [
            call + took
            for f, call, took, outcome in rows
            if f == "append" and outcome == "ok" and call >= w.start_ns
        ]
        assert recovery.recovery_ns == (min(returns) - w.start_ns if returns else None)


@given(ROWS, WINDOWS)
def test_the_aftermath_ends_at_the_next_fault_or_with_the_last_question(
    rows: list[tuple[str, int, int, str]], drawn: list[tuple[int, int]]
) -> None:
    tick = WATCH_MIN_NS // 10
    rows = [(f, call * tick, took * tick, outcome) for f, call, took, outcome in rows]
    windows = windows_of([(start * tick, length * tick) for start, length in drawn])
    calls = [call for f, call, _, _ in rows if f == "append"]
    for recovery, w in zip(recovery_times(table(rows), windows), windows, strict=True):
        ends = [
            other.start_ns for other in windows if other.start_ns >= max(w.stop_ns, w.start_ns + 1)
        ]
        ends.append(max(calls, default=0))
        assert recovery.until_ns == max(min(ends), w.start_ns)
        asked = [call for call in calls if w.start_ns <= call <= recovery.until_ns]
        is_watched = max(calls, default=WATCH_MIN_NS) - w.start_ns >= WATCH_MIN_NS
        is_judged = recovery.recovery_ns is not None or is_watched
        assert recovery.asked == (len(asked) if is_judged else 0)
        assert (recovery.gap is None) == (not asked)


@given(ROWS, TIMES, st.integers(0, 40))
def test_the_longest_gap_holds_no_acknowledgement_and_no_longer_one_exists(
    rows: list[tuple[str, int, int, str]], start: int, length: int
) -> None:
    gap = longest_gap(table(rows), start, start + length)
    acknowledged = [c + t for f, c, t, outcome in rows if f == "append" and outcome == "ok"]
    assert not [time for time in acknowledged if gap.start_ns < time < gap.stop_ns]
    edges = sorted(
        {start, start + length, *(t for t in acknowledged if start <= t <= start + length)}
    )
    assert gap.start_ns in edges
    assert gap.stop_ns in edges
    assert gap.length_ns == max((b - a for a, b in pairwise(edges)), default=0)


def test_an_append_that_was_on_its_way_does_not_count_as_recovery() -> None:
    rows = [("append", 9, 3, "ok"), ("append", 11, 40, "ok"), ("append", 70, 1, "ok")]
    [recovery] = recovery_times(table(rows), [window(4, 10, 30)])
    assert recovery == Recovery(4, recovery_ns=41, gap=Gap(12, 51), asked=2, until_ns=70)


def test_a_group_that_never_serves_again_did_not_recover() -> None:
    last = 10 + WATCH_MIN_NS
    rows = [("append", 1, 1, "ok"), ("append", 12, 5, "fail"), ("append", last, 1, "info")]
    [recovery] = recovery_times(table(rows), [window(0, 10, 20)])
    assert recovery == Recovery(0, recovery_ns=None, gap=Gap(10, last), asked=2, until_ns=last)
    assert summarise([recovery]).never == 1


def test_clients_that_stop_soon_after_a_fault_do_not_show_that_the_group_never_recovered() -> None:
    last = 9 + WATCH_MIN_NS
    rows = [("append", 1, 1, "ok"), ("append", 12, 5, "fail"), ("append", last, 1, "info")]
    [recovery] = recovery_times(table(rows), [window(0, 10, 20)])
    assert recovery == Recovery(0, recovery_ns=None, gap=Gap(10, last), asked=0, until_ns=last)
    assert summarise([recovery]).never == 0


def test_a_fault_that_did_not_bite_is_no_part_of_the_summary() -> None:
    rows = [("append", 11, 1, "ok"), ("append", 51, 29, "ok")]
    mild = FaultWindow(0, "pause", "pause n2", 10, 20, took_effect=False, evidence="")
    recoveries = recovery_times(table(rows), [mild, window(1, 50, 70)])
    assert [recovery.recovery_ns for recovery in recoveries] == [2, 30]
    summary = summarise(recoveries)
    assert (summary.median_ns, summary.recovered) == (30, 1)


def test_where_nobody_asked_nothing_is_said() -> None:
    [recovery] = recovery_times(table([("append", 1, 1, "ok")]), [window(0, 10, 20)])
    assert recovery == Recovery(0, recovery_ns=None, gap=None, asked=0, until_ns=10)
    [recovery] = recovery_times(OPERATIONS.empty_table(), [window(0, 10, 20)])
    assert recovery.asked == 0


def test_the_summary_takes_only_faults_after_which_somebody_asked() -> None:
    said = [
        Recovery(0, 10, Gap(0, 8), 3, 50),
        Recovery(1, 30, Gap(60, 95), 3, 100),
        Recovery(2, None, Gap(100, 120), 2, 120),
        Recovery(3, None, None, 0, 130),
    ]
    summary = summarise(said)
    assert (summary.median_ns, summary.max_ns, summary.gap_max_ns) == (20, 30, 35)
    assert (summary.recovered, summary.never) == (2, 1)
    assert summarise([]).median_ns is None


def test_where_nothing_appends_the_writes_of_registers_count() -> None:
    rows = [("read", 11, 1, "ok"), ("write", 15, 2, "ok"), ("cas", 30, 1, "fail")]
    [found] = recovery_times(table(rows), [window(0, 10, 12)])
    assert (found.asked, found.recovery_ns) == (2, 7)
    [found] = recovery_times(table([*rows, ("append", 40, 3, "ok")]), [window(0, 10, 12)])
    assert (found.asked, found.recovery_ns) == (1, 33), "a log is measured by its appends"
    [found] = recovery_times(table(rows[:1]), [window(0, 10, 12)])
    assert found.asked == 0

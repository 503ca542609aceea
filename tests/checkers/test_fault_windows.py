"""Under which fault something happened, or just before which."""

from __future__ import annotations

from shaketable.checkers.findings import JUST_BEFORE_NS, just_before, windows_at
from shaketable.harness.contracts.plugins import CheckContext, FaultWindow, Promises


def window(number: int, start_ns: int, stop_ns: int) -> FaultWindow:
    return FaultWindow(number, "kill", "kill n0", start_ns, stop_ns, took_effect=True, evidence="")


CONTEXT = CheckContext(
    nodes=("n0",),
    committed={},
    promises=Promises(),
    windows=(
        window(0, 10, 20),
        window(1, 15, 30),
        window(2, 50 + JUST_BEFORE_NS, 60 + JUST_BEFORE_NS),
    ),
)


def test_the_latest_of_overlapping_faults_comes_first() -> None:
    assert [w.fault for w in windows_at(CONTEXT, 16)] == [1, 0]
    assert [w.fault for w in windows_at(CONTEXT, 30)] == [1]
    assert windows_at(CONTEXT, 31) == []


def test_a_fault_that_begins_soon_is_named_and_a_later_one_is_not() -> None:
    assert just_before(CONTEXT, 9) == CONTEXT.windows[0]
    assert just_before(CONTEXT, 49) is None
    assert just_before(CONTEXT, 50) == CONTEXT.windows[2]
    assert just_before(CONTEXT, 70 + JUST_BEFORE_NS) is None


def test_what_happened_while_a_fault_was_being_done_is_under_it() -> None:
    """A kill takes effect before the harness knows that the process is gone."""
    begun = FaultWindow(0, "kill", "kill n0", 20, 30, took_effect=True, evidence="", began_ns=12)
    context = CheckContext(nodes=("n0",), committed={}, promises=Promises(), windows=(begun,))
    assert windows_at(context, 12) == [begun]
    assert windows_at(context, 11) == []
    assert just_before(context, 11) == begun
    assert just_before(context, 12) is None

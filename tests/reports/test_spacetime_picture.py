from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.reports import spacetime
from shaketable.reports.run_view import OperationRow

MS = 1_000_000
S = 1_000 * MS


def row(
    op: int, call: int, end: int | None, process: int = 0, *, marked: bool = False
) -> OperationRow:
    outcome = "info" if end is None else "ok"
    return OperationRow(
        op, process, "append", "q/0", 17, None, 4, call, end, outcome, None, "n0", marked
    )


SPANS = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(0, 10**10)).map(lambda s: (s[0], s[0] + s[1])),
    min_size=1,
    max_size=20,
)


@given(SPANS, st.lists(st.integers(0, 10**12), max_size=20))
def test_the_time_axis_keeps_order_and_bounds(
    spans: list[tuple[int, int]], moments: list[int]
) -> None:
    axis = spacetime.time_axis(spans, 80, 900)
    xs = [axis.x(moment) for moment in sorted(moments)]
    assert all(before <= after for before, after in pairwise(xs))
    assert all(80 <= x <= 900.001 for x in xs)
    assert axis.x(min(start for start, _ in spans)) == 80


@given(SPANS, st.lists(st.integers(0, 5), min_size=20, max_size=20))
def test_every_operation_is_drawn_inside_the_picture(
    spans: list[tuple[int, int]], processes: list[int]
) -> None:
    rows = [
        row(n, start, None if n % 3 == 2 else stop, processes[n], marked=n == 0)
        for n, (start, stop) in enumerate(spans)
    ]
    picture = spacetime.lay_out(rows, ())
    assert [bar.number for bar in picture.bars] == list(range(1, len(rows) + 1))
    for bar in picture.bars:
        assert bar.x >= spacetime.LEFT
        assert bar.x + bar.width <= picture.width
        assert 0 < bar.y < picture.height - spacetime.BAR
        assert bar.show_number or not bar.marked
    assert all(x <= picture.width for x, _ in picture.ticks)


@given(SPANS, st.lists(st.integers(0, 2), min_size=20, max_size=20), st.sets(st.integers(0, 20)))
def test_labels_are_not_printed_over_each_other(
    spans: list[tuple[int, int]], processes: list[int], marked: set[int]
) -> None:
    """What is marked has its number in any case, and is out of the way of all others."""
    rows = [
        row(n, start, stop, processes[n], marked=n in marked)
        for n, (start, stop) in enumerate(spans)
    ]
    shown = [bar for bar in spacetime.lay_out(rows, ()).bars if bar.show_number]
    for bar in shown:
        assert _span(bar)[0] >= spacetime.LEFT or bar.marked
        for other in shown:
            if other is not bar and other.y == bar.y and not (other.marked and bar.marked):
                assert _span(bar)[1] <= _span(other)[0] or _span(other)[1] <= _span(bar)[0]


def test_two_marked_labels_at_the_edge_stand_beside_each_other() -> None:
    rows = [row(0, 0, 3 * S, 1), row(1, 3 * S, 3 * S + 9 * MS, 0, marked=True),
            row(2, 3 * S + 50 * MS, 3 * S + 90 * MS, 0, marked=True)]  # fmt: skip
    shown = [bar for bar in spacetime.lay_out(rows, ()).bars if bar.show_number and bar.marked]
    first, second = sorted(map(_span, shown))
    assert first[1] <= second[0]


def _span(bar: spacetime.Bar) -> tuple[float, float]:
    width = spacetime.LABEL_WIDTH * len(bar.label)
    is_left = bar.label_anchor == "end"
    return (bar.label_x - width, bar.label_x) if is_left else (bar.label_x, bar.label_x + width)


def test_idle_time_is_squeezed_and_said() -> None:
    rows = [row(0, 10 * S, 10 * S + 5 * MS), row(1, 10 * S + 8 * MS, 10 * S + 12 * MS)]
    assert spacetime.lay_out(rows, ()).breaks == ()
    rows.append(row(2, 55 * S, 55 * S + 4 * MS, marked=True))
    picture = spacetime.lay_out(rows, ())
    assert [label for _, label in picture.breaks] == ["+45 s"]
    first, second, third = picture.bars
    assert third.x > second.x + second.width
    assert first.width > 100  # the near ones keep their scale


def test_sparse_operations_are_not_squeezed() -> None:
    rows = [row(n, n * S, n * S + 2 * MS) for n in range(25)]
    assert spacetime.lay_out(rows, ()).breaks == ()


def test_an_unknown_outcome_runs_to_the_edge() -> None:
    picture = spacetime.lay_out([row(0, S, S + 9 * MS), row(1, S + 2 * MS, None, 1)], ())
    known, unknown = picture.bars
    assert unknown.open_ended
    assert not known.open_ended
    assert unknown.x + unknown.width >= known.x + known.width


def test_bands_lie_where_the_fault_was_and_labels_never_overprint() -> None:
    windows = [
        FaultWindow(
            n, "kill", "kill leader n0", S + n * MS, S + 30 * MS, took_effect=True, evidence=""
        )
        for n in range(4)
    ]
    picture = spacetime.lay_out([row(0, S - 20 * MS, S + 40 * MS)], windows)
    assert len(picture.bands) == 4
    shown = [band for band in picture.bands if band.label]
    assert shown
    for before, after in pairwise(shown):
        assert before.label_x + len(before.label) * spacetime.LABEL_WIDTH <= after.label_x
    assert picture.bands[0].x > spacetime.LEFT

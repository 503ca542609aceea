"""What the nemesis did: read from any format, and drawn where it lasted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from check_samples import checked, invalid, long_history, undecided

from shaketable.checkers.api import check
from shaketable.harness.history.foreign import read_history
from shaketable.harness.history.foreign.history import Faults, FaultSpan
from shaketable.reports.check_page.checked_history import FailingPart, PartOperation, failing_part
from shaketable.reports.check_page.page import render_page
from shaketable.reports.check_page.pictures import lay_out

ACTS = [  # f, begun, done
    ("start-partition", 10, 12), ("kill", 20, 21), ("start", 30, 31), ("stop-partition", 40, 42),
    ("bump-clock", 50, 51), ("snapshot", 55, 58), ("pause", 60, 61),
]  # fmt: skip
SPANS = (
    FaultSpan("start-partition", 10, 42),
    FaultSpan("kill", 20, 31),
    FaultSpan("bump-clock", 50, None),
    FaultSpan("snapshot", 55, 58),
    FaultSpan("pause", 60, None),
)


def test_acts_that_belong_together_become_spans() -> None:
    faults = Faults()
    for f, begun, done in ACTS:
        faults.take(f, begun)
        faults.take(f, done)
    assert faults.spans() == SPANS


def test_older_histories_start_and_stop() -> None:
    faults = Faults()
    for time_ns, f in enumerate(("start", "start", "stop", "stop", "start", "start")):
        faults.take(f, time_ns)
    assert faults.spans() == (FaultSpan("start", 0, 3), FaultSpan("start", 4, None))


@pytest.mark.parametrize("form", ["edn", "jsonl", "log"])
def test_every_format_of_events_has_them(tmp_path: Path, form: str) -> None:
    events: list[tuple[int, str, str]] = [(0, "invoke", "read"), (100, "ok", "read")]
    lines = []
    for time_ns, kind, f in [*events, *((t, "info", f) for f, *ts in ACTS for t in ts)]:
        process = "nemesis" if kind == "info" else 0
        if form == "edn":
            who = ":nemesis" if process else 0
            lines.append(f"{{:process {who}, :type :{kind}, :f :{f}, :time {time_ns}}}")
        elif form == "jsonl":
            line = {"process": process, "type": kind, "f": f, "time_ns": time_ns}
            lines.append(json.dumps(line))
        else:
            lines.append(f"{':nemesis' if process else 0} :{kind} :{f} nil")
    path = tmp_path / f"h.{form}"
    path.write_text("\n".join(lines) + "\n")
    told = read_history(path).faults
    assert [span.name for span in told] == [span.name for span in SPANS]
    if form == "jsonl":
        assert told == SPANS


def test_faults_among_lines_of_operations(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    path.write_text(
        '{"process": "nemesis", "f": "kill", "call_ns": 5, "return_ns": 9}\n'
        '{"process": 0, "f": "write", "call_ns": 1, "return_ns": 2, "input": 3}\n'
    )
    assert read_history(path).faults == (FaultSpan("kill", 5, 9),)


def part() -> FailingPart:
    operations = tuple(
        PartOperation(n, n % 3, f"write {n}", 100 * n, 100 * n + 80, "ok") for n in range(1, 9)
    )
    return FailingPart(operations, stuck=8)


def test_a_band_stands_where_its_fault_lasted() -> None:
    faults = [("before", 0, 50), ("kill", 150, 420), ("pause", 700, None), ("after", 2000, 2100)]
    picture = lay_out(part(), is_timed=True, faults=faults)
    kill, pause = picture.bands
    bars = {bar.label: bar for bar in picture.bars}
    assert bars["write 1"].x <= kill.x <= bars["write 2"].x
    assert bars["write 4"].x < kill.x + kill.width < bars["write 5"].x
    assert bars["write 6"].x < pause.x <= bars["write 7"].x + 1
    assert pause.x + pause.width > bars["write 8"].x
    assert kill.row != pause.row
    for y, _ in picture.lanes:  # their names stand above all lanes
        assert y >= 15 * 2


def test_one_that_began_earlier_is_marked() -> None:
    page = render_page(
        [checked(check(long_history(500), "cas-register"), faults=(("kill <b>", 0, None),))]
    )
    assert "… kill &lt;b&gt;" in page
    assert "a shaded band is a fault while it lasted" in page
    assert "a shaded band" not in render_page([invalid()])


def test_no_moment_of_the_order_stands_behind_the_return_that_nothing_gets_past() -> None:
    """Each has taken effect by then: that is why the stuck operation cannot follow."""
    for seed in range(4):
        verdict = check(long_history(3_000, clients=40, seed=seed), "cas-register")
        found = failing_part(verdict.findings[0], {})
        assert found is not None
        picture = lay_out(found, is_timed=True)
        assert picture.deadline is not None
        assert [p.x for p in picture.points] == sorted(p.x for p in picture.points)
        assert all(point.x <= picture.deadline for point in picture.points)
        bars = {bar.title.partition(", client")[0]: bar for bar in picture.bars}
        for point in picture.points:
            bar = bars[point.title.partition(". ")[2].partition(" takes effect")[0]]
            assert bar.x - 0.2 <= point.x


def test_many_moments_before_one_return_move_together() -> None:
    many = tuple(
        PartOperation(n, n, "w", 10 * n, 10_000 + n, "ok") for n in range(1, 24)
    )  # fmt: skip
    stuck = PartOperation(99, 99, "r", 229, 231, "ok")
    prefix = tuple((each.op, "a state") for each in many)
    picture = lay_out(FailingPart((*many, stuck), prefix, 99), is_timed=True)
    assert picture.deadline is not None
    assert len(picture.points) == 23
    assert all(point.x <= picture.deadline for point in picture.points)
    starts = {bar.y: bar.x for bar in picture.bars}
    assert all(point.x >= starts[point.y + 10] for point in picture.points)


def test_an_order_that_was_cut_or_not_decided_is_not_called_the_longest() -> None:
    assert "The longest order" not in render_page([undecided()])


def test_a_rule_that_tried_no_order_claims_none() -> None:
    from shaketable.checkers.api import Operation  # noqa: PLC0415

    rows = [Operation(0, "append", 10 * n, 10 * n + 5, input=n, offset=n) for n in range(4)]
    rows.append(Operation(1, "read", 100, 110, output=99, offset=1))
    page = render_page([checked(check(rows, "append-log"))])
    assert "has no place in any order" in page
    for claim in ("All other orders", "all of them can be explained", "can come first"):
        assert claim not in page


def test_signs_that_turn_the_text_behind_them_are_replaced() -> None:
    rows = [("write", "\u202egnirts"), ("read", None)]
    events = [e for f, v in rows for e in ((f, "invoke", v), (f, "ok", v))]
    lines = [
        {"process": 0, "type": t, "f": f, "value": "x" if f == "read" and t == "ok" else v}
        for f, t, v in events
    ]
    from shaketable.checkers.api import Event  # noqa: PLC0415

    verdict = check([Event(**line) for line in lines], "register")
    page = render_page([checked(verdict)])
    assert "\u202e" not in page

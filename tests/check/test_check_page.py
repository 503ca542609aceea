"""The page of `check`: what it says, and that it stays small."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from check_samples import anomalies, checked, hostile, invalid, long_history, undecided

from shaketable.checkers.api import check
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.terminal.histories.check import _why
from shaketable.reports.check_page.checked_history import failing_part
from shaketable.reports.check_page.page import render_page
from shaketable.reports.check_page.pictures import lay_out

BYTES_MAX = 1_000_000


def words(page: str) -> str:
    body = page.partition("<body>")[2]
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_it_says_what_fails_and_why() -> None:
    page = render_page([invalid()])
    said = words(page)
    assert "✗ INVALID" in said
    assert "The longest order that explains the answers has 3 operations" in said
    assert "What could not come next, and why" in said
    assert re.search(r"read 3 of client 2: it read 3, the register holds 4", said)
    assert "gives these answers" in said


def test_the_order_is_drawn_inside_its_operations() -> None:
    history = invalid()
    part = failing_part(history.verdicts[0].findings[0], {})
    assert part is not None
    picture = lay_out(part, is_timed=False)
    assert [point.number for point in picture.points] == [1, 2, 3]
    assert [p.x for p in picture.points] == sorted(p.x for p in picture.points)
    placed = {bar.title.partition(",")[0]: bar for bar in picture.bars if bar.role == "placed"}
    for point in picture.points:
        bar = placed[point.title.partition(". ")[2].partition(" takes")[0]]
        assert bar.x <= point.x <= bar.x + bar.width
    (stuck,) = [bar for bar in picture.bars if bar.role == "stuck"]
    assert picture.deadline == pytest.approx(stuck.x + stuck.width, abs=0.2)
    assert picture.deadline_label_x >= len(picture.deadline_label) * 5  # inside the picture


def test_what_is_undecided_is_never_said_to_be_wrong() -> None:
    said = words(render_page([undecided()]))
    assert "? UNKNOWN" in said
    assert "was not decided: time was used up" in said
    assert "gives these answers" not in said


def test_an_anomaly_shows_the_operations_that_it_names() -> None:
    said = words(render_page([anomalies()]))
    assert "lost-element, key q: 9 was acknowledged and never read" in said
    assert "enqueue 9" in said
    assert "dequeue: nothing" in said


def test_a_clean_history() -> None:
    verdict = Verdict("linearizable", Outcome.VALID, "1 partition linearizable", counts={"n": 3})
    said = words(render_page([checked(verdict)]))
    assert "✓ VALID" in said


def test_several_histories_are_listed_the_worst_first() -> None:
    fine = Verdict("linearizable", Outcome.VALID, "fine")
    page = render_page([checked(fine, path="a.edn"), invalid(), undecided()])
    said = words(page)
    assert "3 histories: 1 invalid, 1 unknown, 1 valid" in said
    assert (
        page.index('id="history-2"') < page.index('id="history-3"') < page.index('id="history-1"')
    )


def test_text_of_others_is_text() -> None:
    page = render_page([hostile()])
    assert "<script" not in page
    assert "<img" not in page
    assert "49" not in words(page)


def test_a_hundred_thousand_operations_make_a_small_page() -> None:
    verdict = check(long_history(100_000), "cas-register", time_s=100)
    assert verdict.outcome is Outcome.INVALID
    page = render_page([checked(verdict)])
    assert len(page.encode()) < BYTES_MAX
    assert "read 99" in page


def test_many_findings_make_a_small_page() -> None:
    one = invalid().verdicts[0]
    finding = one.findings[0]
    many = tuple(
        type(finding)(finding.kind, f"{n}: {finding.message * 20}", str(n), None,
                      finding.operations, finding.details) for n in range(200)
    )  # fmt: skip
    verdict = Verdict("linearizable", Outcome.INVALID, "200 not-linearizable", many, 5000)
    page = render_page([checked(verdict) for _ in range(300)])
    assert len(page.encode()) < BYTES_MAX
    assert "more findings were counted and are not shown" in page


def test_findings_of_several_kinds_are_not_counted_as_one() -> None:
    (first,) = anomalies().verdicts[0].findings
    for other, counted in (
        (first, "2 elements that were known to be there are gone in all"),
        (replace(first, kind="unexpected-element"), "2 findings in all"),
    ):
        verdict = Verdict("total-queue", Outcome.INVALID, "2 findings", (first, other), 2)
        assert counted in words(render_page([checked(verdict, model=None)]))


def test_the_terminal_counts_others_like_the_first() -> None:
    (first,) = anomalies().verdicts[0].findings
    for other, counted in (
        (first, "(1 more like it)"),
        (replace(first, kind="unexpected-element"), "(1 more, of other kinds too)"),
    ):
        verdict = Verdict("total-queue", Outcome.INVALID, "2 findings", (first, other), 2)
        assert _why(checked(verdict, model=None)).endswith(counted)

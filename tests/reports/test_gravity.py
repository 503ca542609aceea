"""What is gravest stands first: in the verdict's sentence, among the findings, on the pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shaketable.reports import finding_texts
from shaketable.reports.run_page import view as run_view
from shaketable.reports.run_view import CheckerView, OperationRow, Violation
from shaketable.reports.violation_page.meaning import meaning_of
from shaketable.reports.violation_page.moments import Story
from shaketable.reports.violation_page.violation_view import Entries, Entry, EntryRow, Step


def checker(name: str, verdict: str, summary: str = "", **totals: int) -> CheckerView:
    kinds = tuple((kind.replace("_", "-"), count) for kind, count in totals.items())
    return CheckerView(name, verdict, summary, (), (), sum(totals.values()), 0, (), totals=kinds)


def why(verdict: str, *checkers: CheckerView) -> str:
    return run_view._why(verdict, {"checkers": {}}, sorted(checkers, key=run_view._gravity))


def test_a_broken_rule_is_said_before_what_follows_from_it() -> None:
    rule = "The invariant vote-is-durable was broken at n1, 5.000 s into the run: it is gone"
    said = why(
        "INVALID",
        checker("durability", "INVALID", "12 lost-append", lost_append=12),
        checker("invariants", "INVALID", rule, invariant_broken=1),
        checker("vacuity", "UNKNOWN", "vacuous: none took effect"),
    )
    assert said == f"{rule}; 12 acknowledged appends are lost"


def test_a_doubt_stands_behind_what_explains_it() -> None:
    said = why(
        "UNKNOWN",
        checker("durability", "UNKNOWN", "the log of n1 is damaged"),
        checker("vacuity", "UNKNOWN", "vacuous: none took effect"),
        checker("stats", "UNKNOWN", "not a single ok read"),
        checker("run-as-planned", "UNKNOWN", "n1 serves with a damaged store"),
    )
    names = [part.partition(":")[0] for part in said.split("; ")]
    assert names == ["run-as-planned", "durability", "vacuity", "stats"]


def test_a_value_stored_twice_is_told_before_the_offset_that_it_took() -> None:
    order = ("invariant-broken", "lost-append", "divergent", "duplicated", "unexplained-offset")
    ranks = [finding_texts.rank(kind) for kind in order]
    assert ranks == sorted(ranks)


def row(**more: Any) -> OperationRow:
    known = OperationRow(
        5, 3, "append", "q/0", 17, None, None, 10, 20, "fail", "no quorum", "n0", False
    )
    return replace(known, **more)


def meaning(append: OperationRow) -> str:
    there = Entry(9, 2, 1, "q/0", 4, 17, None, is_at_place=True, differs=False)
    rows = (EntryRow(9, ((there,),), gap=False, kept=(True,)),)
    entries = Entries(("n0",), rows, (("n0", "value 17"),))
    story = Story((Step(append, "", "", False),), (), (), (), entries, ())
    finding = Violation("unexplained-offset", "said", "q/0", 4, None, None, None, None, (), ())
    return meaning_of(finding, story, None)


@pytest.mark.parametrize(
    ("append", "said"),
    [
        (row(), "Client 3, which appended it, was answered that this had certainly failed: no"),
        (row(outcome="ok", offset=2), "was given offset 2 for it: the value 17 is stored twice."),
    ],
)
def test_who_took_an_offset_is_named_with_what_it_was_answered(
    append: OperationRow, said: str
) -> None:
    assert said in meaning(append)
    assert meaning(row(input=18)) == ""

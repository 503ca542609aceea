"""What a violation's page says of operations and moments is true, and in words of its own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shaketable.reports import finding_texts
from shaketable.reports.run_page.view import build_view
from shaketable.reports.run_page.violations import SHOWN_MAX
from shaketable.reports.run_view import OperationRow, RoleSpan
from shaketable.reports.spacetime import LABEL_WIDTH, describe, lay_out
from shaketable.reports.violation_page.building import build_pages
from shaketable.reports.violation_page.moments import OPERATIONS_MAX
from shaketable.reports.violation_page.violation_view import ViolationPage

MS = 1_000_000
S = 1_000 * MS
KEY = "shaketable/0"


def page_of(folder: Path, kind: str) -> ViolationPage:
    return next(each for each in build_pages(build_view(folder)) if each.violation.kind == kind)


def row(f: str, **columns: Any) -> OperationRow:
    about: dict[str, Any] = dict.fromkeys(("input", "output", "offset", "error"))
    about |= {"op": 0, "process": 1, "key": KEY, "call_ns": 0, "return_ns": MS, "outcome": "ok"}
    return OperationRow(f=f, node="n0", marked=True, **(about | columns))


def test_a_title_has_no_number_and_no_time_before_it() -> None:
    assert finding_texts.title("lost-append") == "Acknowledged append is lost"
    assert finding_texts.title("offset-given-twice") == "An offset was given to two appends"
    assert finding_texts.title("somebody's own") == "somebody's own"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("n2: its log lacks index 15.", "n2: its log lacks index 15."),
        ("q/0, q/1: a cycle of 2 operations.", "q/0, q/1: a cycle of 2 operations."),
        (f"{KEY}: the read by process 7 (op 3) found nothing.",
         "The read by client 7 (op 3) found nothing."),
        ("the id 7 was handed out twice, to op 6 (process 1).",
         "The id 7 was handed out twice, to op 6 (client 1)."),
        ("entry 3 is committed on nodes that disagree: n0 holds it.",
         "Entry 3 is committed on nodes that disagree: n0 holds it."),
    ],
)  # fmt: skip
def test_a_sentence_begins_large_but_a_name_stays_as_it_is(
    lost: Any, message: str, said: str
) -> None:
    lost.find("some-checker", "gap", [6], message=message)
    assert page_of(lost.write(), "gap").claim.instead == said


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (row("add", input=5), "add 5"),
        (row("enqueue", input=5, outcome="fail"), "enqueue 5: fail"),
        (row("cas", input=5, output=0), "cas 5: 0"),
        (row("read", offset=3), "read @3: nothing"),
        (row("poll", output_text="7 @3"), "poll: 7 @3"),
        (row("misrequest", input=16, expected=16, output=0), "misrequest 16: 0"),
        (
            row("misrequest", input=16, expected=16, output=0, request="add the leader"),
            'misrequest "add the leader": 0',
        ),
    ],
)
def test_an_operation_says_what_it_was_given_and_what_came_back(
    operation: OperationRow, said: str
) -> None:
    assert describe(operation) == said


def test_messages_of_a_poll_are_told_by_value_and_offset(lost: Any) -> None:
    poll = lost.op("poll", 15 * S, 15 * S + MS, extra='{"output": [[2, 12], [3, 17]]}')
    empty = lost.op("poll", 16 * S, 16 * S + MS, extra='{"output": []}')
    lost.find("log-anomalies", "poll-skip", [poll, empty], offset=3)
    steps = page_of(lost.write(), "poll-skip").steps
    assert [step.seen for step in steps if step.row.f == "poll"] == ["12 @2, 17 @3", "nothing"]
    assert steps[-1].legal == "offset 3 next"


def test_a_read_before_its_append_was_called_could_find_nothing(lost: Any) -> None:
    early = lost.op("read", 9 * S, 9 * S + MS, offset=3, output=17)
    lost.find("cycles", "G1c-realtime", [early, 6], offset=3)
    step = page_of(lost.write(), "G1c-realtime").steps[0]
    assert (step.row.op, step.legal, step.is_wrong) == (early, "nothing", True)


def test_of_an_append_that_nobody_acknowledged_earlier_reads_tell(bad: Any) -> None:
    bad.op("append", 1 * S, None, input=5, outcome="info")
    first = bad.op("read", 2 * S, 2 * S + MS, offset=0, output=5)
    second = bad.op("read", 3 * S, 3 * S + MS, offset=0)
    bad.find("linearizable-log", "read-went-back", [second, first], offset=0)
    steps = page_of(bad.write(), "read-went-back").steps
    assert [(step.legal, step.is_wrong) for step in steps] == [("", False), ("5", True)]


@pytest.mark.parametrize(
    ("kind", "legal"),
    [("aborted-read", "anything but 99"), ("duplicate", "99 at one offset alone")],
)
def test_an_answer_that_breaks_a_rule_says_what_it_could_have_been(
    lost: Any, kind: str, legal: str
) -> None:
    lost.find("log-anomalies", kind, [8, 10], value=99)
    step = page_of(lost.write(), kind).steps[-1]
    assert (step.legal, step.is_wrong) == (legal, True)


def test_a_transaction_is_told_with_all_that_it_did(bad: Any) -> None:
    both = bad.op("send", S, 2 * S, input=1, offset=0)
    bad.operations.append({**bad.operations[-1], "key": "shaketable/1", "input": 2, "offset": 4})
    other = bad.op("send", S, 2 * S, input=3, offset=1) + 2
    bad.operations[-1]["op"] = other
    edges = [{"from": both, "to": other, "edge": "ww", "why": "x"},
             {"from": other, "to": both, "edge": "ww", "why": "y"}]  # fmt: skip
    bad.find("transaction-cycles", "G0", [both, other], key=None, cycle=edges)
    page = page_of(bad.write(), "G0")
    assert [step.row.input for step in page.steps] == [1, 2, 3]
    assert page.cycle is not None
    assert page.cycle.nodes[0].label == "send 1 @0; send 2 @4"


def test_the_moment_is_called_by_what_was_then(lost: Any) -> None:
    lost.find("linearizable-log", "stale-read", [10, 8], offset=3)
    lost.find("set-full", "lost-element", [lost.op("add", S, 2 * S, input=7, key="s")], key="s")
    lost.find("committed-prefix", "divergent", [], key=None, index=4)
    folder = lost.write()
    said = {kind: page_of(folder, kind).moment_label
            for kind in ("lost-append", "stale-read", "lost-element", "divergent")}  # fmt: skip
    assert said == {
        "lost-append": "acknowledged", "stale-read": "answered",
        "lost-element": "acknowledged", "divergent": "its term began",
    }  # fmt: skip


def test_of_many_operations_the_accused_one_and_its_neighbours_are_shown(bad: Any) -> None:
    ops = [bad.op("read", n * S, n * S + MS, key="r/0", output=n) for n in range(40)]
    bad.find("linearizable-register", "not-linearizable", [ops[-1], *ops[:-1]], key="r/0")
    page = page_of(bad.write(), "not-linearizable")
    assert [step.row.op for step in page.steps] == ops[-OPERATIONS_MAX:]
    assert (page.moment_ns, page.moment_label) == (39 * S + MS, "answered")


def test_stretches_left_out_side_by_side_are_labelled_as_far_as_there_is_room() -> None:
    busy = [row("read", op=n, call_ns=2 * n * MS, return_ns=(2 * n + 1) * MS) for n in range(12)]
    moments = [10 * S, 20 * S, 30 * S]
    drawn = lay_out(busy, (), (), moments)
    assert len(drawn.breaks) == len(moments)
    assert not all(label for _, label in drawn.breaks)
    spans = [(x - LABEL_WIDTH * len(label) / 2, x + LABEL_WIDTH * len(label) / 2)
             for x, label in drawn.breaks if label]  # fmt: skip
    assert spans
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_without_operations_the_time_before_the_moment_is_drawn() -> None:
    lanes = [
        RoleSpan("n0", "leader", 1, 5 * S, 9 * S),
        RoleSpan("n0", "follower", 2, 9 * S, 20 * S),
    ]
    drawn = lay_out((), (), lanes, [10 * S])
    (led, followed) = drawn.roles
    assert led.width == pytest.approx(2 * followed.width, rel=0.01), "7 to 9 s, and 9 to 10 s"


def test_a_rare_kind_is_shown_beside_a_common_one_of_many_faults(lost: Any) -> None:
    for fault in range(SHOWN_MAX + 5):
        for _ in range(2):
            lost.find("durability", "reordered", [6], offset=3, faults=[f"kill {fault} (n0)"])
    lost.find("durability", "altered", [6], offset=3)
    assert page_of(lost.write(), "altered").violation.page


@pytest.mark.parametrize(
    ("output", "words", "seen"),
    [(1, "cas 4 → 5", "it took effect"), (0, "cas 4 → 5: not done", "another value was there")],
)
def test_a_compare_and_set_says_what_it_expected_and_whether_it_was_done(
    bad: Any, output: int, words: str, seen: str
) -> None:
    assert describe(row("cas", input=5, expected=4, output=output)) == words
    op = bad.op("cas", 5 * S, 6 * S, input=5, expected=4, output=output, key="r/0")
    bad.find("linearizable-register", "not-linearizable", [op], key="r/0")
    (step,) = page_of(bad.write(), "not-linearizable").steps
    assert step.seen == seen


@pytest.mark.parametrize("others", [3, 9])
def test_of_many_operations_that_were_searched_the_one_that_fits_nowhere_is_marked(
    bad: Any, others: int
) -> None:
    ops = [bad.op("write", n * S, n * S + MS, input=n, key="r/0") for n in range(others)]
    read = bad.op("read", 12 * S, 12 * S + MS, output=77, key="r/0")
    bad.find("linearizable-register", "not-linearizable", [read, *ops], key="r/0")
    page = page_of(bad.write(), "not-linearizable")
    marked = [step.row.op for step in page.steps if step.row.marked]
    assert marked == ([read] if others > 3 else [*ops, read])
    assert page.moment_ns == 12 * S + MS

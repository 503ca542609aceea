"""What `refusals` says of a request that must be refused."""

from __future__ import annotations

import pytest
from checker_histories import context, op, table

from shaketable.checkers.queues.refusals import PLUGIN
from shaketable.reports.check_page.checked_history import describe

WORDS = '{"request": "add the leader"}'


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (WORDS, 'the misrequest 16 ("add the leader") of process 3 (op 3)'),
        (None, "the misrequest 16 of process 3 (op 3)"),
        ("{", "the misrequest 16 of process 3 (op 3)"),
    ],
    ids=["recorded", "older", "damaged"],
)
def test_a_finding_names_the_request_in_words_if_they_were_recorded(
    extra: str | None, said: str
) -> None:
    asked = op(3, "misrequest", 0, 10, key="q", input=16, expected=16, output=0, extra=extra)
    found, _ = PLUGIN.check({"operations": table([asked])}, context())["message"].to_pylist()
    assert found == f"q: {said}, which is to be refused with code 16, was done."


def test_the_page_of_a_check_names_it_too() -> None:
    asked = op(3, "misrequest", 0, 10, input=16, expected=16, output=0)
    assert describe(asked) == "misrequest 16 -> 16: 0"
    assert describe({**asked, "extra": WORDS}) == 'misrequest "add the leader": 0'


def silent(*others: dict[str, object], **more: object) -> int:
    """Return how many requests are found unanswered, beside others; times in seconds."""
    asked = op(3, "misrequest", 1_000_000_000, None, key="q", input=16, expected=16, outcome="info")
    beside = op(4, "poll", 1_100_000_000, 1_200_000_000, key="q")
    found = PLUGIN.check({"operations": table([asked, beside, *others])}, context(**more))
    return sum(1 for kind in found["kind"].to_pylist() if kind == "no-answer")


def test_a_request_that_alone_had_no_answer_is_found() -> None:
    assert silent() == 1


@pytest.mark.parametrize("seen_ns", [2_500_000_000, 4_500_000_000, 8_000_000_000])
def test_a_request_that_an_election_may_have_cut_is_not(seen_ns: int) -> None:
    # Many sends, one after another: the first second says nothing about the last of them.
    assert not silent(elections_ns=(seen_ns,), patience_ns=4_000_000_000)


def test_nor_is_one_beside_others_without_an_answer() -> None:
    other = op(5, "send", 3_000_000_000, None, key="q", outcome="info")
    assert not silent(other)
    assert silent({**other, "f": "misrequest"}, {**other, "call_ns": 30_000_000_000})


def test_an_election_long_after_it_does_not_hide_it() -> None:
    assert silent(elections_ns=(11_000_000_000,), patience_ns=4_000_000_000) == 1


OPEN = "code 1: sending to topic q-readonly is forbidden"


def left_open(*others: dict[str, object], error: str = OPEN, **more: object) -> int:
    """Return for how many of two requests it is found that no answer says what became of them."""
    asked = op(3, "misrequest", 20_000_000_000, None, key="q", input=9, expected=16, outcome="info")
    again = {**asked, "op": 8, "call_ns": 70_000_000_000}
    operations = [{**asked, "error": error}, {**again, "error": error}, *others]
    found = PLUGIN.check({"operations": table(operations)}, context(**more))
    return sum(1 for kind in found["kind"].to_pylist() if kind == "wrong-refusal")


def test_a_request_whose_answers_all_leave_open_what_became_of_it_is_found() -> None:
    assert left_open() == 2
    found, *_ = PLUGIN.check(
        {
            "operations": table(
                op(
                    at, "misrequest", at, None, key="q", input=9, expected=16, outcome="info",
                    error=OPEN,
                )
                for at in (20_000_000_000, 70_000_000_000)
            )
        },
        context(),
    )["message"].to_pylist()  # fmt: skip
    assert f'with code 16, was answered "{OPEN}", which leaves open whether it was done.' in found


def test_one_that_was_refused_once_or_not_answered_or_in_trouble_is_not() -> None:
    refused = op(5, "misrequest", 40_000_000_000, 40_001_000_000, key="q", input=9, expected=16)
    assert not left_open({**refused, "output": 16})
    assert left_open({**refused, "output": 16, "input": 10}) == 2
    assert not left_open(error="the connection closed before the answer")
    assert not left_open(error="code 1: [502] no quorum acknowledged in time")
    assert left_open(elections_ns=(70_000_000_000,)) == 1
    assert left_open(elections_ns=(68_500_000_000,)) == 1
    assert not left_open(elections_ns=(20_900_000_000, 70_000_000_000))
    assert left_open(elections_ns=(17_900_000_000, 73_000_000_000)) == 2


def test_one_such_answer_is_not_found() -> None:
    asked = op(
        3, "misrequest", 20_000_000_000, None, key="q", input=9, expected=16, outcome="info",
        error=OPEN,
    )  # fmt: skip
    kinds = PLUGIN.check({"operations": table([asked])}, context())["kind"].to_pylist()
    assert "wrong-refusal" not in kinds

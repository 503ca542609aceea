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

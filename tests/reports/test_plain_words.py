from __future__ import annotations

from shaketable.reports import finding_texts


def test_the_worst_comes_first_and_the_rest_is_counted() -> None:
    found = {
        "stale-read": 3,
        "odd": 2,
        "offset-given-twice": 14,
        "duplicated": 9,
        "lost-append": 15_447,
    }
    assert finding_texts.summarize(found) == (
        "15,447 acknowledged appends are lost; 9 values are twice in a log;"
        " 3 reads missed what was there already; 16 other findings"
    )


def test_one_is_said_as_one_and_what_has_no_words_by_its_name() -> None:
    assert finding_texts.summarize({"lost-append": 1, "odd": 4}) == (
        "1 acknowledged append is lost; 4 odd"
    )
    assert finding_texts.summarize({}) == ""


def test_what_two_checkers_found_counts_once() -> None:
    assert finding_texts.merge_totals([[("a", 1), ("b", 2)], [("a", 3)]]) == {"a": 3, "b": 2}

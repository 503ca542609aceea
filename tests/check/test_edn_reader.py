"""The EDN reader: every kind of value, and where a text is none."""

from __future__ import annotations

import math

import pytest

from shaketable.harness.history.foreign import edn


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("nil", None),
        ("true", True),
        ("-12", -12),
        ("12N", 12),
        ("+3", 3),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("2.50M", 2.5),
        ("1/2", 0.5),
        (":timed-out", "timed-out"),
        (":jepsen.os/up", "jepsen.os/up"),
        ("symbol", "symbol"),
        ('"a \\"b\\" \\n \\u00e9"', 'a "b" \n é'),
        ("\\a", "a"),
        ("\\newline", "\n"),
        ("\\u0041", "A"),
        ("[1 [2, 3] ()]", (1, (2, 3), ())),
        ("(1 2)", (1, 2)),
        ("#{1 2}", frozenset((1, 2))),
        ("{:a 1, [1 2] nil}", {"a": 1, (1, 2): None}),
        ("; a comment\n 7", 7),
        ("#_ 3 4", 4),
        ("[1 #_ 2 #_ [3] 4 #_5]", (1, 4)),
        ('#inst "2020-01-01"', "2020-01-01"),
        ("#jepsen.history.Op{:index 3}", {"index": 3}),
        ("^{:doc true} [1]", (1,)),
        ("##Inf", math.inf),
        ("#{{:a 1}}", frozenset(((("a", 1),),))),
    ],
)
def test_reads(text: str, value: object) -> None:
    assert edn.parse(text) == (value, len(text))


@pytest.mark.parametrize("text", ["", "[1 2", '"abc', "{:a 1", "#{1", "  ; nothing", "#_", "#tag"])
def test_says_that_a_text_is_cut(text: str) -> None:
    with pytest.raises(edn.CutError):
        edn.parse(text)


@pytest.mark.parametrize("text", ["]", "{:a}", "1x", "12.3.4", "[1 }", "1/0", "[" * 500])
def test_says_that_a_text_is_no_value(text: str) -> None:
    with pytest.raises(edn.EdnError) as caught:
        edn.parse(text)
    assert not isinstance(caught.value, edn.CutError)


def test_a_keyword_is_known_from_a_text() -> None:
    assert isinstance(edn.parse(":a")[0], edn.Keyword)
    assert not isinstance(edn.parse('"a"')[0], edn.Keyword)

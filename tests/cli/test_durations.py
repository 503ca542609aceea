"""Durations on the command line are numbers of seconds, or numbers with units."""

from __future__ import annotations

import pytest

from shaketable.harness.campaigns.durations import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("0.5", 0.5), ("90s", 90), ("5m", 300), ("1m30s", 90), ("2h", 7200),
        ("1.5h", 5400), ("500ms", 0.5), ("1d", 86_400), ("1h1m1s", 3661),
    ],
)  # fmt: skip
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5x", "5 m", "m5", "1m30x", "1m 30s", "5mm"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected seconds, or a duration such as 90s"):
        seconds_of(text)

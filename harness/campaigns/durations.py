"""Durations on the command line: 90, 90s, 1m30s, 2h, 500ms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol


class Token(Protocol):
    """A word of the command line (cyclopts' own)."""

    value: str


_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def seconds_of(text: str) -> float:
    """Return the seconds that a number or numbers with units stand for.

    Raises:
        ValueError: it is neither; the message says what is expected.
    """
    try:
        return float(text)
    except ValueError:
        parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f'expected seconds, or a duration such as 90s, 1m30s or 2h, not "{text}"')
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def to_seconds(_: Any, tokens: Sequence[Token]) -> float:
    """Convert an option's value (the `converter` of cyclopts)."""
    return seconds_of(tokens[0].value)

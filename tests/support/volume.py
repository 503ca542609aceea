"""What CI runs a part of, and tests.soaks.whole_volumes the whole: random cases, and like tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

import pytest

VARIABLE: Final = "SHAKETABLE_TEST_VOLUME"
WHOLE: Final = "whole"
PARTS: Final = 4
"""What takes CI 25 minutes would take an hour otherwise, and each change waits for it."""

T = TypeVar("T")

whole = pytest.mark.whole
"""Of a test, or of a case of one, that is like another one which CI runs."""


def is_whole() -> bool:
    """Return whether this run is of the whole volume."""
    return os.environ.get(VARIABLE) == WHOLE


def volume(count: int) -> int:
    """Return the cases of this run, of so many; of what is expected to be seen the same part."""
    return count if is_whole() else max(1, count // PARTS)


def part_of(items: Sequence[T]) -> Sequence[T]:
    """Return what this run looks at of `items`: every fourth in CI, the first among them."""
    return items if is_whole() else items[::PARTS]

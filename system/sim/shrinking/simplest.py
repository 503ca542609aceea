"""The simplest choices that still fail, found by hypothesis from a known failing example.

hypothesis starts from its example database, so a database with only the known failure makes it
shrink at once, without a search. The cost grows with the square of the number of choices: callers
pass a few dozen at a time.

Source: hypothesis' choice sequence (MacIver & Donaldson 2020); SIMULATION.md, section Hypothesis.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.database import ExampleDatabase, choices_to_bytes

CHOICES_MAX = 64
"""Most choices in one search."""

_TRIES_MAX = 100_000


class StopSearch(BaseException):
    """Raised by a condition to abort the search; hypothesis lets it through."""


def simplest_flags(count: int, fails: Callable[[tuple[bool, ...]], bool]) -> tuple[bool, ...]:
    """Return as few True flags as possible such that it fails; all True must fail."""
    found = simplest_numbers([1] * count, lambda numbers: fails(tuple(map(bool, numbers))))
    return tuple(map(bool, found))


def simplest_numbers(
    known: Sequence[int], fails: Callable[[tuple[int, ...]], bool]
) -> tuple[int, ...]:
    """Return numbers from 0 up to the known ones, as small as possible, that still fail.

    `known` must fail. The search is seeded, so the same condition gives the same result. After
    StopSearch the caller has to remember the best one itself.
    """
    if not known:
        return ()
    assert len(known) <= CHOICES_MAX, f"{len(known)} choices at once"
    choices = [bool(largest) if largest == 1 else largest for largest in known if largest > 0]
    if not choices:
        return tuple(known)
    best = tuple(known)

    # `seed` removes the database, so `settings` is applied after it: the same search each time.
    @settings(
        database=_Known(choices_to_bytes(choices)),
        deadline=None,
        derandomize=False,
        max_examples=_TRIES_MAX,
        phases=(Phase.reuse, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @seed(0)
    @given(st.tuples(*map(_up_to, known)))
    def search(numbers: tuple[int, ...]) -> None:
        nonlocal best
        if fails(numbers):
            best = numbers
            raise _Found

    with contextlib.suppress(_Found):
        search()
    return best


class _Found(Exception):  # noqa: N818 - what hypothesis is to shrink, no error
    """The condition holds."""


def _up_to(largest: int) -> st.SearchStrategy[int]:
    if largest <= 0:
        return st.just(largest)
    if largest == 1:
        return st.booleans().map(int)
    return st.integers(0, largest)


class _Known(ExampleDatabase):
    """A database with one example, stored only under hypothesis' secondary key.

    hypothesis takes examples under its primary key as minimal and does not shrink them. Saves and
    deletions do nothing.
    """

    def __init__(self, example: bytes) -> None:
        super().__init__()
        self._example = example

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return (self._example,) if key.endswith(b".secondary") else ()

    def save(self, key: bytes, value: bytes) -> None:
        """Do nothing."""

    def delete(self, key: bytes, value: bytes) -> None:
        """Do nothing."""

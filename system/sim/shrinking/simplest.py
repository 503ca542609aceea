"""The simplest choices that still fail, found by hypothesis from a known failing example.

hypothesis starts from its example database, so a database that holds nothing but the
known failure lets it shrink at once, without a search. Its cost grows with the square of the
number of choices: callers ask about a few dozen at a time.

Source: hypothesis' choice sequence (MacIver & Donaldson 2020); SIMULATION.md, section
Hypothesis.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.database import ExampleDatabase, choices_to_bytes

CHOICES_MAX = 64
"""As many choices as one question may have."""

_TRIES_MAX = 100_000


class StopSearch(BaseException):
    """Raised by a condition to leave the search at once; hypothesis lets it through."""


def simplest_flags(count: int, fails: Callable[[tuple[bool, ...]], bool]) -> tuple[bool, ...]:
    """Return as few True flags as possible such that it fails; with all of them it does."""
    found = simplest_numbers([1] * count, lambda numbers: fails(tuple(map(bool, numbers))))
    return tuple(map(bool, found))


def simplest_numbers(
    known: Sequence[int], fails: Callable[[tuple[int, ...]], bool]
) -> tuple[int, ...]:
    """Return numbers from 0 up to the known ones, as small as possible, that still fail.

    `known` fails. The same question has the same answer: the search is seeded. Whatever
    StopSearch leaves behind is the caller's to keep.
    """
    if not known:
        return ()
    assert len(known) <= CHOICES_MAX, f"{len(known)} choices at once"
    choices = [bool(largest) if largest == 1 else largest for largest in known if largest > 0]
    if not choices:
        return tuple(known)
    best = tuple(known)

    # `seed` takes the database away, so `settings` comes after it: the same search each time.
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
    """A database with one example, under every key of those that are to be shrunk still.

    What stands under hypothesis' primary key it takes for minimal and leaves as it is, so the
    example stands under the secondary one only. Saves and deletions change nothing.
    """

    def __init__(self, example: bytes) -> None:
        super().__init__()
        self._example = example

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return (self._example,) if key.endswith(b".secondary") else ()

    def save(self, key: bytes, value: bytes) -> None:
        """Keep nothing."""

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget nothing."""

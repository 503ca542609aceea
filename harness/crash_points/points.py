"""The points at which power is lost: which there are, which are chosen, and their names. Pure.

A point is the n-th call of a kind that a node makes to its disk, counted from its first start on an
empty disk: `fsync:17`. Rare kinds are tried at all their calls; those with more calls than their
share are tried at calls that are spread evenly, one drawn from each stretch.

Source: ALICE, "All File Systems Are Not Created Equal" (OSDI 2014); CrashMonkey (OSDI 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final

from shaketable.harness.contracts.errors import UsageError, unknown_name
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.volatile_disk.requests import CHANGING

NTH_MAX: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """The `nth` call of a kind (`requests.CHANGING`), from 1."""

    call: str
    nth: int

    def __str__(self) -> str:
        return f"{self.call}:{self.nth}"


def parse_points(text: str) -> tuple[Point, ...]:
    """Parse points from the command line: "fsync:17,rename:1".

    Raises:
        UsageError: one is none.
    """
    return tuple(dict.fromkeys(_point(each.strip()) for each in text.split(",")))


def parse_calls(text: str) -> tuple[str, ...]:
    """Parse kinds of calls from the command line: "fsync,rename", or "all".

    Raises:
        UsageError: one is unknown.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if names == ("all",):
        return CHANGING
    for name in names:
        if name not in CHANGING:
            raise UsageError(f"--calls {text}: {unknown_name('call', name, CHANGING)}")
    return names


def choose(calls: Mapping[str, int], count: int, seed: str) -> tuple[Point, ...]:
    """Choose `count` points, in a random order: the first ones are a fair sample, too.

    Args:
        calls: how many calls of each kind there are.
        count: how many points to choose; all, if there are not more.
        seed: what they are drawn from.
    """
    rng = rng_for(seed, "crash points")
    chosen = [
        Point(call, nth)
        for call, share in sorted(_shares(calls, count).items())
        for nth in _spread(calls[call], share, rng)
    ]
    rng.shuffle(chosen)
    return tuple(chosen)


def _shares(calls: Mapping[str, int], count: int) -> dict[str, int]:
    """Share `count` out: as equal as can be, and no kind gets more than it has calls."""
    shares: dict[str, int] = {}
    left = count
    by_calls = sorted((calls[call], call) for call in calls)
    for number, (there_are, call) in enumerate(by_calls):
        shares[call] = min(there_are, left // (len(by_calls) - number))
        left -= shares[call]
    return shares


def _spread(there_are: int, count: int, rng: Random) -> Iterator[int]:
    """Yield `count` numbers of 1 to `there_are`: one drawn from each of as many stretches."""
    ends = [there_are * number // count for number in range(count + 1)] if count else [0]
    for before, last in pairwise(ends):
        yield rng.randint(before + 1, last)


def _point(text: str) -> Point:
    call, _, nth = text.partition(":")
    if call not in CHANGING:
        raise UsageError(f"--point {text}: {unknown_name('call', call, CHANGING)}")
    if not (nth.isascii() and nth.isdigit() and 1 <= int(nth[:12]) <= NTH_MAX):
        raise UsageError(f"--point {text}: expected CALL:N, as fsync:17")
    return Point(call, int(nth))

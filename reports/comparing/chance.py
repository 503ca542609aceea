"""How sure a difference is: intervals and tests that ask little of the numbers. Pure, seeded.

Windows of a run hang together in time (one slow second follows another), so whole blocks of
neighbours are drawn, not windows. Source: Künsch 1989, Politis and Romano 1992 (circular block
bootstrap); van Elteren 1960 (a rank test in strata, here by permutation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Of an array (draws, windows): one number a draw."""

DRAWS: Final = 4000
BLOCK_WINDOWS: Final = 3
SEED: Final = 20221
"""The same two runs have the same answer every time."""
PERMUTATIONS: Final = 20_000
SHUFFLED_MAX: Final = 4_000_000
"""Numbers that are shuffled at once: of large strata there are fewer permutations."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Between which values a number lies, at the confidence that was asked for."""

    low: float
    high: float


def mean(drawn: Floats) -> Floats:
    """The mean of each draw."""
    means: Floats = drawn.mean(axis=1)
    return means


def median(drawn: Floats) -> Floats:
    """The median of each draw."""
    medians: Floats = np.median(drawn, axis=1)
    return medians


def ratio(a: Floats, b: Floats, statistic: Statistic, alpha: float) -> Interval:
    """Return the interval of statistic(b) / statistic(a).

    Args:
        a: windows by time, without NaN, at least one.
        b: likewise, of the other run.
        statistic: what is compared.
        alpha: how often the interval may miss.
    """
    of_a, of_b = _drawn(a, statistic, SEED), _drawn(b, statistic, SEED + 1)
    return _interval((of_b + TINY) / (of_a + TINY), alpha)


def difference(a: Floats, b: Floats, statistic: Statistic, alpha: float) -> Interval:
    """Return the interval of statistic(b) - statistic(a)."""
    return _interval(_drawn(b, statistic, SEED + 1) - _drawn(a, statistic, SEED), alpha)


TINY: Final = 1e-9
"""Keeps a ratio of nothing to nothing at 1."""


def _drawn(windows: Floats, statistic: Statistic, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    count = len(windows)
    block = min(BLOCK_WINDOWS, count)
    starts = rng.integers(0, count, size=(DRAWS, -(-count // block)))
    places = (starts[:, :, None] + np.arange(block)) % count
    return statistic(windows[places.reshape(DRAWS, -1)[:, :count]])


def _interval(drawn: Floats, alpha: float) -> Interval:
    low, high = np.quantile(drawn, (alpha / 2, 1 - alpha / 2))
    return Interval(float(low), float(high))


def chance_of_being_greater(
    strata: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> float:
    """Return how often chance alone makes the b of the strata as much greater than the a.

    One-sided permutation test of the sum of ranks of b within each stratum; ties share ranks.
    1 where nothing can be told (no stratum has both).
    """
    rng = np.random.default_rng(SEED)
    largest = max((len(a) + len(b) for a, b in strata), default=0)
    permutations = min(PERMUTATIONS, SHUFFLED_MAX // max(1, largest))
    seen, by_chance = 0.0, np.zeros(permutations)
    for a, b in strata:
        if not a or not b:
            continue
        ranks = _ranks(np.array([*a, *b], dtype=np.float64))
        seen += float(ranks[len(a) :].sum())
        shuffled = rng.permuted(np.tile(ranks, (permutations, 1)), axis=1)
        by_chance += shuffled[:, len(a) :].sum(axis=1)
    if seen == 0:
        return 1.0
    return float((np.count_nonzero(by_chance >= seen - TINY) + 1) / (permutations + 1))


def _ranks(values: Floats) -> Floats:
    """Rank values from 1; equal ones share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Floats = ((last - counts + 1 + last) / 2)[inverse]
    return means

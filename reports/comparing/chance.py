"""How sure a difference is: intervals and tests that ask little of the numbers. Pure, seeded.

Windows of a run hang together in time (one slow second follows another, and those under one fault
share its victim), so whole blocks of neighbours are drawn, not windows. Source: Carlstein 1986
(blocks that do not overlap); van Elteren 1960 (a rank test in strata, here by permutation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Statistic = Callable[[Floats], Floats]
"""Of an array (draws, windows), in which NaN is nothing: one number a draw."""

DRAWS: Final = 4000
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
    means: Floats = np.nanmean(drawn, axis=1)
    return means


def median(drawn: Floats) -> Floats:
    """The median of each draw."""
    medians: Floats = np.nanmedian(drawn, axis=1)
    return medians


@dataclass(frozen=True, slots=True)
class Sample:
    """Windows by time, without NaN, and in which piece of the run each stands.

    `block_max`: windows of a piece that are drawn together, at most.
    """

    values: Floats
    pieces: Ints
    block_max: int = 4

    @property
    def blocks(self) -> list[Floats]:
        """Neighbours that are drawn together: a piece, or equal parts of a long one."""
        cut = np.flatnonzero(np.diff(self.pieces)) + 1
        return [
            block
            for piece in np.split(self.values, cut)
            for block in np.array_split(piece, max(1, -(-len(piece) // self.block_max)))
        ]


def ratio(a: Sample, b: Sample, statistic: Statistic, alpha: float) -> Interval:
    """Return the interval of statistic(b) / statistic(a).

    Args:
        a: at least one window.
        b: likewise, of the other run.
        statistic: what is compared.
        alpha: how often the interval may miss.
    """
    of_a, of_b = _drawn(a, statistic, SEED), _drawn(b, statistic, SEED + 1)
    return _interval((of_b + TINY) / (of_a + TINY), alpha)


def difference(a: Sample, b: Sample, statistic: Statistic, alpha: float) -> Interval:
    """Return the interval of statistic(b) - statistic(a); arguments as of `ratio`."""
    return _interval(_drawn(b, statistic, SEED + 1) - _drawn(a, statistic, SEED), alpha)


TINY: Final = 1e-9
"""Keeps a ratio of nothing to nothing at 1."""


def _drawn(sample: Sample, statistic: Statistic, seed: int) -> Floats:
    """Compute the statistic of as many blocks as there are, drawn again and again."""
    blocks = sample.blocks
    lengths = np.array([len(block) for block in blocks])
    padded = np.full((len(blocks), lengths.max()), np.nan)
    for row, block in zip(padded, blocks, strict=True):
        row[: len(block)] = block
    picks = np.random.default_rng(seed).integers(0, len(blocks), size=(DRAWS, len(blocks)))
    return statistic(padded[picks].reshape(DRAWS, -1))


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


def least_chance(strata: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Return the least that `chance_of_being_greater` can be, whatever so many numbers are."""
    ways = math.prod(math.comb(len(a) + len(b), len(b)) for a, b in strata if a and b)
    return 1 / ways


def _ranks(values: Floats) -> Floats:
    """Rank values from 1; equal ones share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Floats = ((last - counts + 1 + last) / 2)[inverse]
    return means

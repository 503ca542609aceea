"""Confidence intervals and tests that assume little of the numbers. Pure, seeded.

Windows of a run are autocorrelated (one slow second follows another, and those under one fault
share its victim), so the bootstrap resamples whole blocks of neighbours, not single windows.
Source: Carlstein 1986 (non-overlapping blocks); van Elteren 1960 (a stratified rank test, here
by permutation).
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
"""Maps an array (resamples, windows), in which NaN means no value, to one number per resample."""

RESAMPLES: Final = 4000
SEED: Final = 20221
"""The same two runs always give the same answer."""
PERMUTATIONS: Final = 20_000
SHUFFLED_MAX: Final = 4_000_000
"""Numbers that are shuffled at once: large strata get fewer permutations."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


def mean(resamples: Floats) -> Floats:
    """Return the mean of each resample."""
    means: Floats = np.nanmean(resamples, axis=1)
    return means


def median(resamples: Floats) -> Floats:
    """Return the median of each resample."""
    medians: Floats = np.nanmedian(resamples, axis=1)
    return medians


@dataclass(frozen=True, slots=True)
class Sample:
    """Windows by time, without NaN, and the piece of the run that each is in.

    `block_max`: the most windows of a piece that are resampled together.
    """

    values: Floats
    pieces: Ints
    block_max: int = 4

    @property
    def blocks(self) -> list[Floats]:
        """Neighbours that are resampled together: a piece, or equal parts of a long one."""
        cut = np.flatnonzero(np.diff(self.pieces)) + 1
        return [
            block
            for piece in np.split(self.values, cut)
            for block in np.array_split(piece, max(1, -(-len(piece) // self.block_max)))
        ]


def ratio(a: Sample, b: Sample, statistic: Statistic, alpha: float) -> Interval:
    """Return the confidence interval of statistic(b) / statistic(a).

    Args:
        a: at least one window.
        b: likewise, of the other run.
        statistic: what is compared.
        alpha: how often the interval may miss the true value.
    """
    of_a, of_b = _resampled(a, statistic, SEED), _resampled(b, statistic, SEED + 1)
    return _interval((of_b + TINY) / (of_a + TINY), alpha)


def difference(a: Sample, b: Sample, statistic: Statistic, alpha: float) -> Interval:
    """Return the confidence interval of statistic(b) - statistic(a); arguments as of `ratio`."""
    return _interval(_resampled(b, statistic, SEED + 1) - _resampled(a, statistic, SEED), alpha)


TINY: Final = 1e-9
"""Makes the ratio of two zeros 1."""


def _resampled(sample: Sample, statistic: Statistic, seed: int) -> Floats:
    """Return the statistic of resamples, each of as many blocks as the sample has."""
    blocks = sample.blocks
    lengths = np.array([len(block) for block in blocks])
    padded = np.full((len(blocks), lengths.max()), np.nan)
    for row, block in zip(padded, blocks, strict=True):
        row[: len(block)] = block
    picks = np.random.default_rng(seed).integers(0, len(blocks), size=(RESAMPLES, len(blocks)))
    return statistic(padded[picks].reshape(RESAMPLES, -1))


def _interval(resamples: Floats, alpha: float) -> Interval:
    low, high = np.quantile(resamples, (alpha / 2, 1 - alpha / 2))
    return Interval(float(low), float(high))


def p_value_greater(
    strata: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> float:
    """Return the p-value of the b of the strata being greater than the a.

    One-sided permutation test on the sum of the ranks of b within each stratum; ties share ranks.
    Return 1 if no stratum has both.
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


def smallest_p_value(strata: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Return the smallest p-value that `p_value_greater` can return for so many numbers."""
    ways = math.prod(math.comb(len(a) + len(b), len(b)) for a, b in strata if a and b)
    return 1 / ways


def _ranks(values: Floats) -> Floats:
    """Rank values from 1; equal ones share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Floats = ((last - counts + 1 + last) / 2)[inverse]
    return means

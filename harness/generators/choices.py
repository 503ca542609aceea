"""One of several: a draw, whoever is soonest, or again until it worked.

Source: jepsen.generator (mix, any, until-ok).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from shaketable.harness.contracts.draw import draw
from shaketable.harness.generators.generator import (
    NOTHING_NOW,
    Context,
    Due,
    Ended,
    Generator,
    Given,
    Wait,
    sooner,
)
from shaketable.harness.generators.sequences import Lazy


def mix(*parts: Generator, seed: str, weights: Sequence[float] | None = None) -> Generator:
    """Draw, for each operation, which of the parts gives it; one that has no more drops out.

    Args:
        parts: what to choose among.
        seed: what is drawn from.
        weights: how often each is chosen, beside the others; all alike without.
    """
    shares = tuple(weights) if weights is not None else (1.0,) * len(parts)
    assert len(shares) == len(parts), "a weight for each part"
    assert all(share > 0 for share in shares), "weights are above 0"
    return _Mix(parts, shares, Lazy(_rolls(draw(seed, "mix"))))


def any_of(*parts: Generator) -> Generator:
    """Give whichever operation is due first; of two at one time, the first part's."""
    return _Any(parts)


def until_ok(generator: Generator) -> Generator:
    """Give a generator's operations until one of them is ok."""
    return _UntilOk(generator, frozenset(), is_done=False)


def _rolls(rng: Random) -> Iterator[float]:
    while True:
        yield rng.random()


@dataclass(frozen=True, slots=True)
class _Mix:
    parts: tuple[Generator, ...]
    shares: tuple[float, ...]
    rolls: Lazy[float]

    def ask(self, context: Context) -> Given:
        roll = self.rolls.next()
        assert roll is not None, "rolls have no end"
        parts, shares = list(self.parts), list(self.shares)
        wait: Wait | None = None
        while parts:
            chosen = _chosen(shares, roll[0])
            # The one chosen; where it has nothing now, the others in turn.
            for number in (chosen, *(n for n in range(len(parts)) if n != chosen)):
                given = parts[number].ask(context)
                if given is None:
                    del parts[number], shares[number]
                    break
                step, parts[number] = given
                if isinstance(step, Due):
                    return step, _Mix(tuple(parts), tuple(shares), roll[1])
                wait = sooner(step, wait)
            else:
                return wait or NOTHING_NOW, _Mix(tuple(parts), tuple(shares), self.rolls)
        return None

    def update(self, ended: Ended) -> Generator:
        parts = _updated(self.parts, ended)
        return self if parts is self.parts else _Mix(parts, self.shares, self.rolls)


@dataclass(frozen=True, slots=True)
class _Any:
    parts: tuple[Generator, ...]

    def ask(self, context: Context) -> Given:
        kept: list[Generator] = []
        best: tuple[int, Due, Generator] | None = None
        wait: Wait | None = None
        for part in self.parts:
            given = part.ask(context)
            if given is None:
                continue
            step, after = given
            if isinstance(step, Wait):
                wait = sooner(step, wait)
                kept.append(after)
                continue
            if best is None or step.at_ns < best[1].at_ns:
                best = len(kept), step, after
            kept.append(part)  # it was only looked at
        if best is not None:
            kept[best[0]] = best[2]
            return best[1], _Any(tuple(kept))
        return (wait or NOTHING_NOW, _Any(tuple(kept))) if kept else None

    def update(self, ended: Ended) -> Generator:
        parts = _updated(self.parts, ended)
        return self if parts is self.parts else _Any(parts)


@dataclass(frozen=True, slots=True)
class _UntilOk:
    inner: Generator
    asked: frozenset[int]
    is_done: bool

    def ask(self, context: Context) -> Given:
        if self.is_done:
            return None
        given = self.inner.ask(context)
        if given is None:
            return None
        step, inner = given
        asked = self.asked | {step.client} if isinstance(step, Due) else self.asked
        return step, _UntilOk(inner, asked, is_done=False)

    def update(self, ended: Ended) -> Generator:
        inner = self.inner.update(ended)
        if ended.client not in self.asked:
            return self if inner is self.inner else _UntilOk(inner, self.asked, self.is_done)
        is_done = self.is_done or ended.outcome == "ok"
        return _UntilOk(inner, self.asked - {ended.client}, is_done)


def _chosen(shares: Sequence[float], roll: float) -> int:
    """Return which share a number of [0, 1) falls into."""
    sums = list(accumulate(shares))
    at = roll * sums[-1]
    return next((number for number, behind in enumerate(sums) if at < behind), len(sums) - 1)


def _updated(parts: tuple[Generator, ...], ended: Ended) -> tuple[Generator, ...]:
    """Tell all parts; the same tuple if that changed none."""
    after = tuple(part.update(ended) for part in parts)
    is_same = all(one is other for one, other in zip(parts, after, strict=True))
    return parts if is_same else after

"""Short texts for kinds of findings, the gravest first, for the banner and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from shaketable.harness.contracts.finding_kinds import FINDING_KINDS, record_of

PHRASES_MAX: Final = 3
"""Kinds that a summary names; the findings of other kinds are only counted."""


def summarize(totals: Mapping[str, int]) -> str:
    """Summarize findings, counted by kind, in one line: name the gravest, count the rest."""
    kinds = sorted(totals, key=lambda kind: (rank(kind), -totals[kind]))
    shown = [phrase(kind, totals[kind]) for kind in kinds[:PHRASES_MAX]]
    if more := sum(totals[kind] for kind in kinds[PHRASES_MAX:]):
        shown.append(f"{more:,} other {'finding' if more == 1 else 'findings'}")
    return "; ".join(shown)


def phrase(kind: str, count: int) -> str:
    """Return the text for findings of one kind, or the kind's name if it has no record."""
    record = record_of(kind)
    return f"{count:,} {record.one if count == 1 else record.several}"


def title(kind: str) -> str:
    """Return a kind as a heading, without a number: "Acknowledged append is lost"."""
    if kind not in FINDING_KINDS:
        return kind
    text = FINDING_KINDS[kind].one.removeprefix("time ")
    return text[:1].upper() + text[1:]


def rank(kind: str) -> int:
    """Return the rank of a kind by gravity, the gravest first; kinds without a record come last."""
    return next(
        (place for place, known in enumerate(FINDING_KINDS) if known == kind), len(FINDING_KINDS)
    )


def merge_totals(counted: Iterable[Iterable[tuple[str, int]]]) -> dict[str, int]:
    """Merge the totals of several checkers, kind by kind.

    For a kind that several have found, the largest number counts: they judged the same history.
    """
    totals: dict[str, int] = {}
    for pairs in counted:
        for kind, count in pairs:
            totals[kind] = max(totals.get(kind, 0), count)
    return totals

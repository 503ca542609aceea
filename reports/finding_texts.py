"""Short texts of findings: of kinds, the gravest first, and of a transaction's steps. Pure.

Source: Elle's short notation of micro-operations (Alvaro & Kingsbury, VLDB 2020).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeGuard

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


ELEMENTS_SHOWN_MAX: Final = 8
TEXT_MAX: Final = 240


def are_steps(value: object) -> TypeGuard[list[list[Any]]]:
    """Return whether this is a list of [f, key] or [f, key, value]."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(step, list) and len(step) in (2, 3) and isinstance(step[0], str)
            for step in value
        )
    )


def steps_text(steps: list[list[Any]]) -> str:
    """Return the steps as text, shortened; a list that was read by its first and last elements."""
    text = ", ".join(_step(*step) for step in steps)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _step(f: str, key: Any, value: Any = None) -> str:
    name = key if isinstance(key, str) else json.dumps(key)
    if isinstance(value, list):
        shown = value
        if len(value) > ELEMENTS_SHOWN_MAX:
            half = ELEMENTS_SHOWN_MAX // 2
            shown = [*value[:half], "...", *value[-half:]]
        return f"{f} {name} [{' '.join(map(_plain, shown))}]"
    return f"{f} {name}" if value is None else f"{f} {name} {_plain(value)}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

"""Which violations get a page, and what the pages' files are called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from shaketable.reports.model import CheckerView, Violation, ViolationGroup

PAGES_MAX: Final = 60
"""Pages of one run; the first violation of each kind and fault comes before second ones."""
PAGES_OF_GROUP_MAX: Final = 4
"""Violations of one kind and fault that get a page."""
FOLDER: Final = "violations"
BROKEN: Final = "INVALID"
NAME: Final = re.compile(r"[0-9]{3}-[a-z0-9-]{1,40}\.html")
"""What a page's file is called: its number and the kind of its violation."""
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
SLUG_MAX: Final = 40


def with_pages(checkers: Sequence[CheckerView]) -> tuple[CheckerView, ...]:
    """Return the checkers' views, in which violations that get a page know its name.

    What a checker found that calls the run unknown (a node that ended by itself) is none.
    """
    groups, are_told = [], []
    for checker in checkers:
        groups += [*checker.groups, *checker.observed]
        are_told += [checker.verdict == BROKEN] * len(checker.groups)
        are_told += [True] * len(checker.observed)
    chosen = _chosen(groups, are_told)
    names: dict[tuple[int, int], str] = {}
    for number, (group, place) in enumerate(sorted(chosen), start=1):
        kind = groups[group].shown[place].kind
        names[group, place] = f"{FOLDER}/{number:03d}-{slug(kind)}.html"
    named = iter([_named(group, names, number) for number, group in enumerate(groups)])
    return tuple(
        replace(
            checker,
            groups=tuple(next(named) for _ in checker.groups),
            observed=tuple(next(named) for _ in checker.observed),
        )
        for checker in checkers
    )


def slug(kind: str) -> str:
    """Return a kind as a part of a file's name."""
    return _NOT_IN_NAMES.sub("-", kind.lower()).strip("-")[:SLUG_MAX].strip("-") or "violation"


def pages_of(checkers: Iterable[CheckerView]) -> Iterator[tuple[CheckerView, Violation, bool]]:
    """Yield (checker, violation, whether it breaks no promise) of each page, in their order."""
    for checker in checkers:
        for groups, is_observed in ((checker.groups, False), (checker.observed, True)):
            for group in groups:
                for violation in group.shown:
                    if violation.page:
                        yield checker, violation, is_observed


def _chosen(groups: Sequence[ViolationGroup], are_told: Sequence[bool]) -> list[tuple[int, int]]:
    """Return (group, place in what is shown of it), the first of each group before others."""
    wanted: list[tuple[int, int, int]] = []
    for number, group in enumerate(groups):
        if not are_told[number]:
            continue
        detailed = group.detailed or group.shown[:1]
        # By identity: two findings may be equal, and each has a place of its own.
        places = [n for n, each in enumerate(group.shown) if any(each is one for one in detailed)]
        wanted += [(turn, number, place) for turn, place in enumerate(places[:PAGES_OF_GROUP_MAX])]
    return [(number, place) for _, number, place in sorted(wanted)[:PAGES_MAX]]


def _named(group: ViolationGroup, names: dict[tuple[int, int], str], number: int) -> ViolationGroup:
    shown = tuple(
        replace(violation, page=names[number, place]) if (number, place) in names else violation
        for place, violation in enumerate(group.shown)
    )
    return replace(group, shown=shown)

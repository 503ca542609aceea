"""Render a scorecard as one self-contained HTML page: each bug's row, and which fault found it."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from jinja2 import Environment

from shaketable.reports import templating

# The scorecard as shown in the terminal, as JSON and on its page. Pure data.

REAL_S_MAX: Final = 60.0
VIRTUAL_S_MAX: Final = 600.0
"""A bug counts as found in time if the median of a method's hunts is within one of these."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The first violation, which ended a hunt.

    Attributes:
        by: the checkers that found it, or the simulated invariant.
        world: process, sim (a campaign), core or node (seeds).
        kinds: the kinds of findings, the gravest first.
        says: the first sentence of the verdict.
        faults: names of the faults that were active, or had ended just before.
        seed: repeats the hunt.
        report: path of its page, relative to the calibration's folder; "" for a seed.
    """

    by: tuple[str, ...]
    world: str
    kinds: tuple[str, ...]
    says: str
    faults: tuple[str, ...]
    seed: str
    report: str = ""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How often one method found one bug, and at what cost.

    Attributes:
        hunts: number of hunts.
        found: number of hunts that found the bug.
        runs: runs or seeds of each successful hunt, in order.
        took_s: real seconds of each of these.
        virtual_s: virtual seconds of each of these.
        by: checkers and invariants that found it, the most frequent first.
        kinds: kinds of the first finding, the most frequent first.
        says: the verdict's first sentence, of the first hunt that found it.
        report: its page.
        unknown: why runs ended as UNKNOWN.
        failed: why runs failed.
    """

    hunts: int
    found: int
    runs: tuple[int, ...] = ()
    took_s: tuple[float, ...] = ()
    virtual_s: tuple[float, ...] = ()
    by: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    says: str = ""
    report: str = ""
    unknown: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def is_in_time(self) -> bool:
        """Whether at least half of the hunts found the bug within the real or the virtual limit."""
        missed = [math.inf] * (self.hunts - self.found)
        if not self.found:
            return False
        is_real = median([*self.took_s, *missed]) <= REAL_S_MAX
        virtual_s = [seconds for seconds in self.virtual_s if seconds]
        return is_real or (bool(virtual_s) and median([*virtual_s, *missed]) <= VIRTUAL_S_MAX)


class BugRow(msgspec.Struct, frozen=True, kw_only=True):
    """A planted bug, and how each method did."""

    bug: str
    family: str
    target: str
    scores: dict[str, Score]

    @property
    def is_found(self) -> bool:
        """Whether any hunt found it."""
        return any(score.found for score in self.scores.values())


class CleanRow(msgspec.Struct, frozen=True, kw_only=True):
    """The correct system under one method: every alarm is a false one."""

    target: str
    method: str
    runs: int
    alarms: tuple[Found, ...]
    unknown: tuple[str, ...]
    failed: tuple[str, ...]


class Scorecard(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration. `matrix`: by fault, then bug, how many hunts found it under that fault."""

    format: int
    seed: int
    methods: tuple[str, ...]
    bugs: tuple[BugRow, ...]
    clean: tuple[CleanRow, ...]
    matrix: dict[str, dict[str, int]]
    hunts: int
    """How many hunts were planned; those missing in the rows were not run."""
    done: int

    @property
    def missed(self) -> tuple[BugRow, ...]:
        """Bugs that were hunted and that no method found."""
        return tuple(row for row in self.bugs if not row.is_found)

    @property
    def alarms(self) -> int:
        """The number of false alarms of all methods."""
        return sum(len(row.alarms) for row in self.clean)

    def found_by(self, method: str) -> int:
        """Return how many bugs a method found at least once."""
        return sum(row.scores[method].found > 0 for row in self.bugs if method in row.scores)


TEMPLATES: Final = Path(__file__).parent / "templates"


def render_scorecard(card: Scorecard) -> str:
    """Render the page of a calibration."""
    faults = list(card.matrix)
    hit = [row.bug for row in card.bugs if any(row.bug in of for of in card.matrix.values())]
    return (
        _environment()
        .get_template("calibration.html.j2")
        .render(card=card, faults=faults, hit=hit, total=len(card.bugs))
    )


@cache
def _environment() -> Environment:
    made = templating.environment(TEMPLATES)
    made.filters["median"] = median
    return made

"""Render the page of `crash-points`: at which calls a power loss leaves a system broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from jinja2 import Environment

from shaketable.reports import templating

VALID: Final = "VALID"
INVALID: Final = "INVALID"
UNKNOWN: Final = "UNKNOWN"
NO_START: Final = "does not start again"
NO_SERVICE: Final = "does not serve again"
NOT_REACHED: Final = "not reached"
RESULTS: Final = (VALID, INVALID, NO_START, NO_SERVICE, UNKNOWN, NOT_REACHED)
BROKEN: Final = (INVALID, NO_START, NO_SERVICE)
"""Results of points that leave the system broken."""
SHOWN_MAX: Final = 300
"""So many points that are not VALID are listed on the page; the table counts all."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One crash point, and what came of it.

    Attributes:
        call: the kind of call.
        nth: which of them, from 1.
        path: the file or folder, on the node's disk; "" if it has no name, or was not reached.
        node: whose call it was.
        result: one of RESULTS.
        why: of a result that is not VALID, one line.
        observed: the kinds of what was found, and never promised.
        lost_bytes, lost_entries: what was not synced, on all nodes that lost power.
        last_lines: the last lines of the log of a node that does not come back.
        took_s: seconds for all of it.
        folder: the run's folder, relative to that of the page; "" if it was deleted.
        page: the first violation's page, or the run's, likewise.
        repeat: the command that tries this point alone.
    """

    call: str
    nth: int
    path: str
    node: str
    result: str
    why: str
    observed: tuple[str, ...]
    lost_bytes: int
    lost_entries: int
    last_lines: tuple[str, ...]
    took_s: float
    folder: str
    page: str
    repeat: str

    @property
    def name(self) -> str:
        """Return the point's name: "fsync:17"."""
        return f"{self.call}:{self.nth}"


class Tries(msgspec.Struct, frozen=True, kw_only=True):
    """The points of one command.

    Attributes:
        target, nodes, workload, victims, seed: what was tried.
        promised: what the target promises, in its own words.
        survives_power: whether it promises to survive a loss of power.
        calls: how many calls of each kind there are without a crash.
        tried: the points, in the order in which they ended.
        planned: how many there were to be.
        took_s: seconds for all of them.
        repeat: the command that tries them again.
    """

    target: str
    nodes: int
    workload: str
    victims: str
    seed: str
    promised: str
    survives_power: bool
    calls: Mapping[str, int]
    tried: tuple[Tried, ...]
    planned: int
    took_s: float
    repeat: str

    @property
    def an_hour(self) -> int:
        """Return how many points were tried in an hour, at this pace."""
        return round(len(self.tried) * 3600 / self.took_s) if self.took_s else 0

    @property
    def verdict(self) -> str:
        """Return INVALID, UNKNOWN or VALID: INVALID > UNKNOWN > VALID.

        A node that does not come back is unknown: what it would have answered was not seen. Points
        that were not reached say nothing, unless none was.
        """
        results = {one.result for one in self.tried}
        if INVALID in results:
            return INVALID
        return VALID if results <= {VALID, NOT_REACHED} and VALID in results else UNKNOWN

    @property
    def broken(self) -> tuple[Tried, ...]:
        """Return the points that leave the system broken, by kind of call."""
        found = [one for one in self.tried if one.result in BROKEN]
        return tuple(sorted(found, key=lambda one: (one.call, one.nth)))

    @property
    def rest(self) -> tuple[Tried, ...]:
        """Return the points that are neither broken nor VALID."""
        return tuple(one for one in self.tried if one.result in (UNKNOWN, NOT_REACHED))


def by_call(tries: Tries) -> Sequence[tuple[str, int, Mapping[str, int]]]:
    """Return for each kind of call how many there are, and how many points had which result."""
    kinds = dict.fromkeys((*tries.calls, *(one.call for one in tries.tried)))
    counts = {kind: Counter[str]() for kind in kinds}
    for one in tries.tried:
        counts[one.call][one.result] += 1
    return [(kind, tries.calls.get(kind, 0), counts[kind]) for kind in kinds]


def shown_results(tries: Tries) -> tuple[str, ...]:
    """Return the results that there are, VALID and INVALID in any case."""
    there = {one.result for one in tries.tried} | {VALID, INVALID}
    return tuple(result for result in RESULTS if result in there)


def what_broke(tries: Tries) -> Sequence[tuple[str, str, str, int]]:
    """Return (kind of call, file, result, how often), the most frequent first.

    Digits in a file's name are one "#": its calls are alike.
    """
    counts = Counter((one.call, _alike(one.path), one.result) for one in tries.broken)
    return [(*key, count) for key, count in counts.most_common()]


def observed(tries: Tries) -> Mapping[str, int]:
    """Return at how many points something was found that was never promised, by its kind."""
    return Counter(kind for one in tries.tried for kind in one.observed)


def _alike(path: str) -> str:
    text = "".join("#" if letter.isdigit() else letter for letter in path)
    while "##" in text:
        text = text.replace("##", "#")
    return text


TEMPLATES: Final = Path(__file__).parent / "templates"


def render_crash_points(tries: Tries) -> str:
    """Render the page."""
    page = _environment().get_template("crash_points.html.j2")
    return page.render(
        tries=tries,
        rows=by_call(tries),
        results=shown_results(tries),
        broke=what_broke(tries),
        observed=observed(tries),
        shown_max=SHOWN_MAX,
    )


@cache
def _environment() -> Environment:
    return templating.environment(TEMPLATES)

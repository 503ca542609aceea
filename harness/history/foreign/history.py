"""What a reader of a foreign history returns, and what it says about damage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

PROBLEMS_TOLD_MAX: Final = 3
"""Damaged places that a message names; the others are counted."""


@dataclass(frozen=True, slots=True)
class History:
    """A recorded history as operations.

    Attributes:
        path: where it was read from.
        format: what it was recognised as, in words.
        operations: OPERATIONS, by (key, call_ns).
        events: how many events or operations the recording holds, the nemesis' included.
        cut: where its end is missing, in one line; None if it is whole. What there is is all that
            happened up to some moment: a violation in it is one, its absence proves nothing.
        hole: where it lacks events before its end, in one line: then nothing in it proves
            anything, since what is missing may explain every answer.
        notes: what a reader should know and what harms no verdict.
        faults: what its nemesis did, in the order of time.
        is_timed: False if it has no times: then they count its events, 1 ns each.
    """

    path: Path
    format: str
    operations: pa.Table
    events: int
    cut: str | None = None
    hole: str | None = None
    notes: tuple[str, ...] = ()
    is_timed: bool = True
    faults: tuple[FaultSpan, ...] = ()

    @property
    def incomplete(self) -> str | None:
        """Why it is known to lack events; None if it is not."""
        return self.hole or self.cut


@dataclass(frozen=True, slots=True)
class Damage:
    """A place that could not be read."""

    line: int
    byte: int
    why: str


def told(path: Path, damage: Sequence[Damage]) -> str | None:
    """Say in one line which places could not be read; None if there are none."""
    if not damage:
        return None
    first = damage[0]
    text = f"{path.name}, line {first.line} (byte {first.byte}): {first.why}"
    if len(damage) > 1:
        lines = [str(each.line) for each in damage[1 : PROBLEMS_TOLD_MAX + 1]]
        more = len(damage) - 1 - len(lines)
        rest = f" and {more} more" if more > 0 else ""
        text += f"; unreadable as well: line {', '.join(lines)}{rest}"
    return text


# What the nemesis of a foreign history did, as spans of time to draw. Pure.
#
# Jepsen writes each act of the nemesis twice, with type info: when it begins and when it is done;
# others write invoke and ok. A fault begins when its act is done or at its first event, and lasts
# until the act that ends it: `kill` until `start`, `pause` until `resume`, `start-partition` until
# `stop-partition`, `start` until `stop`. What ends nothing and is ended by nothing lasts from its
# first event to its second.
#
# Source: jepsen.nemesis.combined and jepsen.checker.perf, for which acts belong together.

FAULTS_MAX: Final = 10_000
"""Spans that are kept; a picture shows the few that overlap it."""
_ENDS: Final[dict[str, tuple[str, ...]]] = {
    "start": ("kill",), "restart": ("kill",), "resume": ("pause",), "stop": ("start",),
    "heal": ("partition", "start-partition", "start"), "reset": ("bump", "strobe"),
    "reset-clock": ("bump-clock", "strobe-clock"),
}  # fmt: skip
"""By act: the faults that it ends, if one of them lasts."""


class FaultSpan(NamedTuple):
    """A fault and when it lasted; `stop_ns` is None where nothing ended it."""

    name: str
    start_ns: int
    stop_ns: int | None


class Faults:
    """Takes the events of the nemesis in the order of time."""

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}  # act -> its first event, until its second
        self._lasting: dict[str, int] = {}  # fault -> since when
        self._spans: list[FaultSpan] = []

    def take(self, act: str, time_ns: int) -> None:
        """Take one event: the first of an act or its second."""
        if act not in self._begun:
            self._begun[act] = time_ns
            return
        since = self._begun.pop(act)
        ended = next((name for name in _ended_by(act) if name in self._lasting), None)
        if ended is not None:
            self._keep(FaultSpan(ended, self._lasting.pop(ended), time_ns))
        elif _lasts(act):
            self._lasting.setdefault(act, since)
        else:
            self._keep(FaultSpan(act, since, time_ns))

    def spans(self) -> tuple[FaultSpan, ...]:
        """Return the faults so far, in the order of their begins; those that last have no end."""
        still = [FaultSpan(name, since, None) for name, since in self._lasting.items()]
        still += [FaultSpan(name, since, None) for name, since in self._begun.items()]
        return tuple(sorted([*self._spans, *still], key=lambda span: span.start_ns))

    def _keep(self, span: FaultSpan) -> None:
        if len(self._spans) < FAULTS_MAX:
            self._spans.append(span)


def _ended_by(act: str) -> tuple[str, ...]:
    if act.startswith("stop-"):
        return (f"start-{act.removeprefix('stop-')}",)
    if act.endswith("-stop"):
        return (f"{act.removesuffix('-stop')}-start",)
    return _ENDS.get(act, ())


def _lasts(act: str) -> bool:
    """True if some other act ends it."""
    known = {name for ended in _ENDS.values() for name in ended}
    return act in known or act.startswith("start-") or act.endswith("-start")

"""The result of reading a foreign history, its damage, and how lines of text are read."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

PROBLEMS_SHOWN_MAX: Final = 3
"""Damaged places that a message lists; the others are counted."""


@dataclass(frozen=True, slots=True)
class History:
    """A recorded history as operations.

    Attributes:
        path: where it was read from.
        format: the recognised format, for people.
        operations: OPERATIONS, by (key, call_ns).
        events: number of events or operations in the recording, including the nemesis'.
        cut: where its end is missing, in one line; None if complete. It is then a prefix in time: a
            violation in it is real, the absence of one proves nothing.
        hole: where it lacks events before its end, in one line. Then nothing in it proves anything,
            since the missing events may explain every answer.
        notes: remarks for the reader that affect no verdict.
        is_timed: False if it has no times: then times count its events, 1 ns each.
        faults: what its nemesis did, in time order.
        model: the name of the sequential model of the object that it says it is of, if it does.
        initial: the first state of that object, as --initial takes it, if its format defines one.
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
    model: str | None = None
    initial: str | None = None

    @property
    def incomplete(self) -> str | None:
        """Why it is known to lack events; None if it is not."""
        return self.hole or self.cut


@dataclass(frozen=True, slots=True)
class Damage:
    """An unreadable place."""

    line: int
    byte: int
    why: str


def damage_text(path: Path, damage: Sequence[Damage]) -> str | None:
    """Return one line on the places that could not be read; None if there are none."""
    if not damage:
        return None
    first = damage[0]
    text = f"{path.name}, line {first.line} (byte {first.byte}): {first.why}"
    if len(damage) > 1:
        lines = [str(each.line) for each in damage[1 : PROBLEMS_SHOWN_MAX + 1]]
        more = len(damage) - 1 - len(lines)
        rest = f" and {more} more" if more > 0 else ""
        text += f"; unreadable as well: line {', '.join(lines)}{rest}"
    return text


# The faults of a foreign history's nemesis, as time spans for plots. Pure.
#
# Jepsen writes each nemesis operation twice, with type info: at its start and at its end; others
# write invoke and ok. A fault starts with its operation and lasts until the operation that ends it:
# `kill` until `start`, `pause` until `resume`, `start-partition` until `stop-partition`, `start`
# until `stop`. An operation that ends nothing and is ended by nothing lasts from its first event to
# its second.
#
# Source: jepsen.nemesis.combined and jepsen.checker.perf, for which acts belong together.

FAULTS_MAX: Final = 10_000
"""Spans that are kept; a plot shows the few that overlap it."""
_ENDS: Final[dict[str, tuple[str, ...]]] = {
    "start": ("kill",), "restart": ("kill",), "resume": ("pause",), "stop": ("start",),
    "heal": ("partition", "start-partition", "start"), "reset": ("bump", "strobe"),
    "reset-clock": ("bump-clock", "strobe-clock"),
}  # fmt: skip
"""By operation: the faults that it ends, if one of them is active."""


class FaultSpan(NamedTuple):
    """A fault and its time span; `stop_ns` is None if nothing ended it."""

    name: str
    start_ns: int
    stop_ns: int | None


class Faults:
    """Collects the events of the nemesis, in time order."""

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}  # operation -> its first event, until its second
        self._lasting: dict[str, int] = {}  # active fault -> its start
        self._spans: list[FaultSpan] = []

    def take(self, act: str, time_ns: int) -> None:
        """Add one event: the first of an operation or its second."""
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
        """Return the faults so far, by start; active ones have no end."""
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
    """Return whether some other operation ends it."""
    known = {name for ended in _ENDS.values() for name in ended}
    return act in known or act.startswith("start-") or act.endswith("-start")


# Read a text line by line, for formats that are lines; damage is kept with its place.

NOT_UTF8: Final = "bytes that are no UTF-8"


def read_lines(
    path: Path, take: Callable[[bytes, int], None]
) -> tuple[list[Damage], Damage | None]:
    """Pass each line and its number to `take`; return the unreadable places, and a torn last line.

    A last line is torn if it is no JSON, or if nothing ends it and `take` refuses it.

    Raises:
        OSError: the file cannot be read.
    """
    damage: list[Damage] = []
    last: Damage | None = None
    for number, at, line in _lines(path):
        if last is not None:
            damage.append(last)
            last = None
        try:
            take(line, number)
        except msgspec.ValidationError as error:
            damage.append(Damage(number, at, f"no event and no operation: {error}"))
        except RecursionError:
            damage.append(Damage(number, at, "nested too deeply"))
        except UnicodeDecodeError:
            damage.append(Damage(number, at, NOT_UTF8))
        except msgspec.DecodeError as error:
            last = Damage(number, at, f"no JSON: {error}")
        except ValueError as error:
            refused = Damage(number, at, str(error))
            if line.endswith(b"\n"):
                damage.append(refused)
            else:
                last = refused
    return damage, last


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            at = len(codecs.BOM_UTF8)
        file.seek(at)
        for number, line in enumerate(file, 1):
            if not line.isspace():
                yield number, at, line
            at += len(line)


def decoded(line: bytes) -> str:
    """Return a line as text, without its end.

    Raises:
        UnicodeDecodeError: it is no UTF-8.
    """
    return line.decode().rstrip("\r\n")


def number_or_text(text: str) -> int | str:
    """Return a word as a whole number if it is one."""
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 18
    return int(text) if is_number else text

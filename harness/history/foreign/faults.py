"""What the nemesis of a foreign history did, as spans of time to draw. Pure.

Jepsen writes each act of the nemesis twice, with type info: when it begins and when it is done;
others write invoke and ok. A fault begins when its act is done or at its first event, and lasts
until the act that ends it: `kill` until `start`, `pause` until `resume`, `start-partition` until
`stop-partition`, `start` until `stop`. What ends nothing and is ended by nothing lasts from its
first event to its second.

Source: jepsen.nemesis.combined and jepsen.checker.perf, for which acts belong together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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

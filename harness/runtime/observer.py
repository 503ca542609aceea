"""What a campaign reports to its observer, such as the progress display.

The supervisor calls an observer from its own trio task; a callback must return at once and must not
raise. All times are nanoseconds since the run's start (`time.monotonic_ns`), like the times in the
history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

PHASES = ("setup", "steady", "chaos", "heal", "drain", "teardown")
"""The phases of a campaign, in the order of each run."""
RETRY = "retry"
"""Follows "chaos" if a kind of fault had no effect."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of operations by outcome so far, over all workers."""

    ok: int = 0
    fail: int = 0
    info: int = 0


class Observer(Protocol):
    """Callbacks of a running campaign."""

    def phase_started(self, phase: str, at_ns: int, planned_s: float | None) -> None:
        """A phase of `PHASES` starts; `planned_s` is its planned length, if any."""
        ...

    def fault_started(self, fault: int, name: str, description: str, at_ns: int) -> None:
        """Fault number `fault` was applied."""
        ...

    def fault_stopped(
        self, fault: int, name: str, took_effect: bool, evidence: str, at_ns: int
    ) -> None:
        """Fault number `fault` was undone; `evidence` shows whether it took effect."""
        ...

    def leader_changed(self, node: str | None, term: int, at_ns: int) -> None:
        """Another node leads, as seen by polling; None: no node claims to lead."""
        ...

    def counts(self, counts: Counts) -> None:
        """The operations so far; called about twice a second."""
        ...

    def note(self, line: str) -> None:
        """One line for the user (a node ended by itself, a fault failed to apply)."""
        ...

    def on_drain(self) -> None:
        """The drain starts: the time to start what the check will need (the JVM).

        Called once, also when the run is cancelled. Start threads; do not wait for them.
        """
        ...


class SilentObserver:
    """An observer that ignores everything; also the base for those that want a few callbacks."""

    def phase_started(self, phase: str, at_ns: int, planned_s: float | None) -> None:
        """Ignore."""

    def fault_started(self, fault: int, name: str, description: str, at_ns: int) -> None:
        """Ignore."""

    def fault_stopped(
        self, fault: int, name: str, took_effect: bool, evidence: str, at_ns: int
    ) -> None:
        """Ignore."""

    def leader_changed(self, node: str | None, term: int, at_ns: int) -> None:
        """Ignore."""

    def counts(self, counts: Counts) -> None:
        """Ignore."""

    def note(self, line: str) -> None:
        """Ignore."""

    def on_drain(self) -> None:
        """Ignore."""

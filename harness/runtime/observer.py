"""What a campaign tells whoever watches it: the progress display, or nobody.

The supervisor calls an observer from its own trio task; a callback must return at once and
must not raise. All times are nanoseconds since the run's start (`time.monotonic_ns`), like
the times in the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

PHASES = ("setup", "steady", "chaos", "heal", "drain", "teardown")
"""The phases of a campaign, in the order in which each run goes through them."""
RETRY = "retry"
"""Follows "chaos" where a kind of fault had not bitten."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many operations ended in which way so far, over all workers."""

    ok: int = 0
    fail: int = 0
    info: int = 0


class Observer(Protocol):
    """Callbacks of a running campaign."""

    def phase_started(self, phase: str, at_ns: int, planned_s: float | None) -> None:
        """A phase of `PHASES` begins; `planned_s` is its length where that is planned."""
        ...

    def fault_started(self, fault: int, name: str, description: str, at_ns: int) -> None:
        """Fault number `fault` took effect."""
        ...

    def fault_stopped(
        self, fault: int, name: str, took_effect: bool, evidence: str, at_ns: int
    ) -> None:
        """Fault number `fault` was undone; `evidence` shows whether it took effect."""
        ...

    def leader_changed(self, node: str | None, term: int, at_ns: int) -> None:
        """Another node leads (or nobody answers as leader: None), as seen by polling."""
        ...

    def counts(self, counts: Counts) -> None:
        """The operations so far; called about twice a second."""
        ...

    def note(self, line: str) -> None:
        """Tell one line for a person (a node ended by itself, a fault failed to apply)."""
        ...

    def on_drain(self) -> None:
        """The drain begins: the moment to start whatever the check will need (the JVM).

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

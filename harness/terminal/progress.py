"""What a display knows of a running campaign: pure bookkeeping, no terminal, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from shaketable.harness.runtime.observer import Counts

NS = 1_000_000_000
RATE_WINDOW_NS = 3 * NS
"""The rate that is shown is the mean over this time."""
SAMPLES_MAX = 64
"""Counts kept for the rate; they come about twice a second."""


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """A fault in force."""

    fault: int
    description: str
    start_ns: int


@dataclass(slots=True)
class Progress:
    """The state of a campaign as its observer has heard of it. Times: ns since the start."""

    phase: str = ""
    phase_start_ns: int = 0
    planned_s: float | None = None
    passed: list[tuple[str, int]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    leader: str | None = None
    last_leader: str | None = None
    term: int = 0
    leaders_seen: int = 0
    active: dict[int, ActiveFault] = field(default_factory=dict)
    faults_ended: int = 0
    faults_bit: int = 0
    step: str = ""
    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def enter(self, phase: str, at_ns: int, planned_s: float | None) -> None:
        """A phase begins; the one before it is over."""
        if self.phase:
            self.passed.append((self.phase, at_ns - self.phase_start_ns))
        self.phase, self.phase_start_ns, self.planned_s = phase, at_ns, planned_s

    def fault_began(self, fault: int, description: str, at_ns: int) -> None:
        """A fault took effect."""
        self.active[fault] = ActiveFault(fault, description, at_ns)

    def fault_ended(self, fault: int, bit: bool) -> None:
        """A fault was undone."""
        self.active.pop(fault, None)
        self.faults_ended += 1
        self.faults_bit += bit

    def led_by(self, node: str | None, term: int) -> None:
        """Somebody leads in another term, or nobody does."""
        if node is not None and node != self.last_leader:
            self.leaders_seen += 1
            self.last_leader = node
        self.leader, self.term = node, term

    def count(self, counts: Counts, at_ns: int) -> None:
        """The operations so far."""
        self.counts = counts
        self.samples.append((at_ns, counts.ok + counts.fail + counts.info))

    @property
    def rate_hz(self) -> float:
        """Operations a second over the last `RATE_WINDOW_NS`."""
        if len(self.samples) < 2:
            return 0.0
        last_ns, last = self.samples[-1]
        first_ns, first = next(
            sample for sample in self.samples if last_ns - sample[0] <= RATE_WINDOW_NS
        )
        return (last - first) * NS / (last_ns - first_ns) if last_ns > first_ns else 0.0

    @property
    def leader_changes(self) -> int:
        """How often another node came to lead: the first one is no change."""
        return max(0, self.leaders_seen - 1)

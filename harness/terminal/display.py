"""Show the progress of a campaign: a panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shaketable.harness.runtime.observer import PHASES, RETRY, Counts
from shaketable.harness.terminal.output import Redrawn

NS = 1_000_000_000
CHECK = "check"
"""The step that the display shows after the campaign's phases."""
LINE_EVERY_NS = 5 * NS
"""Without a terminal the counts are printed at this interval."""
BAR_WIDTH = 36
BAR_STYLE = "cyan"

log = logging.getLogger(__name__)


class Display:
    """An observer that maintains a `Progress`, for subclasses to show."""

    def __init__(self, console: Console, on_drain: Callable[[], None]) -> None:
        self.console = console
        self.progress = Progress()
        self._on_drain = on_drain
        self._clock_ns: Callable[[], int] = time.monotonic_ns
        self._began_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        """Return the time since the run's start, aligned with the supervisor's at each phase."""
        return self._clock_ns() - self._began_ns

    def use_clock(self, clock_ns: Callable[[], int]) -> None:
        """Continue with another clock, such as that of a simulated world."""
        self._began_ns = clock_ns() - self.now_ns()
        self._clock_ns = clock_ns

    def phase_started(self, phase: str, at_ns: int, planned_s: float | None) -> None:
        """Record the start of a phase."""
        self._began_ns = self._clock_ns() - at_ns
        self.progress.enter(phase, at_ns, planned_s)
        log.info("event=phase at_s=%.3f phase=%s", at_ns / NS, phase)

    def fault_started(self, fault: int, name: str, description: str, at_ns: int) -> None:
        """Record that a fault is in force."""
        what = description if description.startswith(name) else f"{name}: {description}"
        self.progress.fault_began(fault, what, at_ns)
        log.info("event=fault_started at_s=%.3f fault=%d what=%r", at_ns / NS, fault, what)

    def fault_stopped(
        self, fault: int, name: str, took_effect: bool, evidence: str, at_ns: int
    ) -> None:
        """Record that a fault was undone."""
        self.progress.fault_ended(fault, took_effect)
        log.info(
            "event=fault_stopped at_s=%.3f fault=%d bit=%s evidence=%r",
            at_ns / NS,
            fault,
            took_effect,
            evidence,
        )

    def leader_changed(self, node: str | None, term: int, at_ns: int) -> None:
        """Record a change of the leader."""
        self.progress.led_by(node, term)
        log.info("event=leader at_s=%.3f node=%s term=%d", at_ns / NS, node or "-", term)

    def counts(self, counts: Counts) -> None:
        """Record the counts of operations so far."""
        self.progress.count(counts, self.now_ns())

    def note(self, line: str) -> None:
        """Print a note to the user."""
        log.warning("event=note said=%r", line)
        self.console.print(Text(f"           {line}", style="yellow"), soft_wrap=True)

    def on_drain(self) -> None:
        """Record the start of the drain."""
        self._on_drain()

    def checking(self, step: str) -> None:
        """Record the next step of the check; the first call ends the campaign's last phase."""
        if self.progress.phase != CHECK:
            self.progress.enter(CHECK, self.now_ns(), None)
        self.progress.step = step
        log.info("event=check step=%r", step)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress for the body of `with`."""
        yield


class PlainDisplay(Display):
    """One line per event, and the counts every few seconds: for logs and pipes."""

    def __init__(self, console: Console, on_drain: Callable[[], None]) -> None:
        super().__init__(console, on_drain)
        self._last_line_ns = 0

    def _print(self, text: str, at_ns: int) -> None:
        self.console.print(
            f"{at_ns / NS:7.1f} s  {text}", markup=False, highlight=False, soft_wrap=True
        )

    def phase_started(self, phase: str, at_ns: int, planned_s: float | None) -> None:
        """Print the phase and its planned length."""
        super().phase_started(phase, at_ns, planned_s)
        self._print(phase if planned_s is None else f"{phase}, {planned_s:g} s", at_ns)

    def fault_started(self, fault: int, name: str, description: str, at_ns: int) -> None:
        """Print the fault."""
        super().fault_started(fault, name, description, at_ns)
        self._print(f"fault {fault}: {self.progress.active[fault].description}", at_ns)

    def fault_stopped(
        self, fault: int, name: str, took_effect: bool, evidence: str, at_ns: int
    ) -> None:
        """Print whether the fault took effect, and the evidence."""
        super().fault_stopped(fault, name, took_effect, evidence, at_ns)
        self._print(
            f"fault {fault} {'took effect' if took_effect else 'had no effect'}: {evidence}", at_ns
        )

    def leader_changed(self, node: str | None, term: int, at_ns: int) -> None:
        """Print the leader."""
        super().leader_changed(node, term, at_ns)
        self._print(f"{node} leads in term {term}" if node else "no leader", at_ns)

    def counts(self, counts: Counts) -> None:
        """Print the counts every `LINE_EVERY_NS`."""
        super().counts(counts)
        now_ns = self.now_ns()
        if now_ns - self._last_line_ns >= LINE_EVERY_NS:
            self._last_line_ns = now_ns
            self._print(_counts_text(self.progress), now_ns)

    def checking(self, step: str) -> None:
        """Print the step of the check."""
        super().checking(step)
        self._print(f"{CHECK}: {step}", self.now_ns())


class LiveDisplay(Redrawn, Display):
    """A panel of five lines that is redrawn in place and vanishes at the end."""

    def __init__(self, console: Console, on_drain: Callable[[], None]) -> None:
        super().__init__(console, on_drain)
        self._lock = threading.Lock()

    def panel(self) -> Group:
        """Render the current progress. Called from rich's refresh thread."""
        progress = self.progress
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=10, style="dim")
        grid.add_column(overflow="ellipsis", no_wrap=True)
        grid.add_row("operations", _counts_text(progress))
        grid.add_row("leader", _leader_text(progress))
        grid.add_row("fault", _fault_text(progress, self.now_ns()))
        return Group(_phases_text(progress), _phase_line(progress, self.now_ns()), grid)


def make_display(console: Console, on_drain: Callable[[], None]) -> Display:
    """Return the display that fits: live on a terminal, plain lines elsewhere."""
    kind = LiveDisplay if console.is_terminal and not console.is_dumb_terminal else PlainDisplay
    return kind(console, on_drain)


def _phases_text(progress: Progress) -> Text:
    """Return all phases, styled as passed, current or to come."""
    passed = {phase for phase, _ in progress.passed}
    text = Text()
    for phase in (*_phases(progress), CHECK):
        style = "bold" if phase == progress.phase else "green" if phase in passed else "dim"
        text.append(phase, style=style)
        text.append("  ")
    return text


def _phases(progress: Progress) -> Iterator[str]:
    """Yield the phases of a run, with "retry" if that happened."""
    for phase in PHASES:
        yield phase
        if phase == "chaos" and RETRY in (progress.phase, *(name for name, _ in progress.passed)):
            yield RETRY


def _phase_line(progress: Progress, now_ns: int) -> Table:
    elapsed_s = max(0.0, (now_ns - progress.phase_start_ns) / NS)
    grid = Table.grid(padding=(0, 2, 0, 0))
    if progress.planned_s:
        bar = ProgressBar(
            total=progress.planned_s,
            completed=min(elapsed_s, progress.planned_s),
            width=BAR_WIDTH,
            complete_style=BAR_STYLE,
            finished_style=BAR_STYLE,
        )
        left_s = max(0.0, progress.planned_s - elapsed_s)
        grid.add_row(bar, Text(f"{elapsed_s:.0f} s, {left_s:.0f} s to go"))
    else:
        bar = ProgressBar(
            total=None, width=BAR_WIDTH, pulse=True, pulse_style=BAR_STYLE, animation_time=elapsed_s
        )
        grid.add_row(bar, Text(f"{elapsed_s:.0f} s  {progress.step}".rstrip()))
    return grid


def _counts_text(progress: Progress) -> str:
    counts = progress.counts
    text = f"{counts.ok:,} ok  {counts.fail:,} fail  {counts.info:,} info"
    return f"{text}  {progress.rate_hz:,.0f}/s" if progress.rate_hz else text


def _leader_text(progress: Progress) -> str:
    if progress.leaders_seen == 0:
        return "none yet"
    who = f"{progress.leader} in term {progress.term}" if progress.leader else "no node answers"
    changes = progress.leader_changes
    if not changes:
        return who
    return f"{who}, changed {'once' if changes == 1 else f'{changes} times'}"


def _fault_text(progress: Progress, now_ns: int) -> Text:
    took_effect = (
        f"{progress.faults_effective} of {progress.faults_ended} took effect"
        if progress.faults_ended
        else ""
    )
    if not progress.active:
        return Text(f"none in force{f'; {took_effect} so far' if took_effect else ''}")
    active = [
        f"{fault.description}, {(now_ns - fault.start_ns) / NS:.1f} s"
        for fault in list(progress.active.values())
    ]
    return Text("; ".join(active), style="bold yellow")


# The state of a running campaign for a display: pure, no terminal, no clock.

RATE_WINDOW_NS = 3 * NS
"""The shown rate is the mean over this time."""
SAMPLES_MAX = 64
"""Samples kept for the rate; there are about two a second."""


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """A fault in force."""

    fault: int
    description: str
    start_ns: int


@dataclass(slots=True)
class Progress:
    """The state of a campaign as reported to its observer. Times: ns since the start."""

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
    faults_effective: int = 0
    step: str = ""
    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def enter(self, phase: str, at_ns: int, planned_s: float | None) -> None:
        """Start a phase and end the one before it."""
        if self.phase:
            self.passed.append((self.phase, at_ns - self.phase_start_ns))
        self.phase, self.phase_start_ns, self.planned_s = phase, at_ns, planned_s

    def fault_began(self, fault: int, description: str, at_ns: int) -> None:
        """Add a fault in force."""
        self.active[fault] = ActiveFault(fault, description, at_ns)

    def fault_ended(self, fault: int, took_effect: bool) -> None:
        """Remove a fault that was undone."""
        self.active.pop(fault, None)
        self.faults_ended += 1
        self.faults_effective += took_effect

    def led_by(self, node: str | None, term: int) -> None:
        """Set the leader and its term; None if there is no leader."""
        if node is not None and node != self.last_leader:
            self.leaders_seen += 1
            self.last_leader = node
        self.leader, self.term = node, term

    def count(self, counts: Counts, at_ns: int) -> None:
        """Set the counts of operations so far."""
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
        """How often another node became leader, without the first election."""
        return max(0, self.leaders_seen - 1)

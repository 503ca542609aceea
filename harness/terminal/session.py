"""Run and judge one campaign, and clean up after it.

Its progress is shown as a panel on a terminal, as plain lines elsewhere.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import trio
from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shaketable.harness import discovery, run_markers
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import Campaign, faults_of, repeat_command
from shaketable.harness.campaigns.schedule import schedule
from shaketable.harness.contracts.errors import HarnessError, NamespaceNeededError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import EXIT_BY_OUTCOME, Outcome
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging import judge
from shaketable.harness.judging.engines import Engine
from shaketable.harness.runtime import availability
from shaketable.harness.runtime.observer import PHASES, RETRY, Counts
from shaketable.harness.terminal.output import Redrawn, out, shown

if TYPE_CHECKING:
    from shaketable.harness.runtime.supervisor import RunResult
    from shaketable.reports.run_view import RunView


LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
QUIET_LOGGERS: Final = ("py4j", "bokeh", "matplotlib")
"""Libraries that log too much at our log level."""
ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Session:
    """The result of one campaign: its exit code, and whether the user ended it early."""

    code: int
    is_interrupted: bool


def enter(campaign: Campaign) -> None:
    """Require a network namespace of our own, if the world needs one.

    Raises:
        HarnessError: none can be created here; one line says why, and what would help.
        NamespaceNeededError: this process must be restarted in one.
    """
    if campaign.world != "netns":
        return
    from shaketable.harness import namespaces  # noqa: PLC0415 - the other worlds need none
    from shaketable.harness.network.probe import why_no_namespace  # noqa: PLC0415 - likewise

    if not namespaces.is_inside():
        if (why := why_no_namespace()) is not None:
            raise HarnessError(f"world netns: {why}")
        raise NamespaceNeededError("world netns: this process is not in a namespace of its own")


def run_one(campaign: Campaign, base_port: int | None) -> Session:
    """Run, judge and report one resolved campaign.

    The first Ctrl-C, SIGTERM or SIGHUP ends the campaign in order, and what was recorded is
    judged; the second tears the group down at once; one during the check ends the command without
    a verdict.

    Raises:
        UsageError: no suitable Java, or the store cannot be written.
        HarnessError: the harness failed, such as on a port in use.
        KeyboardInterrupt: interrupted before a verdict; no process is left.
    """
    engine = Engine(campaign.engine, campaign.spark)
    engine.require_java(os.environ)
    choice = availability.choose(campaign)
    schedule(campaign, choice.faults)  # raises on an impossible schedule before anything is created
    if campaign.world == "sim":
        from shaketable.harness.runtime.simulated.run import groups_of  # noqa: PLC0415 - as above

        groups_of(discovery.get("targets", campaign.target))
    folder = run_folder.create(Path(campaign.store), campaign.name, datetime.now(UTC))
    run_folder.write_atomically(folder.campaign_toml, campaigns.to_toml(campaign))
    run_folder.link_latest(folder)
    out.print(_heading(campaign), soft_wrap=True)
    for line in availability.tell(choice.unavailable):
        out.print(Text(line), soft_wrap=True)
    if is_judged_online(campaign):
        from shaketable.harness.runtime.online import coverage_of  # noqa: PLC0415 - its checkers take time to load

        out.print(Text(coverage_of(campaign).line, style="dim"), soft_wrap=True)
    if campaign.world == "sim":
        engine.warm_up()  # now: a start of Spark disturbs no virtual time
    display = make_display(out, engine.warm_up)
    with run_markers.working_in(folder.path), logged_to(folder), _ended_by_signals():
        try:
            with display.shown():
                result = _run(campaign, folder, display, base_port)
                outcome, view = _judged(folder, campaign, engine, display)
        except BaseException:
            if any(folder.segments.glob("worker-*.seg")):
                out.print(
                    Text(f"to judge what was recorded: {PROGRAM} analyze {shown(folder.path)}"),
                    soft_wrap=True,
                )
            raise
        finally:
            engine.stop()
        return Session(conclude(folder, outcome, view), result.status == "interrupted")


def _run(
    campaign: Campaign, folder: RunFolder, display: Display, base_port: int | None
) -> RunResult:
    """Run the campaign in its world, importing only what that world needs."""
    command = [repeat_command(campaign, folder.path)]
    if campaign.world == "sim":
        from shaketable.harness.runtime.simulated.run import run_simulated  # noqa: PLC0415 - see above

        try:
            return run_simulated(
                campaign, folder, display, command=command, on_clock=display.use_clock
            )
        finally:
            display.use_clock(time.monotonic_ns)
    from shaketable.harness.runtime.supervisor import run_campaign  # noqa: PLC0415 - see above

    judge = None
    if is_judged_online(campaign):
        from shaketable.harness.judging.online import run_online  # noqa: PLC0415 - see above

        judge = run_online
    run = partial(
        run_campaign, campaign, folder, display, base_port=base_port, command=command, judge=judge
    )
    return trio.run(run)


def is_judged_online(campaign: Campaign) -> bool:
    """Return whether a campaign is to be judged while it runs, as far as that can be."""
    return campaign.online or campaign.stop_at_first_violation


def judge_stored(
    folder: RunFolder, campaign: Campaign, engine: Engine, *, keeps_promise: bool = False
) -> int:
    """Judge a stored run; return its exit code.

    With `keeps_promise` the campaign, and so its promise, is kept once the run was judged by it.

    Raises:
        UsageError: no suitable Java.
        HarnessError: the recordings cannot be read, or a file cannot be written.
    """
    engine.require_java(os.environ)
    display = make_display(out, engine.warm_up)
    with run_markers.working_in(folder.path):
        try:
            with display.shown():
                outcome, view = _judged(folder, campaign, engine, display)
        finally:
            engine.stop()
        if keeps_promise:
            run_folder.write_atomically(folder.campaign_toml, campaigns.to_toml(campaign))
    return conclude(folder, outcome, view)


def _judged(
    folder: RunFolder, campaign: Campaign, engine: Engine, display: Display
) -> tuple[Outcome, RunView]:
    """Judge a stored run and write its report; return the outcome, and what the report shows."""
    results = judge.judge(folder, campaign, engine, display.checking)
    for verdict in results.verdicts:
        if verdict.checker == judge.AGREEMENT:
            display.note(verdict.summary)
    display.checking("writing the report")
    return results.outcome, judge.render(folder).view


def conclude(folder: RunFolder, outcome: Outcome, view: RunView) -> int:
    """Print the summary of a judged run; return its exit code."""
    from shaketable.harness.terminal import summary  # noqa: PLC0415 - reports take half a second to import

    logging.getLogger(__name__).info("event=verdict verdict=%s why=%r", view.verdict, view.why)
    summary.show(out, view, shown(folder.report_html))
    return EXIT_BY_OUTCOME[outcome]


@contextmanager
def logged_to(folder: RunFolder) -> Iterator[None]:
    """Send the log to the run's shaketable.log for the body of `with`.

    Raises:
        HarnessError: it cannot be written, as in a run of another user.
    """
    try:
        handler = logging.FileHandler(folder.log, encoding="utf-8")
    except OSError as error:
        raise HarnessError(f"cannot write {folder.log}: {error.strerror}") from error
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    except Exception:
        logging.getLogger(__name__).exception("the command failed")
        raise
    finally:
        root.removeHandler(handler)
        handler.close()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that the nodes are stopped in the same way.

    They are raised as SIGINT, which trio handles safely.
    """

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = {number: signal.signal(number, interrupt) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heading(campaign: Campaign) -> Text:
    text = Text("shaketable", style="bold")
    facts = [
        f"{campaign.nodes} node{'' if campaign.nodes == 1 else 's'} of {campaign.target}",
        campaign.workload,
        ", ".join(faults_of(campaign)) or "no faults",
        *([f"mutant {campaign.mutant}"] if campaign.mutant else []),
        f"seed {campaign.seed}",
    ]
    text.append(f"  {' · '.join(facts)}", style="not bold default")
    return text


# The progress of a campaign.

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
            "event=fault_stopped at_s=%.3f fault=%d took_effect=%s evidence=%r",
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

"""Run seeds with progress shown: many with totals, one with its trace, or a failing one made small.

The story of a small run is printed and saved.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import signal
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from shaketable.harness import discovery
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.program import PROGRAM, PROGRAM_WORDS
from shaketable.harness.contracts.simulation import (
    VIRTUAL_S_DEFAULT,
    RunSpec,
    SeedRun,
    Shrinker,
    ShrunkRun,
    Simulated,
    Simulator,
    Size,
    Step,
    Tally,
    Violation,
    Watch,
)
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.runtime.seed_workers import SeedWorkers
from shaketable.harness.terminal import output
from shaketable.harness.terminal.output import show_rows

TARGET_DEFAULT: Final = "dledger"
VIOLATIONS_SHOWN: Final = 10
STATES_SHOWN: Final = 12


def simulator_of(target: str) -> Simulator:
    """Return the simulated worlds of a target.

    Raises:
        UsageError: there is no such target, or it has no simulated world.
    """
    found = discovery.get("targets", target)
    if not isinstance(found, Simulated):
        raise UsageError(f"the target {target} has no simulated world")
    return found.simulator


def of_seed(spec: RunSpec, seed: int) -> RunSpec:
    """Return the same run with another seed."""
    return dataclasses.replace(spec, seed=seed)


def run_many(target: str, first: RunSpec, seeds: int, jobs: int, keep_going: bool) -> int:
    """Run `seeds` seeds from `first` on and print the totals; return the exit code.

    Raises:
        HarnessError: a process died.
    """
    simulator = simulator_of(target)
    specs = (of_seed(first, first.seed + number) for number in range(seeds))
    last = first.seed + seeds - 1
    print_heading(target, first, f"seeds {first.seed} to {last}", f"{jobs} jobs")
    tally, began = Tally(), time.monotonic()
    with SeedBar(output.out, seeds, first.virtual_s) as bar:
        for run in _results(partial(run_seed, target), specs, jobs):
            tally.add(run)
            bar.done(tally.seeds, len(tally.violations))
            if run.violation is not None and not keep_going:
                break
    lasted_s = time.monotonic() - began
    _print_verdict(tally)
    rows = speed_rows(tally, lasted_s)
    if keep_going or not tally.violations:  # after an early stop missing coverage means nothing
        rows += coverage_rows(tally, simulator, first.world)
    show_rows(output.out, rows, "dim")
    for run in tally.violations[:VIOLATIONS_SHOWN]:
        _print_violation(run, of_seed(first, run.seed), target)
    return ExitCode.INVALID if tally.violations else ExitCode.VALID


def run_seed(target: str, spec: RunSpec) -> SeedRun:
    """Run one seed, in a process of its own."""
    return simulator_of(target).run(spec)


def speed_rows(tally: Tally, lasted_s: float) -> list[tuple[str, str]]:
    """Return rows with the amount of work and its speed."""
    lasted_s = max(lasted_s, 1e-9)
    return [
        (
            "speed",
            f"{tally.seeds / lasted_s:,.1f} seeds a second, "
            f"{tally.virtual_ms / 1e3 / lasted_s:,.0f} virtual seconds a second",
        ),
        (
            "operations",
            f"{tally.operations_per_virtual_s:,.0f} a virtual second, {tally.operations:,} in all",
        ),
        ("faults", f"{tally.faults / tally.seeds:.1f} a seed, {tally.faults_min} at least"),
    ]


def coverage_rows(tally: Tally, simulator: Simulator, world: str) -> list[tuple[str, str]]:
    """Return rows with the coverage: occurrences and states that were reached."""
    states = simulator.states(world)
    rows = [
        (occurrence, f"in {tally.share(occurrence):.1%} of the seeds")
        for occurrence in simulator.occurrences
    ]
    if states:
        rows.append(("states", f"{len(tally.states & states)} of {len(states)} reached"))
    if missing := sorted(states - tally.states):
        more = f" and {len(missing) - STATES_SHOWN} more" if len(missing) > STATES_SHOWN else ""
        rows.append(("not reached", ", ".join(missing[:STATES_SHOWN]) + more))
    return rows


def _results(
    work: Callable[[RunSpec], SeedRun], specs: Iterable[RunSpec], jobs: int
) -> Iterator[SeedRun]:
    with SeedWorkers(work, jobs) as workers:
        yield from workers.run(specs)


def print_heading(target: str, spec: RunSpec, *facts: str, is_one: bool = False) -> None:
    """Print what is about to be run, with one seed or many."""
    text = Text("shaketable", style="bold")
    parts = [
        f"{target}, simulated: the {spec.world} world",
        *facts,
        f"{spec.virtual_s:g} s{'' if is_one else ' each'}",
        *([f"mutant {spec.mutant}"] if spec.mutant else []),
    ]
    output.out.print(text.append(f"  {' · '.join(parts)}", "not bold default"), soft_wrap=True)


def _print_verdict(tally: Tally) -> None:
    count = len(tally.violations)
    if count:
        text = Text("INVALID", style="bold red")
        seeds = "1 seed breaks" if count == 1 else f"{count:,} seeds break"
        text.append(f"  {seeds} an invariant, of {tally.seeds:,} run", "not bold default")
    else:
        text = Text("VALID", style="bold green")
        text.append(f"  no invariant was broken in {tally.seeds:,} seeds", "not bold default")
    output.out.print()
    output.out.print(text, soft_wrap=True)
    output.out.print()


def _print_violation(run: SeedRun, spec: RunSpec, target: str) -> None:
    assert run.violation is not None
    output.out.print()
    output.out.print(Text(f"seed {run.seed}: {violation_text(run.violation)}"), soft_wrap=True)
    output.out.print(Text(f"  {replay_command(spec, target)}"), soft_wrap=True)
    simulator = simulator_of(target)
    if isinstance(simulator, Shrinker) and spec.world in simulator.shrinkable:
        output.out.print(Text(f"  {shrink_command(spec, target)}"), soft_wrap=True)


def violation_text(violation: Violation) -> str:
    """Return in one line which invariant was broken, when, and what was observed."""
    return f"{violation.invariant} broken at {violation.at_ms:,.3f} ms: {violation.message}"


def replay_command(spec: RunSpec, target: str = TARGET_DEFAULT) -> str:
    """Return the command that replays this run step by step."""
    return _command("replay", spec, target)


def shrink_command(spec: RunSpec, target: str = TARGET_DEFAULT) -> str:
    """Return the command that shrinks this run."""
    return _command("shrink", spec, target)


def _command(name: str, spec: RunSpec, target: str) -> str:
    arguments = [PROGRAM, name, str(spec.seed), "--world", spec.world]
    if spec.mutant is not None:
        arguments += ["--mutant", spec.mutant]
    if spec.virtual_s != VIRTUAL_S_DEFAULT:
        arguments += ["--time-limit", f"{spec.virtual_s!r}".removesuffix(".0")]
    if target != TARGET_DEFAULT:
        arguments += ["--target", target]
    return " ".join(arguments)


def run_one(target: str, spec: RunSpec, trace: Path | None) -> int:
    """Run one seed and write its trace to a file or the terminal; return the exit code.

    Raises:
        HarnessError: the file cannot be written.
    """
    simulator = simulator_of(target)
    if trace is None:
        run = simulator.run(spec, _write_line)
    else:
        try:
            with trace.open("w", encoding="utf-8") as file:
                run = simulator.run(spec, lambda line: print(line, file=file))
        except OSError as error:
            raise HarnessError(f"cannot write {trace}: {error.strerror}") from error
    output.out.print(
        Text(
            f"seed {spec.seed}: {run.events:,} events, {run.operations:,} operations, "
            f"{run.faults} faults in {run.virtual_ms / 1e3:g} s; digest {run.digest}"
        ),
        soft_wrap=True,
    )
    if run.violation is None:
        return ExitCode.VALID
    _print_violation(run, spec, target)
    return ExitCode.INVALID


def _write_line(line: str) -> None:
    output.out.write(line + "\n")


def show_step(known: dict[str, str], from_ms: float, to_ms: float, step: Step) -> None:
    """Print a step, and the nodes whose state changed since the last printed one."""
    news = {node: state for node, state in step.nodes.items() if known.get(node) != state}
    if not from_ms <= step.at_ms <= to_ms:
        return  # skipped changes are shown with the first step in range
    known.update(news)
    _write_line(f"{step.at_ms:12.3f}  {step.what}")
    for node, state in news.items():
        _write_line(f"{'':12}    {node}: {state}")


def print_end(violation: Violation | None) -> int:
    """Print how a replay ended; return the exit code."""
    if violation is None:
        output.out.print("the end: nothing was found wrong")
        return ExitCode.VALID
    output.out.print(Text(violation_text(violation)), soft_wrap=True)
    return ExitCode.INVALID


# The progress of a simulation: a bar on a terminal, a line now and then elsewhere.

LINE_EVERY_S: Final = 10.0
"""Without a terminal a line is printed at this interval."""


class SeedBar:
    """Shows progress out of `total`; `virtual_s`: the virtual time of each seed, if known."""

    def __init__(self, console: Console, total: int, virtual_s: float | None) -> None:
        self._console = console
        self._total = total
        self._virtual_s = virtual_s
        self._began = self._last_line_s = time.monotonic()
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                BarColumn(36, complete_style="cyan"),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> SeedBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def done(self, count: int, violations: int) -> None:
        """Show that `count` are done."""
        now = time.monotonic()
        text = self._text(count, now - self._began, violations)
        if self._progress is not None:
            self._progress.update(self._task, completed=count, description=text)
        elif now - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = now
            self._console.print(f"{count:,} of {self._total:,}  {text}", highlight=False)

    def _text(self, count: int, lasted_s: float, violations: int) -> str:
        rate_hz = count / max(lasted_s, 1e-9)
        text = f"{rate_hz:.1f}/s"
        if self._virtual_s is not None:
            text = f"{rate_hz:.1f} seeds/s, {rate_hz * self._virtual_s:,.0f} virtual s/s"
        return f"{text}, {violations} violations" if violations else text


class ShrinkBar:
    """Shows how small a failing run has become, and how much of its time has passed."""

    def __init__(self, console: Console, seconds_max: float) -> None:
        self._console = console
        self._seconds_max = seconds_max
        self._began = self._last_line_s = time.monotonic()
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                BarColumn(16, complete_style="cyan"),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("the first run", total=seconds_max)

    def __enter__(self) -> ShrinkBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def done(self, runs: int, left: Size) -> None:
        """Show the number of runs so far, and the size of the smallest failing one."""
        now = time.monotonic()
        lasted_s = now - self._began
        text = f"{'1 run' if runs == 1 else f'{runs:,} runs'}, {left} left"
        if self._progress is not None:
            self._progress.update(self._task, completed=lasted_s, description=text)
        elif now - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = now
            text = f"{lasted_s:.0f} s of {self._seconds_max:g} s: {text}"
            self._console.print(text, highlight=False)


# A failing run is made small.

HUNT_SEEDS_MAX: Final = 2_000
"""Most seeds that are run to find one that fails."""
STORY_WIDTH_MAX: Final = 120
"""Longer lines are hard to read, however wide the terminal is."""
STORE: Final = Path("store/shrunk")
LABEL_WIDTH: Final = 9
FOLDED_WIDTH_MIN: Final = 14
"""With less room than this, the last column is put on a line of its own."""


@dataclass(frozen=True, slots=True)
class ShrinkSettings:
    """How long to search for a smaller run, and where to save it; `out` None: the usual folder."""

    seconds_max: float
    out: Path | None


def shrinker_of(target: str, world: str) -> Shrinker:
    """Return the shrinker for runs of a target in this world.

    Raises:
        UsageError: such runs cannot be shrunk.
    """
    simulator = simulator_of(target)
    if not isinstance(simulator, Shrinker):
        raise UsageError(f"runs of the target {target} cannot be shrunk")
    if world not in simulator.shrinkable:
        able = " or ".join(sorted(simulator.shrinkable))
        raise UsageError(f"runs of the {world} world cannot be shrunk: take --world {able}")
    return simulator


def shrink_failing(
    target: str, shrinker: Shrinker, spec: RunSpec, settings: ShrinkSettings, hunt_jobs: int = 0
) -> int:
    """Shrink the run of a seed; with `hunt_jobs`, of the first failing seed.

    Raises:
        HarnessError: the run cannot be written, or a process died.
    """
    if hunt_jobs:
        print_heading(target, spec, f"seeds from {spec.seed} on")
        failing = _hunt(target, spec, hunt_jobs)
        if failing is None:
            output.out.print(
                f"{spec.mutant} breaks nothing in the seeds {spec.seed} to "
                f"{spec.seed + HUNT_SEEDS_MAX - 1}: there is nothing to shrink"
            )
            return ExitCode.VALID
        spec = failing
    else:
        print_heading(target, spec, f"seed {spec.seed}", is_one=True)
    shrunk, is_stopped = _watched(partial(shrinker.shrink, spec), settings.seconds_max)
    if shrunk is None:
        output.out.print(f"seed {spec.seed} breaks nothing: there is nothing to shrink")
        return ExitCode.VALID
    # Without a planted bug it is the bug of this tree, whatever that is.
    usual = STORE / "-".join(filter(None, (target, spec.mutant, str(spec.seed))))
    return _conclude(target, shrunk, settings.out or usual, is_stopped)


def shrink_file(target: str, shrinker: Shrinker, path: Path, settings: ShrinkSettings) -> int:
    """Continue to shrink a saved run, and replace it by the result.

    Raises:
        UsageError: the file holds no shrunk run.
        HarnessError: the run cannot be written.
    """
    text = Text("shaketable", style="bold").append(f"  {target}, simulated: ", "not bold default")
    output.out.print(text.append(str(path), "not bold default"), soft_wrap=True)
    shrunk, is_stopped = _watched(partial(shrinker.shrink_file, path), settings.seconds_max)
    if shrunk is None:
        output.out.print(
            Text(f"{path} breaks nothing any more: there is nothing to shrink"), soft_wrap=True
        )
        return ExitCode.VALID
    return _conclude(target, shrunk, settings.out or path.parent, is_stopped)


def _hunt(target: str, first: RunSpec, jobs: int) -> RunSpec | None:
    """Return the first failing seed, independent of the number of processes; None if none fails."""
    specs = (of_seed(first, first.seed + number) for number in range(HUNT_SEEDS_MAX))
    with (
        SeedBar(output.out, HUNT_SEEDS_MAX, first.virtual_s) as bar,
        SeedWorkers(partial(run_seed, target), jobs) as workers,
    ):
        for count, run in enumerate(workers.run(specs), 1):
            bar.done(count, 0)
            if run.violation is not None:
                text = f"seed {run.seed}: {violation_text(run.violation)}"
                output.out.print(Text(text), soft_wrap=True)
                return of_seed(first, run.seed)
    return None


def _watched(
    search: Callable[[float, Watch], ShrunkRun | None], seconds_max: float
) -> tuple[ShrunkRun | None, bool]:
    """Run a search with its progress shown; return the result and whether Ctrl-C ended it."""
    with _stoppable() as is_stopped, ShrinkBar(output.out, seconds_max) as bar:

        def watch(runs: int, left: Size) -> bool:
            bar.done(runs, left)
            return not is_stopped()

        return search(seconds_max, watch), is_stopped()


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C, SIGTERM or SIGHUP came; a second interrupts."""
    noted = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal noted
        if noted:
            raise KeyboardInterrupt
        noted = True

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _conclude(target: str, shrunk: ShrunkRun, folder: Path, is_stopped: bool) -> int:
    """Print the story, save the run, and print how to go on."""
    output.out.print()
    width = min(output.out.width, STORY_WIDTH_MAX)
    output.out.print(Text(fold(shrunk.describe(width), width)), soft_wrap=True)
    run, page = _save(shrunk, folder)
    text = Text("INVALID", style="bold red")
    text.append(f"  {shrunk.violation.invariant} breaks with ", "not bold default")
    text.append(f"{shrunk.after}", "not bold default")
    output.out.print(text, soft_wrap=True)
    output.out.print()
    tried = "1 run" if shrunk.runs == 1 else f"{shrunk.runs:,} runs"
    why = "interrupted" if is_stopped else "out of time or runs"
    ended = "" if shrunk.is_finished else f"; {why}: it may get smaller still"
    _print_row("shrunk", f"from {shrunk.before}, in {tried} and {shrunk.seconds:.1f} s{ended}")
    _print_row("run", output.shown(run))
    _print_row("story", output.shown(page))
    _print_row("replay", _command_of_run("replay", run, target))
    if not shrunk.is_finished:
        _print_row("go on", _command_of_run("shrink", run, target))
    return ExitCode.INVALID


def fold(story: str, width: int) -> str:
    """Wrap the last column of too long lines of a story, and leave the other columns in place.

    A picture with many lanes leaves too little room for its text. The lines of one event are
    wrapped as one text, with its lanes beside them.
    """
    folded: list[str] = []
    states: dict[int, str] = {}  # of the lanes, by their columns
    for event in _events(story.splitlines()):
        starts = [_start_of_text(line) for line in event]
        room = width - starts[0]
        if all(len(line) <= width for line in event):
            folded += event
        elif room >= FOLDED_WIDTH_MIN:
            text = " ".join(line[start:] for line, start in zip(event, starts, strict=True))
            first, *others = textwrap.wrap(text, room, break_on_hyphens=False)
            below = (
                event[1][: starts[1]] if len(event) > 1 else _below(event[0][: starts[0]], states)
            )
            folded += [event[0][: starts[0]] + first, *(below + other for other in others)]
        else:
            for line, start in zip(event, starts, strict=True):
                folded += [line[:start].rstrip(), *textwrap.wrap(line[start:], width)]
        if _EVENT.match(event[0]):
            shown = enumerate(event[-1][: starts[-1]])
            states |= {column: sign for column, sign in shown if sign in STATES}
    return "\n".join(folded) + "\n"


def _events(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield lines of a story, those of one event together: only the first of them has a time."""
    event: list[str] = []
    for line in lines:
        if event and _EVENT.match(event[0]) and _BELOW.match(line):
            event.append(line)
            continue
        if event:
            yield event
        event = [line]
    if event:
        yield event


_EVENT: Final = re.compile(r" *\d+\.\d ")
_BELOW: Final = re.compile(r" {6,}[|#:]")
STATES: Final = "|#:"
"""What a lane shows of its node: up, leading, down."""


def _start_of_text(line: str) -> int:
    return line.rfind("  ") + 2 if "  " in line.strip() else 0


def _below(head: str, states: Mapping[int, str]) -> str:
    """Return the lanes below an event of one line: without its time, marks and arrows."""
    time = _EVENT.match(head)
    assert time is not None, "a line of its own is an event"
    shown = enumerate(head[time.end() :], start=time.end())
    marked = {"X": ":"}
    lanes = [
        sign
        if sign in STATES
        else marked.get(sign) or (states.get(column, "|") if sign in "o*!" else " ")
        for column, sign in shown
    ]
    return " " * time.end() + "".join(lanes)


def _print_row(label: str, text: str) -> None:
    """Print a label and a text as one line, however long, so that it can be copied."""
    line = Text("  ").append(f"{label:<{LABEL_WIDTH}}", "dim").append(text)
    output.out.print(line, soft_wrap=True)


def _command_of_run(name: str, run: Path, target: str) -> str:
    arguments = [*PROGRAM_WORDS, name, output.shown(run)]
    return shlex.join(arguments if target == TARGET_DEFAULT else [*arguments, "--target", target])


def _save(shrunk: ShrunkRun, folder: Path) -> tuple[Path, Path]:
    """Write the run and its page into a folder, each atomically.

    Raises:
        HarnessError: they cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temp = Path(tempfile.mkdtemp(prefix=".shrunk-", dir=folder))
        try:
            run, page = shrunk.save(temp)
            return run.replace(folder / run.name), page.replace(folder / page.name)
        finally:
            shutil.rmtree(temp, ignore_errors=True)
    except OSError as error:
        raise HarnessError(f"cannot write into {folder}: {error.strerror}") from error

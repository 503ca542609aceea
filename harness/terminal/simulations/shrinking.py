"""Shrink a failing run with progress shown, print its story and save it."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from rich.text import Text

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.program import PROGRAM_WORDS
from shaketable.harness.contracts.simulation import RunSpec, Shrinker, ShrunkRun, Size, Watch
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.runtime.seed_workers import SeedWorkers
from shaketable.harness.terminal import output
from shaketable.harness.terminal.simulations.seed_runs import (
    TARGET_DEFAULT,
    SeedBar,
    ShrinkBar,
    of_seed,
    print_heading,
    run_seed,
    simulator_of,
    violation_text,
)

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
    _print_row("replay", _command("replay", run, target))
    if not shrunk.is_finished:
        _print_row("go on", _command("shrink", run, target))
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


def _command(name: str, run: Path, target: str) -> str:
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

"""The commands `simulate`, `replay` and `shrink`: deterministic runs by seed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

from cyclopts import Parameter

from shaketable.harness.campaigns.durations import to_seconds
from shaketable.harness.contracts.errors import UsageError, unknown_name
from shaketable.harness.contracts.simulation import (
    VIRTUAL_S_DEFAULT,
    Hunt,
    RunSpec,
    Simulator,
    hunt,
)
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.runtime.seed_workers import JOBS_MAX, SeedWorkers
from shaketable.harness.terminal import completion, output
from shaketable.harness.terminal.output import show_rows
from shaketable.harness.terminal.simulations.seed_runs import (
    TARGET_DEFAULT,
    SeedBar,
    ShrinkSettings,
    print_end,
    print_heading,
    run_many,
    run_one,
    show_step,
    shrink_failing,
    shrink_file,
    shrinker_of,
    simulator_of,
)

SEEDS_DEFAULT: Final = 100
SEEDS_MAX: Final = 1_000_000
FIRST_SEED_DEFAULT: Final = 1
SEED_MAX: Final = 2**62
VIRTUAL_MIN_S: Final = 10.0
"""A shorter run has no time for faults and the recovery that must follow."""
VIRTUAL_MAX_S: Final = 3_600.0
TIME_MAX_MS: Final = 1e12
SHRINK_DEFAULT_S: Final = 60.0
SHRINK_MIN_S: Final = 1.0
SHRINK_MAX_S: Final = 86_400.0


HUNTS_DEFAULT: Final = 5


def _shown(metavar: str, completer: completion.Completer | None = None) -> Parameter:
    return Parameter(
        metavar=metavar,
        completer=completer,
        show_default=lambda value: f"{value}".removesuffix(".0"),
        converter=to_seconds if metavar == "S" else None,
    )


def _no_default(
    metavar: str, *names: str, completer: completion.Completer | None = None
) -> Parameter:
    return Parameter(name=names or None, metavar=metavar, show_default=False, completer=completer)


_FLAG: Final = Parameter(negative=(), show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """What is run, whatever its seed.

    Attributes:
        world: core is the pure code under an event heap, node the whole node; default: core.
        mutant: Planted bug to run with (`list mutants`).
        time_limit: How long a seed runs, in virtual seconds.
        target: System under test.
    """

    world: Annotated[str | None, _no_default("NAME")] = None
    mutant: Annotated[str | None, _no_default("NAME", completer=completion.planted_bug)] = None
    time_limit: Annotated[float, _shown("S")] = VIRTUAL_S_DEFAULT
    target: Annotated[str, _shown("NAME", completion.one_of("targets"))] = TARGET_DEFAULT

    def spec(self, simulator: Simulator, seed: int) -> RunSpec:
        """Return the run to simulate.

        Raises:
            UsageError: there is no such world or planted bug, or a number is out of range.
        """
        world = next(iter(simulator.worlds)) if self.world is None else self.world
        if world not in simulator.worlds:
            raise UsageError(unknown_name("world", world, simulator.worlds))
        if self.mutant is not None and self.mutant not in simulator.mutants:
            raise UsageError(
                unknown_name(f"mutant of {self.target}", self.mutant, simulator.mutants)
            )
        _check("--time-limit", self.time_limit, VIRTUAL_MIN_S, VIRTUAL_MAX_S)
        _check("seed", seed, 0, SEED_MAX)
        return RunSpec(seed=seed, world=world, mutant=self.mutant, virtual_s=self.time_limit)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShrunkWorldOptions(WorldOptions):
    """What is shrunk, whatever its seed.

    Attributes:
        world: core (the pure code under an event heap); runs of other worlds cannot be shrunk.
        mutant: Planted bug to run with (`list mutants`).
        time_limit: How long a seed runs, in virtual seconds.
        target: System under test.
    """


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions:
    """Which seeds are run, and what is shown of them.

    Attributes:
        seeds: Number of seeds.
        first_seed: The first seed.
        seed: Run this one alone, and show every event.
        jobs: Number of processes; default: one per processor.
        keep_going: Do not stop at the first violation.
        trace: Where --seed writes its events, instead of the terminal.
        table: Hunt every planted bug, or the one of --mutant, and print after how many seeds it is
            found.
        hunts: From how many different first seeds --table hunts each bug.
        json: File to which --table also writes its results, for `gate`.
    """

    seeds: Annotated[int, _shown("N")] = SEEDS_DEFAULT
    first_seed: Annotated[int, _shown("SEED")] = FIRST_SEED_DEFAULT
    seed: Annotated[int | None, _no_default("SEED")] = None
    jobs: Annotated[int | None, _no_default("N")] = None
    keep_going: Annotated[bool, _FLAG] = False
    trace: Annotated[Path | None, _no_default("FILE")] = None
    table: Annotated[bool, _FLAG] = False
    hunts: Annotated[int, _shown("N")] = HUNTS_DEFAULT
    json: Annotated[Path | None, _no_default("FILE")] = None

    def processes(self) -> int:
        """Return how many processes to use.

        Raises:
            UsageError: the number is out of range.
        """
        if self.jobs is None:
            return _processors()
        _check("--jobs", self.jobs, 1, JOBS_MAX)
        return self.jobs


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkOptions:
    """How a failing run is made small.

    Attributes:
        seconds: How long to look for a smaller run, in real seconds.
        out: Folder for the run and its story; default: one in store/shrunk, or that of FILE.
        first_seed: Without SEED: the first seed to try. [1]
    """

    seconds: Annotated[float, _shown("S")] = SHRINK_DEFAULT_S
    out: Annotated[Path | None, _no_default("FOLDER")] = None
    first_seed: Annotated[int | None, _no_default("SEED")] = None

    def settings(self) -> ShrinkSettings:
        """Return the settings of the search.

        Raises:
            UsageError: a number is out of range, or the folder is none.
        """
        _check("--seconds", self.seconds, SHRINK_MIN_S, SHRINK_MAX_S)
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise UsageError(f"--out {self.out}: it is there and no folder")
        return ShrinkSettings(self.seconds, self.out)


def simulate(*, options: SeedOptions | None = None, of_world: WorldOptions | None = None) -> int:
    """Run the system's own code on a simulated clock, network and disk, seed by seed.

    A seed decides everything: the group, its faults and operations, every delay. After each
    event the invariants are checked; the first violation ends the command; its seed gives the same
    run again, on any machine.

    For example:
    ./shaketable simulate --seeds 1000
    ./shaketable simulate --seed 42 --trace trace.txt
    ./shaketable simulate --mutant ack-before-quorum
    ./shaketable simulate --table

    Exit codes: 0 no invariant was broken, 1 one was, 254 bad usage, 255 the harness failed.

    Args:
        options: Which seeds.
        of_world: In which world.
    """
    given, where = options or SeedOptions(), of_world or WorldOptions()
    spec = where.spec(
        simulator_of(where.target), given.first_seed if given.seed is None else given.seed
    )
    _check("--seeds", given.seeds, 1, SEEDS_MAX)
    jobs = given.processes()
    if given.table:
        if given.seed is not None:
            raise UsageError("--table hunts from --first-seed on: give no --seed")
        _check("--hunts", given.hunts, 1, HUNTS_MAX)
        _require_folder(given.json)
        return hunt_all(where.target, spec, jobs, given.hunts, given.json)
    if given.json is not None:
        raise UsageError("--json is for what --table finds: give --table, too")
    if given.seed is not None:
        return run_one(where.target, spec, given.trace)
    if given.trace is not None:
        raise UsageError("--trace is for one seed: give --seed, too")
    return run_many(where.target, spec, given.seeds, jobs, given.keep_going)


def replay(
    what: Annotated[str, Parameter(name="SEED|FILE")],
    /,
    *,
    from_ms: Annotated[float, _no_default("MS", "--from")] = 0.0,
    to_ms: Annotated[float, _no_default("MS", "--to")] = TIME_MAX_MS,
    of_world: WorldOptions | None = None,
) -> int:
    """Replay a seed, or a recording of a real node, step by step with the nodes' states.

    A file is a schedule that `shrink` has written, or a recording of a node's inputs.

    For example:
    ./shaketable replay 42
    ./shaketable replay 42 --mutant ack-before-quorum --from 11000 --to 12000

    Exit codes: 0 no invariant was broken, 1 one was, 254 bad usage, 255 the harness failed.

    Args:
        what: A seed, or a file.
        from_ms: Show steps from this time on, in milliseconds of the run; default: all.
        to_ms: Show steps up to this time; default: to the end.
        of_world: In which world.
    """
    where = of_world or WorldOptions()
    simulator = simulator_of(where.target)
    if not from_ms <= to_ms:
        raise UsageError(f"--from {from_ms:g} is after --to {to_ms:g}")
    show = partial(show_step, {}, from_ms, to_ms)
    if what.isdecimal():
        return print_end(simulator.replay(where.spec(simulator, int(what)), show))
    path = Path(what)
    if not path.is_file():
        raise UsageError(f"{what}: neither a seed nor a file that is there")
    return print_end(simulator.replay_file(path, show))


def shrink(
    what: Annotated[str | None, Parameter(name="SEED|FILE", show_default=False)] = None,
    /,
    *,
    options: ShrinkOptions | None = None,
    of_world: ShrunkWorldOptions | None = None,
) -> int:
    """Minimise a failing run, and tell its story: what was promised, and how it was broken.

    Faults and client operations are removed as long as the same invariant breaks; often only a
    handful remain. The story is printed, and written as a page; the small run can be
    replayed. Ctrl-C ends the search early and keeps the smallest run found so far.

    With a planted bug and no seed, it first looks for a seed that fails. A FILE is a run that was
    shrunk before: the search continues from there.

    For example:
    ./shaketable shrink --mutant ack-before-quorum
    ./shaketable shrink 42 --mutant ack-before-quorum --seconds 300
    ./shaketable shrink store/shrunk/dledger-ack-before-quorum-42/shrunk.json

    Exit codes: 0 the seed breaks nothing, 1 it does, 254 bad usage, 255 the harness failed.

    Args:
        what: A seed, or a file.
        options: How.
        of_world: In which world.
    """
    given, where = options or ShrinkOptions(), of_world or ShrunkWorldOptions()
    settings, simulator = given.settings(), simulator_of(where.target)
    is_file = what is not None and not what.isdecimal()
    if what is not None and given.first_seed is not None:
        raise UsageError("--first-seed is for a hunt: give it without a seed and without a file")
    if what is None and where.mutant is None:
        raise UsageError("nothing to shrink: give a seed, a file of a shrunk run, or --mutant")
    if is_file and ShrunkWorldOptions(target=where.target) != where:
        raise UsageError(
            "a file holds all of its run: no --world, --mutant or --time-limit with it"
        )
    first = FIRST_SEED_DEFAULT if given.first_seed is None else given.first_seed
    spec = where.spec(simulator, int(what) if what is not None and not is_file else first)
    shrinker = shrinker_of(where.target, spec.world)
    if what is None:
        return shrink_failing(where.target, shrinker, spec, settings, _processors())
    if not is_file:
        return shrink_failing(where.target, shrinker, spec, settings)
    path = Path(what)
    if not path.is_file():
        raise UsageError(f"{what}: neither a seed nor a file that is there")
    return shrink_file(where.target, shrinker, path, settings)


def _processors() -> int:
    return min(JOBS_MAX, len(os.sched_getaffinity(0)))


def _check(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # also refuses NaN
        given, low, high = (_digits(number) for number in (value, least, most))
        raise UsageError(f"{what} {given}: expected {low} to {high}")


def _digits(number: float) -> str:
    """Return a whole number in full, as it was typed, and any other one briefly."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def _require_folder(path: Path | None) -> None:
    """Check before a long hunt that its file can be written."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UsageError(f"--json {path}: give the name of a file in a folder that is there")


# The table of planted bugs: after how many seeds each is found.

HUNT_SEEDS_MAX: Final = 2_000
"""A planted bug that is not found within this many seeds counts as missed."""
HUNTS_MAX: Final = 99
"""Most hunts for each planted bug, from different first seeds; the median is shown."""
FORMAT: Final = 1
HUNT_STRIDE: Final = 100_000
"""Distance between those first seeds: more than the seeds that a hunt can run."""


def hunt_all(
    target: str, first: RunSpec, jobs: int, hunts: int = HUNTS_DEFAULT, file: Path | None = None
) -> int:
    """Hunt each planted bug, or the one in `first`, `hunts` times; return the exit code.

    A bug's row is printed when its last hunt ends. The code is 0 if every hunt found its bug.
    `file` gets the results as JSON, for `gate`.

    Raises:
        HarnessError: a process died, or the file cannot be written.
    """
    simulator = simulator_of(target)
    mutants = sorted(simulator.mutants) if first.mutant is None else [first.mutant]
    specs = [
        RunSpec(
            seed=first.seed + HUNT_STRIDE * number,
            world=first.world,
            mutant=mutant,
            virtual_s=first.virtual_s,
        )
        for mutant in mutants
        for number in range(hunts)
    ]
    bugs = "1 planted bug" if len(mutants) == 1 else f"{len(mutants)} planted bugs"
    print_heading(target, first, bugs)
    output.out.print()
    width = max(len(mutant) for mutant in mutants)
    found: dict[str, list[Hunt]] = {}
    with (
        SeedBar(output.out, len(specs), None) as bar,
        SeedWorkers(partial(hunt_one, target), jobs) as workers,
    ):
        for number, ended in enumerate(workers.run(specs), 1):
            of_bug = found.setdefault(ended.mutant, [])
            of_bug.append(ended)
            if len(of_bug) == hunts:
                show_rows(output.out, [(ended.mutant, hunt_text(of_bug))], label_width=width)
            bar.done(number, 0)
    missed = [name for name, all_of in found.items() if any(h.violation is None for h in all_of)]
    output.out.print()
    text = f"{len(found) - len(missed)} of {bugs} found within "
    times = "once" if hunts == 1 else f"each of {hunts} times"
    output.out.print(f"{text}{HUNT_SEEDS_MAX:,} seeds, {times}")
    if file is not None:
        write_atomically(file, json.dumps(to_json(target, first.world, found), indent=1) + "\n")
    return ExitCode.INVALID if missed else ExitCode.VALID


def to_json(target: str, world: str, found: Mapping[str, Sequence[Hunt]]) -> dict[str, Any]:
    """Return the content of --json; `seeds` is how many each hunt needed, null if not found."""
    return {
        "format": FORMAT,
        "target": target,
        "world": world,
        "planted_bugs": {
            mutant: {
                "hunts": len(of_bug),
                "found": sum(one.violation is not None for one in of_bug),
                "seeds": [one.seeds if one.violation else None for one in of_bug],
                "invariants": sorted({one.violation.invariant for one in of_bug if one.violation}),
            }
            for mutant, of_bug in found.items()
        },
    }


def hunt_one(target: str, spec: RunSpec) -> Hunt:
    """Hunt one planted bug from one first seed on; called in a worker process."""
    return hunt(simulator_of(target), spec, HUNT_SEEDS_MAX)


def hunt_text(hunts: list[Hunt]) -> str:
    """Return after how many seeds a planted bug was found, and by which invariants."""
    found = [one for one in hunts if one.violation is not None]
    if not found:
        return f"not found in {HUNT_SEEDS_MAX:,} seeds, {len(hunts)} times"
    invariants = sorted({one.violation.invariant for one in found if one.violation})
    middle = median(one.seeds if one.violation else float("inf") for one in hunts)
    after = f"median {middle:g} seeds" if middle != float("inf") else "mostly not found"
    each = ", ".join(str(one.seeds) if one.violation else "-" for one in hunts)
    return f"{after} ({each}): {', '.join(invariants)}"

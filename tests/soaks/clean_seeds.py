"""Fresh seeds of the untouched system, in all simulated worlds: nobody innocent is accused.

Each seed that breaks an invariant is filed as soon as it is known, as a line of JSON with the
command that replays it, so that a soak that is cut off loses nothing. The numbers go on where the
last soak into the same folder ended.

    .venv/bin/python -m tests.soaks.clean_seeds --core 10000 --node 1000 --masters 1000

`--masters` is the number of seeds of each of the three modes of masters and slaves.

Exit codes: 0 no seed broke an invariant, 1 one did.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from shaketable.harness.contracts.simulation import RunSpec, SeedRun, Violation
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.runtime.seed_workers import SeedWorkers
from shaketable.harness.terminal.simulations.seed_runs import (
    replay_command,
    run_seed,
    violation_text,
)

TARGET: Final = "dledger"
MASTERS: Final = ("multi-master", "async-replication", "sync-double-write")
FRESH_FROM: Final = 1_000_000
"""Lower seeds are those that people and tests have looked at."""
NEXT: Final = "next.json"
FOUND: Final = "found.jsonl"
SAY_EVERY_S: Final = 30.0


class Soak:
    """A folder with what soaks have run so far, and what they found."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._next_file = folder / NEXT
        self.found_file = folder / FOUND

    def first_seed(self, place: str) -> int:
        """Return the first seed of a world or target that no soak has run yet."""
        return self._next().get(place, FRESH_FROM)

    def has_run(self, place: str, next_seed: int) -> None:
        """Note that all seeds of a world or target below `next_seed` have been run."""
        write_atomically(self._next_file, json.dumps({**self._next(), place: next_seed}))

    def file(self, run: SeedRun, spec: RunSpec, target: str) -> None:
        """Keep a seed that broke an invariant."""
        assert run.violation is not None
        line = {
            "seed": run.seed,
            "world": spec.world,
            "invariant": run.violation.invariant,
            "message": run.violation.message,
            "replay": replay_command(spec, target),
        }
        with self.found_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _next(self) -> dict[str, int]:
        try:
            return dict(json.loads(self._next_file.read_bytes()))
        except FileNotFoundError:
            return {}


def soak(world: str, seeds: int, jobs: int, kept: Soak, target: str = TARGET) -> int:
    """Run fresh seeds of one world of a target; return how many broke an invariant."""
    place = world if target == TARGET else target
    first = kept.first_seed(place)
    specs = (RunSpec(seed=seed, world=world) for seed in range(first, first + seeds))
    began_s = said_s = time.monotonic()
    accused, virtual_ms = 0, 0.0
    done: set[int] = set()
    next_seed = first
    say(f"{place}: seeds {first} to {first + seeds - 1}")
    for run in _runs(specs, jobs, target):
        done.add(run.seed)
        virtual_ms += run.virtual_ms
        while next_seed in done:
            done.remove(next_seed)
            next_seed += 1
        if run.violation is not None:
            accused += 1
            kept.file(run, RunSpec(seed=run.seed, world=world), target)
            say(f"{place}: seed {run.seed}: {violation_text(run.violation)}")
        if time.monotonic() - said_s >= SAY_EVERY_S:
            said_s = time.monotonic()
            kept.has_run(place, next_seed)
            say(f"{place}: {next_seed - first + len(done):,} of {seeds:,}, {accused} accused")
    kept.has_run(place, next_seed)
    took_s = time.monotonic() - began_s
    say(
        f"{place}: {accused} of {seeds:,} seeds accused; {took_s / 60:.1f} minutes, "
        f"{virtual_ms / 1e3 / took_s:.0f} virtual seconds a second with {jobs} jobs"
    )
    return accused


def _runs(specs: Iterator[RunSpec], jobs: int, target: str) -> Iterator[SeedRun]:
    with SeedWorkers(partial(run_to_the_end, target), jobs) as workers:
        yield from workers.run(specs)


def run_to_the_end(target: str, spec: RunSpec) -> SeedRun:
    """Run a seed; an error of the simulation itself is filed like a broken invariant."""
    try:
        return run_seed(target, spec)
    except Exception as error:
        found = Violation(invariant=type(error).__name__, at_ms=0.0, message=str(error))
        return SeedRun(
            seed=spec.seed, virtual_ms=0, events=0, operations=0, faults=0, digest="",
            violation=found,
        )  # fmt: skip


def say(line: str) -> None:
    """Print a line at once: a soak's output is followed while it runs."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run all worlds one after the other; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--core", type=int, default=10_000, metavar="N", help="core seeds")
    parser.add_argument("--node", type=int, default=1_000, metavar="N", help="whole-node seeds")
    parser.add_argument("--masters", type=int, default=0, metavar="N", help="seeds of each mode")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--folder", type=Path, default=Path("store/clean-seeds"))
    options = parser.parse_args()
    kept = Soak(options.folder)
    accused = soak("core", options.core, options.jobs, kept)
    accused += soak("node", options.node, options.jobs, kept)
    for target in MASTERS if options.masters else ():
        accused += soak("node", options.masters, options.jobs, kept, target)
    if accused:
        say(f"{accused} accused: {kept.found_file}")
    return 1 if accused else 0


if __name__ == "__main__":
    sys.exit(main())

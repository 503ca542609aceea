"""The table of planted bugs: after how many seeds the simulated world finds each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.runtime.seed_workers import SeedWorkers
from shaketable.harness.simulation import Ask, Hunt, hunt
from shaketable.harness.terminal import output
from shaketable.harness.terminal.grid import show_rows
from shaketable.harness.terminal.seed_runs import say_heading, simulator_of
from shaketable.harness.terminal.seeds import SeedBar
from shaketable.harness.verdict import ExitCode

HUNT_SEEDS_MAX: Final = 2_000
"""A planted bug that is not found within so many seeds counts as missed."""
HUNTS_DEFAULT: Final = 5
HUNTS_MAX: Final = 99
"""From so many first seeds on each planted bug is hunted; the median is what is shown."""
FORMAT: Final = 1
HUNT_STRIDE: Final = 100_000
"""How far apart those first seeds are: more than a hunt can run."""


def hunt_all(
    target: str, first: Ask, jobs: int, hunts: int = HUNTS_DEFAULT, file: Path | None = None
) -> int:
    """Hunt each planted bug, or the one that `first` names, `hunts` times; return the exit code.

    A bug's row is printed as soon as its last hunt has ended. The code is 0 if each was found
    each time. `file` gets what came of it, for `gate`.

    Raises:
        HarnessError: a process died, or the file cannot be written.
    """
    simulator = simulator_of(target)
    mutants = sorted(simulator.mutants) if first.mutant is None else [first.mutant]
    asks = [
        Ask(
            seed=first.seed + HUNT_STRIDE * number,
            world=first.world,
            mutant=mutant,
            virtual_s=first.virtual_s,
        )
        for mutant in mutants
        for number in range(hunts)
    ]
    bugs = "1 planted bug" if len(mutants) == 1 else f"{len(mutants)} planted bugs"
    say_heading(target, first, bugs)
    output.out.print()
    width = max(len(mutant) for mutant in mutants)
    found: dict[str, list[Hunt]] = {}
    with (
        SeedBar(output.out, len(asks), None) as bar,
        SeedWorkers(partial(hunt_one, target), jobs) as workers,
    ):
        for number, ended in enumerate(workers.run(asks), 1):
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
    """Return what --json writes: `seeds` that each hunt ran until it found its bug, else null."""
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


def hunt_one(target: str, ask: Ask) -> Hunt:
    """Hunt one planted bug from one first seed on, in a process of its own."""
    return hunt(simulator_of(target), ask, HUNT_SEEDS_MAX)


def hunt_text(hunts: list[Hunt]) -> str:
    """Say after how many seeds a planted bug was found, and by which invariants."""
    found = [one for one in hunts if one.violation is not None]
    if not found:
        return f"not found in {HUNT_SEEDS_MAX:,} seeds, {len(hunts)} times"
    invariants = sorted({one.violation.invariant for one in found if one.violation})
    middle = median(one.seeds if one.violation else float("inf") for one in hunts)
    after = f"median {middle:g} seeds" if middle != float("inf") else "mostly not found"
    each = ", ".join(str(one.seeds) if one.violation else "-" for one in hunts)
    return f"{after} ({each}): {', '.join(invariants)}"

"""The table of planted bugs: after how many seeds the simulated world finds each."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Final

from harness.runtime.seed_workers import SeedWorkers
from harness.simulation import Ask, Hunt, hunt
from harness.terminal import session
from harness.terminal.grid import show_rows
from harness.terminal.seed_runs import say_heading, simulator_of
from harness.terminal.seeds import SeedBar
from harness.verdict import ExitCode

HUNT_SEEDS_MAX: Final = 2_000
"""A planted bug that is not found within so many seeds counts as missed."""
HUNTS: Final = 5
"""From so many first seeds on each planted bug is hunted; the median is what is shown."""
HUNT_STRIDE: Final = 100_000
"""How far apart those first seeds are: more than a hunt can run."""


def hunt_all(target: str, first: Ask, jobs: int) -> int:
    """Hunt each planted bug from several first seeds on; return the exit code.

    It is 0 if each was found each time.

    Raises:
        HarnessError: a process died.
    """
    simulator = simulator_of(target)
    asks = [
        Ask(
            seed=first.seed + HUNT_STRIDE * number,
            world=first.world,
            mutant=mutant,
            virtual_s=first.virtual_s,
        )
        for mutant in sorted(simulator.mutants)
        for number in range(HUNTS)
    ]
    say_heading(target, first, f"{len(simulator.mutants)} planted bugs")
    found: dict[str, list[Hunt]] = {}
    with (
        SeedBar(session.out, len(asks), None) as bar,
        SeedWorkers(partial(hunt_one, target), jobs) as workers,
    ):
        for number, ended in enumerate(workers.run(asks), 1):
            found.setdefault(ended.mutant, []).append(ended)
            bar.done(number, 0)
    session.out.print()
    show_rows(session.out, [(name, hunt_text(hunts)) for name, hunts in found.items()])
    missed = [name for name, hunts in found.items() if any(h.violation is None for h in hunts)]
    session.out.print()
    text = f"{len(found) - len(missed)} of {len(found)} planted bugs found within "
    session.out.print(f"{text}{HUNT_SEEDS_MAX:,} seeds, each of {HUNTS} times")
    return ExitCode.INVALID if missed else ExitCode.VALID


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

"""Run one seed of the core world."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.sim.counts import Counts
from shaketable.system.sim.history import Operation
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.run_trace import Trace
from shaketable.system.sim.schedules.schedule import Options, Schedule, draw_schedule
from shaketable.system.sim.world import World


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The outcome of one seed. `digest` is the same whenever and wherever the run is repeated."""

    seed: int
    violation: Violation | None
    counts: Counts
    digest: str
    history: tuple[Operation, ...]


def run_seed(
    seed: int,
    options: Options | None = None,
    *,
    schedule: Schedule | None = None,
    mutant: Mutant | None = None,
    trace: Callable[[str], None] | None = None,
) -> SeedResult:
    """Run a seed's schedule, or the given one, to its end or the first violation.

    `mutant` plants a bug; `trace` is called with each line of the trace.
    """
    schedule = schedule or draw_schedule(seed, options)
    recorder = Trace(trace)
    with _gc_paused():
        world = World(schedule, mutant=mutant or HEALTHY, trace=recorder)
        violation = world.run()
    ends = (
        f"{name} {shadow.end_index} {shadow.end_crc} {shadow.commit_index}"
        for name, shadow in world.invariants.shadows.items()
    )
    digest = recorder.final_digest(ends, violation)
    counts, history = world.counts, tuple(world.clients.history)
    world.clear()
    return SeedResult(schedule.seed, violation, counts, digest, history)


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Disable garbage collection during a run: it makes millions of objects and hardly a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""Run one seed of the whole-node world."""

from __future__ import annotations

from collections.abc import Callable

from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.sim.run import SeedResult
from shaketable.system.sim.run_trace import Trace
from shaketable.system.sim.schedules.schedule import Options, Schedule, draw_schedule
from shaketable.system.sim.trio_world.world import TrioWorld

OPERATIONS_PER_S = 60
"""Fewer than in the core world: a whole node costs ten times as much per message."""


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
    if schedule is None:
        schedule = draw_schedule(seed, options or Options(operations_per_s=OPERATIONS_PER_S))
    recorder = Trace(trace)
    world = TrioWorld(schedule, mutant=mutant or HEALTHY, trace=recorder)
    violation = world.run()
    ends = (
        f"{name} {shadow.end_index} {shadow.end_crc} {shadow.commit_index}"
        for name, shadow in world.invariants.shadows.items()
    )
    digest = recorder.final_digest(ends, violation)
    history = tuple(world.clients.history)
    return SeedResult(schedule.seed, violation, world.counts, digest, history)

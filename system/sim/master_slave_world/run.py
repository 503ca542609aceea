"""Run one seed of masters and slaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.sim.counts import Counts
from shaketable.system.sim.history import Operation
from shaketable.system.sim.master_slave_world.setup import draw_setup
from shaketable.system.sim.master_slave_world.world import MasterSlaveWorld
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.run_trace import Trace


@dataclass(frozen=True, slots=True)
class MasterSlaveResult:
    """The outcome of one seed. `digest` is the same whenever and wherever the run is repeated."""

    seed: int
    violation: Violation | None
    ended_ms: float
    counts: Counts
    digest: str
    history: tuple[Operation, ...]


def run_seed(
    seed: int,
    run_ms: int,
    role: str,
    *,
    has_slaves: bool = True,
    mutant: Mutant | None = None,
    trace: Callable[[str], None] | None = None,
) -> MasterSlaveResult:
    """Run a seed with `run_ms` of faults to its end or the first violation.

    `role` is the master's; `mutant` plants a bug; `trace` is called with each line of the trace.
    """
    setup = draw_setup(seed, role, run_ms, has_slaves=has_slaves)
    recorder = Trace(trace)
    world = MasterSlaveWorld(setup, mutant=mutant or HEALTHY, trace=recorder)
    violation = world.run()
    ends = (
        f"{name} {shadow.start} {shadow.end} {shadow.durable}"
        for name, shadow in world.broker_invariants.shadows.items()
    )
    digest = recorder.final_digest(ends, violation)
    history = tuple(world.broker_clients.history)
    ended_ms = setup.run_ms if violation is None else violation.at_ms
    return MasterSlaveResult(seed, violation, ended_ms, world.counts, digest, history)

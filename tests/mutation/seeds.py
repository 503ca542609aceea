"""Runs given seeds of a simulated world until the first violation, as `simulate` does.

A program of its own, started in the copy of the tree that has the mutant: prints one line of
JSON for each seed as it ends. A crash of the world ends it with a traceback.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable

from shaketable.system.sim.schedules.schedule import Options
from tests.mutation import children

MODULES = {"core": "shaketable.system.sim.world", "node": "shaketable.system.sim.trio_world.world"}
MASTER_SLAVE = "master_slave"
"""Masters and slaves: seeds take turns in the three modes."""
MASTER_SLAVE_VIRTUAL_S = 10.0
"""At most, of faults: half a minute follows in which all settles."""

SEED_CPU_S = 6.0
"""Ten times what a seed of 20 virtual seconds takes: a mutant that needs more turns in cycles."""

MASTER_SLAVE_CPU_S = 20.0


def runner_of(world: str, virtual_s: float) -> Callable[[int], object]:
    """Return what runs a seed as `simulate --time-limit` does, and returns what it violated."""
    run_ms = int(virtual_s * 1e3)
    if world == MASTER_SLAVE:
        return _master_slave_runner(int(min(virtual_s, MASTER_SLAVE_VIRTUAL_S) * 1e3))
    module = importlib.import_module(MODULES[world])
    options = Options(run_ms=run_ms)
    if world == "node":
        options = Options(run_ms=run_ms, operations_per_s=module.OPERATIONS_PER_S)
    return lambda seed: module.run_seed(seed, options).violation


def _master_slave_runner(run_ms: int) -> Callable[[int], object]:
    module = importlib.import_module("shaketable.system.sim.master_slave_world.world")

    def run(seed: int) -> object:
        role = "SYNC_MASTER" if seed % 2 else "ASYNC_MASTER"
        return module.run_seed(seed, run_ms, role, has_slaves=seed % 4 > 0).violation

    return run


def main(world: str, virtual_s: float, seeds: list[int]) -> int:
    """Run the seeds; return 1 at the first violation."""
    run = runner_of(world, virtual_s)
    sys.stdout.write("started\n")
    for seed in seeds:
        children.limit_part(MASTER_SLAVE_CPU_S if world == MASTER_SLAVE else SEED_CPU_S)
        broken = run(seed)
        line = {"seed": seed, "violation": None if broken is None else str(broken)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        if broken is not None:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), [int(seed) for seed in sys.argv[3:]]))

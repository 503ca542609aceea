"""Runs given seeds of a simulated world until the first violation, as `simulate` does.

A program of its own, started in the copy of the tree that has the mutant: prints one line of
JSON for each seed as it ends. A crash of the world ends it with a traceback.
"""

from __future__ import annotations

import importlib
import json
import sys

from system.sim.schedule import Options
from tests.mutation import children

MODULES = {"core": "system.sim.run", "node": "system.sim.trio_world.run"}

SEED_CPU_S = 6.0
"""Ten times what a seed of 20 virtual seconds takes: a mutant that needs more turns in circles."""


def options_of(world: str, virtual_s: float) -> Options:
    """Return the options that `simulate --time-limit` hands to the world."""
    run_ms = int(virtual_s * 1e3)
    if world == "node":
        trio_world = importlib.import_module(MODULES[world])
        return Options(run_ms=run_ms, operations_per_s=trio_world.OPERATIONS_PER_S)
    return Options(run_ms=run_ms)


def main(world: str, virtual_s: float, seeds: list[int]) -> int:
    """Run the seeds; return 1 at the first violation."""
    run_seed = importlib.import_module(MODULES[world]).run_seed
    sys.stdout.write("started\n")
    for seed in seeds:
        children.limit_part(SEED_CPU_S)
        broken = run_seed(seed, options_of(world, virtual_s)).violation
        line = {"seed": seed, "violation": None if broken is None else str(broken)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        if broken is not None:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), [int(seed) for seed in sys.argv[3:]]))

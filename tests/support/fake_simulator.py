"""A target with a simulated world in which hardly anything happens. For tests of commands only.

Loaded by tests through an entry point, in the processes that run seeds, too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from fake_target import FakeTarget

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.simulation import RunSpec, SeedRun, Step, Violation

BAD_SEED = 7
"""With the mutant "late" every seventh seed breaks an invariant."""


class FakeSimulator:
    """Each seed draws a few lines; planted bugs break something, or the process."""

    worlds: Mapping[str, str] = {"core": "nothing much", "node": "nothing more"}
    occurrences: tuple[str, ...] = ("truncation",)
    mutants: Mapping[str, str] = {
        "late": "every seventh seed",
        "always": "every seed",
        "hidden": "never shows",
        "crash": "raises",
        "die": "ends the process",
    }

    def states(self, world: str) -> frozenset[str]:
        return frozenset({"leader/tick", "follower/tick", "candidate/tick"})

    def run(self, spec: RunSpec, write: Callable[[str], None] | None = None) -> SeedRun:
        if spec.mutant == "crash":
            raise ValueError("the simulator is broken")
        if spec.mutant == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        rng = Random(f"{spec.seed} {spec.world}")
        lines = [f"{number:12.3f} n0   draws {rng.random()}" for number in range(5)]
        for line in lines:
            if write is not None:
                write(line)
        is_bad = spec.mutant == "always" or (spec.mutant == "late" and spec.seed % BAD_SEED == 0)
        return SeedRun(
            seed=spec.seed,
            virtual_ms=spec.virtual_s * 1e3,
            events=5,
            operations=int(200 * spec.virtual_s),
            faults=5 + spec.seed % 2,
            digest=f"{rng.getrandbits(32):08x}",
            occurred={"truncation": spec.seed % 2},
            states=frozenset({"leader/tick", "follower/tick"}),
            violation=Violation("one-leader", 4.0, "n0 and n1 both lead term 3")
            if is_bad
            else None,
        )

    def replay(self, spec: RunSpec, show: Callable[[Step], None]) -> Violation | None:
        for number in range(5):
            nodes = {"n0": f"term {number}", "n1": "term 0"}
            show(Step(float(number), f"n0 step {number}", nodes))
        return self.run(spec).violation

    def replay_file(self, path: Path, show: Callable[[Step], None]) -> Violation | None:
        if path.read_text() != "recording\n":
            raise UsageError(f"{path} is no recording")
        show(Step(1.0, "n0 recorded", {}))
        return None


class SimulatedTarget(FakeTarget):
    """A fake target that can be simulated."""

    name = "fakesim"
    simulator = FakeSimulator()


TARGET = SimulatedTarget()

"""The simulated world of masters and slaves, for the commands that run its seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.simulation import RunSpec, SeedRun, Step, Violation
from shaketable.system.sim.master_slave_world.world import run_seed
from shaketable.system.sim.planted_bugs import master_slave_bugs, planted_bug

NODE = "node"
SLAVE_BEHIND_EXPIRED = "slave behind expired"
STRANGER = "stranger"


class MasterSlaveSimulator:
    """Implements `contracts.simulation.Simulator` over `system.sim.master_slave_world`.

    Args:
        target: whose planted bugs these are.
        role: a master's brokerRole.
        has_slaves: whether masters have slaves.
    """

    worlds: Mapping[str, str] = {
        NODE: "a master and its slaves, whole nodes on trio, with small files that soon expire"
    }
    occurrences: tuple[str, ...] = ("wipe", SLAVE_BEHIND_EXPIRED, STRANGER)

    def __init__(self, target: str, role: str, *, has_slaves: bool) -> None:
        self._target = target
        self._role = role
        self._has_slaves = has_slaves

    @cached_property
    def mutants(self) -> Mapping[str, str]:
        """The planted bugs."""
        return master_slave_bugs(self._target)

    def states(self, world: str) -> frozenset[str]:
        """Return none: a master stays a master, and a slave a slave."""
        del world
        return frozenset()

    def run(self, spec: RunSpec, write: Callable[[str], None] | None = None) -> SeedRun:
        """Run one seed; after `virtual_s` follows the time in which the world settles."""
        done = run_seed(
            spec.seed,
            int(spec.virtual_s * 1e3),
            self._role,
            has_slaves=self._has_slaves,
            mutant=planted_bug(spec.mutant),
            trace=write,
        )
        counts, broken = done.counts, done.violation
        violation = None
        if broken is not None:
            where = f" (at {broken.node})" if broken.node else ""
            violation = Violation(broken.invariant, broken.at_ms, broken.finding + where)
        return SeedRun(
            seed=spec.seed,
            virtual_ms=done.ended_ms,
            events=counts.events,
            operations=counts.operations,
            faults=sum(counts.faults.values()),
            digest=done.digest,
            occurred={
                "wipe": counts.faults.get("wipe", 0),
                SLAVE_BEHIND_EXPIRED: counts.faults.get("slave_behind_expired", 0),
                STRANGER: counts.faults.get("stranger", 0),
            },
            violation=violation,
        )

    def replay(self, spec: RunSpec, show: Callable[[Step], None]) -> Violation | None:
        """Run one seed, and show each line of its trace as a step."""

        def show_line(line: str) -> None:
            at, _, what = line.strip().partition(" ")
            show(Step(float(at), what.strip()))

        return self.run(spec, show_line).violation

    def replay_file(self, path: Path, show: Callable[[Step], None]) -> Violation | None:
        """Refuse: only members of a group record their inputs."""
        del show
        raise UsageError(f"{path}: runs of the target {self._target} are replayed by their seeds")

"""The interface between `simulate`, `replay`, `shrink` and a target's simulated worlds.

A target that can be simulated has a `Simulator` (`Simulated` below). A `RunSpec` holds everything
that a run depends on: equal ones give equal runs in every process.

Source: TigerBeetle's VOPR (one seed, one universe); FoundationDB's simulation; SIMULATION.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from shaketable.harness.contracts.abilities import Broken
from shaketable.harness.contracts.capabilities import Link, LinkShape
from shaketable.harness.contracts.plugins import (
    Address,
    Json,
    Launch,
    NodeLayout,
    Target,
    TargetClient,
)

VIRTUAL_S_DEFAULT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What to simulate: everything that a run depends on.

    Attributes:
        seed: all random choices derive from it.
        world: one of the simulator's worlds.
        mutant: the planted bug to run with; None: the unmodified system.
        virtual_s: length of the run in virtual time, in seconds.
    """

    seed: int
    world: str
    mutant: str | None = None
    virtual_s: float = VIRTUAL_S_DEFAULT


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant: its name, when it broke, and what was seen."""

    invariant: str
    at_ms: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """The result of one seed.

    Attributes:
        seed: the seed.
        virtual_ms: length of the run in virtual time: less than requested after a violation.
        events: number of events (messages, timers, disk operations, ...).
        operations: client operations invoked.
        faults: faults injected.
        digest: of the trace: equal for equal runs.
        occurred: how often each rare occurrence happened ("truncation": 2); the names are those of
            `Simulator.occurrences`.
        states: protocol states reached, of those that `Simulator.states` lists.
        violation: the first invariant broken, if any.
    """

    seed: int
    virtual_ms: float
    events: int
    operations: int
    faults: int
    digest: str
    occurred: Mapping[str, int] = field(default_factory=dict)
    states: frozenset[str] = frozenset()
    violation: Violation | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a run: when, what happened, and the state of the nodes after it.

    `nodes` maps each node to a line about its state, ordered by id; unchanged nodes may be left
    out.
    """

    at_ms: float
    what: str
    nodes: Mapping[str, str] = field(default_factory=dict)


class Simulator(Protocol):
    """The simulated worlds of one target.

    Attributes:
        worlds: name -> description of each world.
        occurrences: rare occurrences, reported as the share of seeds in which they happened.
    """

    worlds: Mapping[str, str]
    occurrences: tuple[str, ...]

    @property
    def mutants(self) -> Mapping[str, str]:
        """The planted bugs: name -> what it breaks."""
        ...

    def states(self, world: str) -> frozenset[str]:
        """Return the protocol states that runs of this world can reach."""
        ...

    def run(self, spec: RunSpec, write: Callable[[str], None] | None = None) -> SeedRun:
        """Run one seed and watch every invariant.

        `write` gets the trace, one event a line, without line ends: the same lines for the same
        `spec`.
        """
        ...

    def replay(self, spec: RunSpec, show: Callable[[Step], None]) -> Violation | None:
        """Run one seed step by step; `show` is called after each event."""
        ...

    def replay_file(self, path: Path, show: Callable[[Step], None]) -> Violation | None:
        """Replay a file: a schedule, or a recording of a real node's inputs.

        Raises:
            UsageError: it holds neither, or is damaged; one line states where.
        """
        ...


@runtime_checkable
class Simulated(Protocol):
    """A target that has simulated worlds."""

    name: str

    @property
    def simulator(self) -> Simulator:
        """Its worlds. What they need is imported only on access."""
        ...


@dataclass(slots=True)
class Tally:
    """Totals over many seeds. `add` in any order gives the same totals."""

    seeds: int = 0
    virtual_ms: float = 0.0
    events: int = 0
    operations: int = 0
    faults: int = 0
    faults_min: int | None = None
    occurred_in: dict[str, int] = field(default_factory=dict)  # occurrence -> seeds in which it was
    states: set[str] = field(default_factory=set)
    violations: list[SeedRun] = field(default_factory=list)

    def add(self, run: SeedRun) -> None:
        """Add the result of one seed."""
        self.seeds += 1
        self.virtual_ms += run.virtual_ms
        self.events += run.events
        self.operations += run.operations
        self.faults += run.faults
        self.faults_min = (
            run.faults if self.faults_min is None else min(self.faults_min, run.faults)
        )
        for name, times in run.occurred.items():
            self.occurred_in[name] = self.occurred_in.get(name, 0) + (times > 0)
        self.states |= run.states
        if run.violation is not None:
            self.violations.append(run)

    @property
    def operations_per_virtual_s(self) -> float:
        """Client operations per second of virtual time."""
        return self.operations / (self.virtual_ms / 1e3) if self.virtual_ms else 0.0

    def share(self, occurrence: str) -> float:
        """Return the share of seeds in which it happened."""
        return self.occurred_in.get(occurrence, 0) / self.seeds if self.seeds else 0.0


@dataclass(frozen=True, slots=True)
class Hunt:
    """The result of a search for a planted bug, from `first_seed` on.

    `seeds` were run. If `violation` is set, the last of them found it.
    """

    mutant: str
    first_seed: int
    seeds: int
    violation: Violation | None


def hunt(simulator: Simulator, spec: RunSpec, seeds_max: int) -> Hunt:
    """Run up to `seeds_max` seeds from `spec.seed` on, until one breaks an invariant."""
    assert spec.mutant is not None, "nothing is hunted in the system as it is"
    for number in range(seeds_max):
        one = RunSpec(
            seed=spec.seed + number, world=spec.world, mutant=spec.mutant, virtual_s=spec.virtual_s
        )
        found = simulator.run(one).violation
        if found is not None:
            return Hunt(spec.mutant, spec.seed, number + 1, found)
    return Hunt(spec.mutant, spec.seed, seeds_max, None)


# ---- shrinking failing runs --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run: its faults and its client operations."""

    faults: int
    operations: int

    def __str__(self) -> str:
        faults = "1 fault" if self.faults == 1 else f"{self.faults:,} faults"
        operations = "1 operation" if self.operations == 1 else f"{self.operations:,} operations"
        return f"{faults} and {operations}"


Watch = Callable[[int, Size], bool]
"""Called after each run with the number of runs and the smallest failing size; True: go on."""


class ShrunkRun(Protocol):
    """A failing run that was shrunk, and its story.

    Attributes:
        mutant: the planted bug that it needs, if any.
        violation: the invariant that it breaks: the same as at the start.
        before: its size at the start.
        after: its size now.
        runs: how many runs were tried.
        seconds: real time spent, in seconds.
        is_finished: False if a limit or `Watch` ended it, so that it might shrink further.
    """

    mutant: str | None
    violation: Violation
    before: Size
    after: Size
    runs: int
    seconds: float
    is_finished: bool

    def describe(self, width: int) -> str:
        """Return its story for a terminal of `width` characters."""
        ...

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write it for `replay_file`, and its story as a page, into a folder; return both paths.

        Raises:
            OSError: they cannot be written.
        """
        ...


@runtime_checkable
class Shrinker(Protocol):
    """A simulator that can also shrink failing runs.

    `shrinkable` are the worlds whose runs it can shrink.
    """

    shrinkable: frozenset[str]

    def shrink(self, spec: RunSpec, seconds_max: float, watch: Watch) -> ShrunkRun | None:
        """Shrink the run of a seed; None if it breaks nothing."""
        ...

    def shrink_file(self, path: Path, seconds_max: float, watch: Watch) -> ShrunkRun | None:
        """Continue with a saved run; None if it breaks nothing (any more).

        Raises:
            UsageError: the file holds no such run; one line states why.
        """
        ...


# ---- campaigns in a simulated world ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """A node's process that exited by itself: its last output and its exit status."""

    node: str
    incarnation: int
    last_output: str
    status: int = 1


class SimulatedGroup(Protocol):
    """A group of whole nodes in a simulated world, for campaigns.

    The campaign's own tasks run inside the world, in virtual time; `run` is the only trio.run. All
    other methods may be called from there alone.

    Attributes:
        clients_host: the name of the clients' host as an end of links.
        addresses: where clients reach the nodes, and the name servers beside them.
        layouts: where the nodes' files are.
        machines: the nodes' clocks and disks.
        ended: processes that exited, in order.
        broken: invariants seen broken (each once), in order.

    kill, pause, resume and start apply to name servers too.
    """

    clients_host: str

    addresses: Mapping[str, Address]
    layouts: Mapping[str, NodeLayout]
    machines: SteersSimulated
    ended: list[Ended]
    broken: list[Broken]

    @property
    def target(self) -> Target:
        """The target of the nodes: how to query and reconfigure them in this world."""
        ...

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` in the world, on a host beside the nodes. Raises what `main` raises."""
        ...

    def now_ns(self) -> int:
        """Return the virtual time since the start, in ns."""
        ...

    def run_as_client(self) -> None:
        """Put the running task, and those that it starts, on the clients' host."""
        ...

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> TargetClient:
        """Return a client of the group, with a random generator of the world."""
        ...

    def operation_ended(self, what: str, took_s: float, may_s: float) -> None:
        """Report how long a client's operation took, and how long it may take, for an invariant."""
        ...

    def operation_raised(self, what: str, error: Exception) -> None:
        """Report that a client's operation raised an error that no client should raise."""
        ...

    def clients_closed(self) -> None:
        """Report that all clients were closed: none of their resources should be left."""
        ...

    def incarnation(self, node: str) -> int:
        """Return how often the node was started."""
        ...

    def is_running(self, node: str) -> bool:
        """Return whether the node has a process, paused or not."""
        ...

    def is_paused(self, node: str) -> bool:
        """Return whether its process is paused."""
        ...

    def start(self, node: str) -> None:
        """Start a node that is not running."""
        ...

    def configure(self, node: str, launch: Launch) -> None:
        """Set how the node is started from now on."""
        ...

    def lose_power(self, node: str) -> None:
        """Kill the node's process and drop what it had not synced, whatever kind of disk it has."""
        ...

    def lose_disk(self, node: str) -> int:
        """Empty the disk of a node that is not running; return how many files were lost."""
        ...

    def kill(self, node: str) -> None:
        """Kill the node's process; with a volatile disk, what was not synced is lost."""
        ...

    def stop(self, node: str) -> None:
        """Ask the node to stop gracefully, which takes time."""
        ...

    def pause(self, node: str) -> None:
        """Pause the node's process."""
        ...

    def resume(self, node: str) -> None:
        """Resume the node's process."""
        ...

    def cut(self, links: Sequence[tuple[str, str]]) -> Callable[[str], None]:
        """Hold what flows from a to b, for each (a, b); return a function that heals just this cut.

        Call it once, with "deliver" or "reset". Cuts are counted.
        """
        ...

    def held(self, links: Sequence[tuple[str, str]]) -> tuple[int, int]:
        """Return how many bytes and how many connections these links hold back now."""
        ...

    def break_connections(self, node: str) -> int:
        """Reset all connections between clients and a node; return how many there were."""
        ...

    def problems(self) -> tuple[str, ...]:
        """Return one line for each name server that exited by itself."""
        ...

    def save(self, name: str, directory: Path) -> None:
        """Copy a stopped node's files, or a name server's, into a folder of this machine.

        Raises:
            OSError: they cannot be written.
        """
        ...


@runtime_checkable
class SimulatesGroups(Protocol):
    """A target whose whole groups can be simulated, for campaigns."""

    def simulated_group(
        self, nodes: Sequence[str], options: Json, name_servers: Sequence[str]
    ) -> SimulatedGroup:
        """Return a group whose nodes are not started yet.

        Args:
            nodes: their ids.
            options: as in `NodeLayout.options`.
            name_servers: the names of the name servers beside the nodes.
        """
        ...


# ---- clocks, disks and links of simulated nodes ------------------------------------------
#
# Optional protocols of a simulated group. `harness.runtime.simulated.steered` builds the
# capabilities of `contracts.capabilities` on them.


@dataclass(frozen=True, slots=True)
class SimulatedReading:
    """A node's clocks at one instant: world time, and by how much the node's clocks are ahead."""

    now_ms: float
    ahead_ms: float
    wall_error_ms: float


@dataclass(slots=True, eq=False)
class SimulatedDiskFault:
    """A disk fault: calls of one kind fail ("EIO", "ENOSPC") or, with "power", end the machine.

    Fields as in `contracts.capabilities.DiskFaultSpec`; `calls` and `errors` count while in force.
    """

    op: str
    error: str = ""
    nth: int = 0
    times: int = 0
    calls: int = 0
    errors: int = 0


@runtime_checkable
class SteersSimulated(Protocol):
    """A `SimulatedGroup` whose nodes' clocks and disks can be changed."""

    def set_rate(self, node: str, rate: float) -> None:
        """Set the rate of a node's clocks from now on (0: frozen)."""
        ...

    def advance(self, node: str, ahead_ms: float) -> None:
        """Advance a node's monotonic clock by `ahead_ms`."""
        ...

    def set_wall_error(self, node: str, error_ms: float) -> None:
        """Set by how much a node's wall clock is ahead."""
        ...

    def reading(self, node: str) -> SimulatedReading:
        """Read a node's clocks."""
        ...

    def set_disk_faults(self, node: str, faults: Sequence[SimulatedDiskFault]) -> None:
        """Replace the disk faults in force on a node."""
        ...

    def set_lateness(self, node: str, late_ms: float) -> None:
        """Delay each disk operation of a node by `late_ms`."""
        ...

    def stall(self, node: str, until_ms: float) -> None:
        """Let no disk operation of a node complete before `until_ms` (world time)."""
        ...

    def effects(self, node: str) -> Mapping[str, int]:
        """Return how many calls a node's disk got: "read", "write", "sync", "name", "work"."""
        ...

    def lost_bytes(self) -> int:
        """Return how many unsynced bytes crashes discarded so far, on all nodes."""
        ...


class SimulatedShape(Protocol):
    """One shape in force."""

    def end(self) -> None:
        """Remove the shape. Called once."""
        ...

    def did(self) -> Json:
        """Return its effects so far; see `ShapesLinks.shaped`."""
        ...


@runtime_checkable
class ShapesSimulatedLinks(Protocol):
    """A simulated group whose links can be shaped: `ShapesLinks` of world sim."""

    def shape(self, links: Sequence[Link], shape: LinkShape) -> SimulatedShape:
        """Shape these links from now on."""
        ...

"""The seam between the commands `simulate`, `replay`, `shrink` and a target's simulated worlds.

A target that can be simulated offers a `Simulator` (`Simulated` below). All that decides a
run is in an `Ask`: the same one gives the same run in every process.

Source: TigerBeetle's VOPR (one seed, one universe); FoundationDB's simulation; SIMULATION.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from shaketable.harness.contracts.broken_rules import Broken
from shaketable.harness.contracts.plugins import (
    Address,
    Json,
    Launch,
    NodeLayout,
    Target,
    TargetClient,
)
from shaketable.harness.contracts.simulated_nodes import SteersSimulated

VIRTUAL_S_DEFAULT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What to simulate: everything that a run depends on.

    Attributes:
        seed: what everything is drawn from.
        world: one of the simulator's worlds.
        mutant: planted bug to run with; None: the system as it is.
        virtual_s: how long the run is, in its own time.
    """

    seed: int
    world: str
    mutant: str | None = None
    virtual_s: float = VIRTUAL_S_DEFAULT


@dataclass(frozen=True, slots=True)
class Violation:
    """What the system must never do, and did: the invariant's name, when, and what was seen."""

    invariant: str
    at_ms: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """What became of one seed.

    Attributes:
        seed: which.
        virtual_ms: how long it ran, in its own time: less than asked for after a violation.
        events: things that happened (messages, timers, disk operations, ...).
        operations: client operations invoked.
        faults: faults injected.
        saw: how often what happened that not every seed does ("truncation": 2); the names
            are those of `Simulator.occurrences`.
        states: protocol states reached, of those that `Simulator.states` lists.
        digest: of the trace: equal for equal runs.
        violation: the first invariant broken, if one was.
    """

    seed: int
    virtual_ms: float
    events: int
    operations: int
    faults: int
    digest: str
    saw: Mapping[str, int] = field(default_factory=dict)
    states: frozenset[str] = frozenset()
    violation: Violation | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a run: when, what happened, and the state of the nodes after it.

    `nodes` maps each node to a line about its state, in the order of their ids; nodes of
    which there is nothing new may be left out.
    """

    at_ms: float
    what: str
    nodes: Mapping[str, str] = field(default_factory=dict)


class Simulator(Protocol):
    """The simulated worlds of one target.

    `worlds` and `mutants` map names to what they are. `occurrences` names what is counted by
    the share of seeds in which it happened; `states` lists for each world the protocol
    states that its runs can reach.
    """

    worlds: Mapping[str, str]
    occurrences: tuple[str, ...]

    @property
    def mutants(self) -> Mapping[str, str]:
        """The planted bugs: name -> what it breaks."""
        ...

    def states(self, world: str) -> frozenset[str]:
        """The protocol states that runs of this world can reach."""
        ...

    def run(self, ask: Ask, write: Callable[[str], None] | None = None) -> SeedRun:
        """Run one seed, with every invariant watched.

        `write` is given the trace, every event in a line without its end: the same lines for
        the same `ask`.
        """
        ...

    def replay(self, ask: Ask, show: Callable[[Step], None]) -> Violation | None:
        """Run one seed step by step; `show` is called after each event."""
        ...

    def replay_file(self, path: Path, show: Callable[[Step], None]) -> Violation | None:
        """Replay what a file holds: a schedule, or a recording of a real node's inputs.

        Raises:
            UsageError: it holds nothing of that kind, or is damaged: one line says where.
        """
        ...


@runtime_checkable
class Simulated(Protocol):
    """A target that has simulated worlds."""

    name: str

    @property
    def simulator(self) -> Simulator:
        """Its worlds. Imports what they need only now."""
        ...


@dataclass(slots=True)
class Tally:
    """What many seeds add up to. `add` in any order gives the same sums."""

    seeds: int = 0
    virtual_ms: float = 0.0
    events: int = 0
    operations: int = 0
    faults: int = 0
    faults_min: int | None = None
    saw_in: dict[str, int] = field(default_factory=dict)  # occurrence -> seeds in which it was
    states: set[str] = field(default_factory=set)
    violations: list[SeedRun] = field(default_factory=list)

    def add(self, run: SeedRun) -> None:
        """Take in one seed."""
        self.seeds += 1
        self.virtual_ms += run.virtual_ms
        self.events += run.events
        self.operations += run.operations
        self.faults += run.faults
        self.faults_min = (
            run.faults if self.faults_min is None else min(self.faults_min, run.faults)
        )
        for name, times in run.saw.items():
            self.saw_in[name] = self.saw_in.get(name, 0) + (times > 0)
        self.states |= run.states
        if run.violation is not None:
            self.violations.append(run)

    @property
    def operations_per_virtual_s(self) -> float:
        """Client operations a second of the runs' own time."""
        return self.operations / (self.virtual_ms / 1e3) if self.virtual_ms else 0.0

    def share(self, occurrence: str) -> float:
        """The share of the seeds in which it happened."""
        return self.saw_in.get(occurrence, 0) / self.seeds if self.seeds else 0.0


@dataclass(frozen=True, slots=True)
class Hunt:
    """How a planted bug was looked for from one first seed on.

    `seeds` were run, the last of them the one that found it, if `violation` is there.
    """

    mutant: str
    first_seed: int
    seeds: int
    violation: Violation | None


def hunt(simulator: Simulator, ask: Ask, seeds_max: int) -> Hunt:
    """Run seeds from `ask.seed` on until one breaks an invariant, `seeds_max` at most."""
    assert ask.mutant is not None, "nothing is hunted in the system as it is"
    for number in range(seeds_max):
        one = Ask(
            seed=ask.seed + number, world=ask.world, mutant=ask.mutant, virtual_s=ask.virtual_s
        )
        found = simulator.run(one).violation
        if found is not None:
            return Hunt(ask.mutant, ask.seed, number + 1, found)
    return Hunt(ask.mutant, ask.seed, seeds_max, None)


# ---- failing runs made small -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Size:
    """What there is to tell of a run: its faults and its client operations."""

    faults: int
    operations: int

    def __str__(self) -> str:
        faults = "1 fault" if self.faults == 1 else f"{self.faults:,} faults"
        operations = "1 operation" if self.operations == 1 else f"{self.operations:,} operations"
        return f"{faults} and {operations}"


Watch = Callable[[int, Size], bool]
"""Told after each run how many were done and what the smallest failing one has; True: go on."""


class ShrunkRun(Protocol):
    """A failing run made small, and its story.

    Attributes:
        mutant: the planted bug that it needs, if one.
        violation: the invariant that it breaks: the same one as at the start.
        before: what the run had at the start.
        after: what it has now.
        runs: how many were tried.
        seconds: of real time it took.
        is_finished: False if a limit or `Watch` ended it: it may get smaller still.
    """

    mutant: str | None
    violation: Violation
    before: Size
    after: Size
    runs: int
    seconds: float
    is_finished: bool

    def tell(self, width: int) -> str:
        """Return its story for a terminal that is so many characters wide."""
        ...

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write it for `replay_file` and its story as a page into a folder; return both paths.

        Raises:
            OSError: they cannot be written.
        """
        ...


@runtime_checkable
class Shrinker(Protocol):
    """A simulator that can also make failing runs small.

    `shrinkable` are those of its worlds whose runs it can.
    """

    shrinkable: frozenset[str]

    def shrink(self, ask: Ask, seconds_max: float, watch: Watch) -> ShrunkRun | None:
        """Make the run of a seed small; None if it breaks nothing."""
        ...

    def shrink_file(self, path: Path, seconds_max: float, watch: Watch) -> ShrunkRun | None:
        """Go on with a run that was saved; None if it breaks nothing (any more).

        Raises:
            UsageError: the file holds no such run: one line says why.
        """
        ...


# ---- campaigns in a simulated world ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """A node's process that ended by itself, what it said last, and with which exit status."""

    node: str
    incarnation: int
    said: str
    status: int = 1


class SimulatedGroup(Protocol):
    """A group of whole nodes in a simulated world, for a campaign to shake.

    The campaign's own tasks run inside the world, on its time; `run` is its only trio.run.
    All else may be called from there alone.

    Attributes:
        addresses: where clients reach the nodes, and the name servers beside them.
        layouts, machines: where the nodes live, their clocks and disks.
        ended, broken: processes that ended, and invariants seen broken (each once), in order.
        clients_host: what the clients' host is called as an end of links.

    What is said of a node's life holds of a name server, too: kill, pause, resume, start.
    """

    clients_host: str

    addresses: Mapping[str, Address]
    layouts: Mapping[str, NodeLayout]
    machines: SteersSimulated
    ended: list[Ended]
    broken: list[Broken]

    @property
    def target(self) -> Target:
        """Whose nodes they are: what asks them, and changes them, in this world."""
        ...

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` in the world, on a host beside the nodes. Raises what it raises."""
        ...

    def now_ns(self) -> int:
        """The world's time since its start."""
        ...

    def be_client(self) -> None:
        """Let the running task, and those that it starts, be of the clients' host."""
        ...

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> TargetClient:
        """Return a client of the group; its dice are the world's."""
        ...

    def operation_ended(self, what: str, took_s: float, may_s: float) -> None:
        """An operation of a client took so long, and might take so long."""
        ...

    def operation_raised(self, what: str, error: Exception) -> None:
        """An operation of a client ended with an error that no client should raise."""
        ...

    def clients_left(self) -> None:
        """All clients were closed: nothing of theirs should be left."""
        ...

    def incarnation(self, node: str) -> int:
        """How often the node was started."""
        ...

    def is_running(self, node: str) -> bool:
        """True while the node has a process, paused or not."""
        ...

    def is_paused(self, node: str) -> bool:
        """True while its process stands still."""
        ...

    def start(self, node: str) -> None:
        """Start a node that does not run."""
        ...

    def configure(self, node: str, launch: Launch) -> None:
        """Let the node be started in this way from now on."""
        ...

    def lose_power(self, node: str) -> None:
        """End the node's process at once; whatever its disk is, what was not synced may be lost."""
        ...

    def lose_disk(self, node: str) -> int:
        """Let a node that does not run have an empty disk; return how many files went."""
        ...

    def kill(self, node: str) -> None:
        """End the node's process at once; with a volatile disk what was not synced is lost."""
        ...

    def stop(self, node: str) -> None:
        """Ask the node to end in good order; it takes its time."""
        ...

    def pause(self, node: str) -> None:
        """Let the node's process stand still."""
        ...

    def resume(self, node: str) -> None:
        """Let it go on."""
        ...

    def cut(self, links: Sequence[tuple[str, str]]) -> Callable[[str], None]:
        """Hold what flows from a to b, for each (a, b); return what mends exactly that.

        It is called once, with "deliver" or "reset". Cuts are counted.
        """
        ...

    def held(self, links: Sequence[tuple[str, str]]) -> tuple[int, int]:
        """The bytes, and the connections, that these links hold back now."""
        ...

    def problems(self) -> tuple[str, ...]:
        """One line for each name server that ended by itself."""
        ...

    def save(self, name: str, directory: Path) -> None:
        """Copy a stopped node's files, or a name server's, into a folder of this machine.

        Raises:
            OSError: they cannot be written.
        """
        ...


@runtime_checkable
class SimulatesGroups(Protocol):
    """A target of which whole groups can be simulated, for campaigns to shake."""

    def simulated_group(
        self, nodes: Sequence[str], options: Json, name_servers: Sequence[str]
    ) -> SimulatedGroup:
        """Return a group whose nodes are not started.

        Args:
            nodes: their ids.
            options: as in `NodeLayout.options`.
            name_servers: the names of those that run beside the nodes.
        """
        ...

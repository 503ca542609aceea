"""The simulated worlds of the system's own targets, for the commands that run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.simulation import RunSpec, SeedRun, Size, Step, Violation, Watch
from shaketable.system.sim import recording
from shaketable.system.sim import world as core_world
from shaketable.system.sim.master_slave_world import world as master_slave_world
from shaketable.system.sim.planted_bugs import (
    HEALTHY,
    master_slave_bugs,
    planted_bug,
    simulated_bugs,
)
from shaketable.system.sim.rules.violation import Violation as Broken
from shaketable.system.sim.run_trace import Trace
from shaketable.system.sim.schedules.schedule import Options, Schedule, draw_schedule
from shaketable.system.sim.trio_world import world as trio_world
from shaketable.system.sim.trio_world.host import Host
from shaketable.system.sim.trio_world.world import TrioWorld
from shaketable.system.sim.world import World

if TYPE_CHECKING:
    from shaketable.system.sim.shrinking import Progress, Shrunk
    from shaketable.system.sim.stories.story import Story


CORE = "core"
NODE = "node"
SAME_OUTPUTS = "same-outputs"
"""The invariant of a replayed recording: the same inputs give the node's recorded outputs."""
ROLES = ("follower", "candidate", "leader")
INPUTS = (
    "entered",
    "tick",
    "VoteRequest",
    "VoteResponse",
    "PushRequest",
    "PushResponse",
    "SnapshotRequest",
    "LeadershipTransfer",
)
"""What can happen to a member: it enters the role, a timer fires, a message arrives."""


class DLedgerSimulator:
    """Implements `contracts.simulation.Simulator` over `system.sim`."""

    worlds: Mapping[str, str] = {
        CORE: "the pure core, broker and store of each member, under one event heap",
        NODE: "the whole node and client on trio, on simulated sockets",
    }
    occurrences: tuple[str, ...] = (
        "truncation",
        "snapshot install",
        "membership change",
        "transfer",
    )
    shrinkable: frozenset[str] = frozenset({CORE})

    @cached_property
    def mutants(self) -> Mapping[str, str]:
        """The planted bugs."""
        return simulated_bugs()

    def states(self, world: str) -> frozenset[str]:
        """Return every input in every role."""
        return frozenset(f"{role}/{happened}" for role, happened in product(ROLES, INPUTS))

    def run(self, spec: RunSpec, write: Callable[[str], None] | None = None) -> SeedRun:
        """Run one seed."""
        run_seed = trio_world.run_seed if spec.world == NODE else core_world.run_seed
        done = run_seed(spec.seed, _options(spec), mutant=planted_bug(spec.mutant), trace=write)
        counts, broken = done.counts, done.violation
        return SeedRun(
            seed=spec.seed,
            virtual_ms=spec.virtual_s * 1e3 if broken is None else broken.at_ms,
            events=counts.events,
            operations=counts.operations,
            faults=sum(counts.faults.values()),
            digest=done.digest,
            occurred={
                "truncation": counts.truncations,
                "snapshot install": counts.snapshot_installs,
                "membership change": counts.membership_changes,
                "transfer": counts.transfers,
            },
            states=frozenset(f"{role}/{happened}" for role, happened in counts.states),
            violation=_violation(broken),
        )

    def replay(self, spec: RunSpec, show: Callable[[Step], None]) -> Violation | None:
        """Run one seed step by step."""
        return _replay(draw_schedule(spec.seed, _options(spec)), spec.mutant, show, spec.world)

    def replay_file(self, path: Path, show: Callable[[Step], None]) -> Violation | None:
        """Replay a run that was shrunk, or the recording of a real node."""
        try:
            with path.open("rb") as file:
                is_json = file.read(1) == b"{"
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        if not is_json:
            return _replay_recording(path, show)
        shrunk = _load_shrunk(path)
        return _replay(shrunk.schedule, shrunk.mutant or None, show)

    def shrink(self, spec: RunSpec, seconds_max: float, watch: Watch) -> DLedgerShrunkRun | None:
        """Shrink the run of a seed."""
        assert spec.world in self.shrinkable, spec.world
        return _shrink(draw_schedule(spec.seed, _options(spec)), spec.mutant, seconds_max, watch)

    def shrink_file(self, path: Path, seconds_max: float, watch: Watch) -> DLedgerShrunkRun | None:
        """Continue with a saved run."""
        shrunk = _load_shrunk(path)
        return _shrink(shrunk.schedule, shrunk.mutant or None, seconds_max, watch)


class DLedgerShrunkRun:
    """Implements `contracts.simulation.ShrunkRun` over `system.sim.shrinking`."""

    def __init__(self, shrunk: Shrunk, before: Size) -> None:
        broken = _violation(shrunk.violation)
        assert broken is not None
        self.mutant = shrunk.mutant or None
        self.violation = broken
        self.before = before
        self.after = _size(shrunk.schedule)
        self.runs = shrunk.runs
        self.seconds = shrunk.seconds
        self.is_finished = shrunk.is_finished
        self._shrunk = shrunk
        self._story: Story | None = None

    def describe(self, width: int) -> str:
        """Return its story for a terminal."""
        from shaketable.system.sim.stories import story  # noqa: PLC0415 - see `_shrink`

        self._story = story.tell(self._shrunk.schedule, planted_bug(self.mutant), width=width)
        return self._story.text

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write the run and its page."""
        from shaketable.system.sim.stories import story  # noqa: PLC0415 - see `_shrink`

        text = self._story or story.tell(self._shrunk.schedule, planted_bug(self.mutant))
        return story.save_story(self._shrunk, text, folder)


def _shrink(
    schedule: Schedule, mutant: str | None, seconds_max: float, watch: Watch
) -> DLedgerShrunkRun | None:
    # Imported late: hypothesis takes a second.
    from shaketable.system.sim import shrinking  # noqa: PLC0415

    def progress(now: Progress) -> None:
        if not watch(now.runs, Size(now.faults, now.operations)):
            raise shrinking.StopSearch

    try:
        shrunk = shrinking.shrink(
            schedule,
            shrinking.runs_of(planted_bug(mutant)),
            mutant=mutant or "",
            limits=shrinking.Limits(seconds_max=seconds_max),
            progress=progress,
        )
    except shrinking.NothingToShrink:
        return None
    return DLedgerShrunkRun(shrunk, _size(schedule))


def _size(schedule: Schedule) -> Size:
    return Size(len(schedule.faults), sum(call.count for call in schedule.calls))


def _load_shrunk(path: Path) -> Shrunk:
    from shaketable.system.sim import shrinking  # noqa: PLC0415 - see `_shrink`

    try:
        shrunk = shrinking.load(path)
    except shrinking.BadShrunkFile as error:
        raise UsageError(" ".join(str(error).split())) from error
    if shrunk.mutant and shrunk.mutant not in simulated_bugs():
        raise UsageError(f"{path} needs the planted bug {shrunk.mutant!r}, which is not there")
    return shrunk


def _replay_recording(path: Path, show: Callable[[Step], None]) -> Violation | None:
    """Repeat what a node did; stop at the first step whose outputs differ, and report it."""
    at_ms = 0.0
    try:
        for step in recording.replay(path):
            at_ms = at_ms if step.at_ms is None else step.at_ms
            show(Step(at_ms, f"step {step.number}: {step.text}"))
            if step.difference:
                return Violation(SAME_OUTPUTS, at_ms, f"step {step.number}: {step.difference}")
    except recording.BadRecording as error:  # type: ignore[attr-defined]  # `replay` raises it
        raise UsageError(" ".join(str(error).split())) from error
    return None


def _options(spec: RunSpec) -> Options:
    run_ms = int(spec.virtual_s * 1e3)
    if spec.world == NODE:
        return Options(run_ms=run_ms, operations_per_s=trio_world.OPERATIONS_PER_S)
    return Options(run_ms=run_ms)


def _violation(broken: Broken | None) -> Violation | None:
    if broken is None:
        return None
    where = f" (at {broken.node})" if broken.node else ""
    return Violation(broken.invariant, broken.at_ms, broken.finding + where)


def _replay(
    schedule: Schedule, mutant: str | None, show: Callable[[Step], None], kind: str = CORE
) -> Violation | None:
    """Run a schedule; a step is shown when the next one starts, with the state it led to.

    Some trace lines are written before their action, some after. A change at the next line's node,
    if that is another node, is left to the next step.
    """
    pending: list[str] = []

    def next_line(line: str) -> None:
        if pending:
            before, coming = pending.pop(), _node(line)
            nodes = [node for node in world.members if node == _node(before) or node != coming]
            show(_step(before, {node: _state(world, node) for node in nodes}))
        pending.append(line)

    trace = Trace(next_line)
    bug = planted_bug(mutant) or HEALTHY
    world: World | TrioWorld
    if kind == NODE:
        world = TrioWorld(schedule, mutant=bug, trace=trace)
    else:
        world = World(schedule, mutant=bug, trace=trace)
    broken = world.run()
    if pending:
        show(_step(pending.pop(), {name: _state(world, name) for name in world.members}))
    return _violation(broken)


def _node(line: str) -> str:
    """Return the node of a trace line: "  932.967 n3   <- client 2 requests 115..149"."""
    return line.split(maxsplit=2)[1]


def _step(line: str, nodes: Mapping[str, str]) -> Step:
    at, _, what = line.strip().partition(" ")
    return Step(float(at), what.strip(), nodes)


def _state(world: World | TrioWorld, name: str) -> str:
    """Return a line on a member's role and its log."""
    member = world.members[name]
    if not member.is_up:
        return "gone" if member.is_removed else "down"
    if isinstance(member, Host) and member.node is None:
        return "recovers"
    core = member.core
    text = (
        f"{core.role.value} of term {core.term}, log to {core.log.end_index}, "
        f"synced to {member.log.end.index}, committed {core.ledger.commit_index}"
    )
    return f"{text}, paused" if member.is_paused else text


# ---- masters and slaves ------------------------------------------------------------------


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
        done = master_slave_world.run_seed(
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

"""The simulated world of a campaign: the primitives of faults for whole nodes in virtual time.

The same interface as `harness.runtime.world`, with the same phases, nemesis and files, implemented
by a target's `SimulatedGroup`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import trio

from shaketable.harness.contracts.abilities import (
    ENDED_UNHARMED,
    Broken,
    ChangesMembers,
    TransfersLeadership,
)
from shaketable.harness.contracts.capabilities import Damage, Link, LinkShape, Resources
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import UNTOUCHED, Json, Launch, NodeLayout, NodeStatus
from shaketable.harness.contracts.simulation import (
    ShapesSimulatedLinks,
    SimulatedGroup,
    SimulatedShape,
)
from shaketable.harness.plugin_calls import PlugInError, as_plugin_error
from shaketable.harness.runtime.group_status import (
    STATUS_INTERVAL_S,
    STATUS_TIMEOUT_S,
    GroupStatus,
    add_member,
    remove_member,
    transfer,
    wait_until,
)
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.liveness import name_server_ended
from shaketable.harness.runtime.observer import Observer
from shaketable.harness.runtime.processes.disks import STOP_GRACE_S, Disks, Leaving
from shaketable.harness.runtime.processes.nodes import Exit
from shaketable.harness.runtime.processes.steered import SteeredCapabilities
from shaketable.harness.runtime.simulated.steered import SimSteered
from shaketable.harness.runtime.stored_logs import Stored, count_log

NO_DAMAGE = "campaigns do not edit the files of simulated nodes"


class SimulatedWorld(SteeredCapabilities):
    """Implements `contracts.plugins.World`, and what the phases need, with a simulated group.

    Args:
        nodes: their ids.
        group: the simulated nodes, not started.
        status_log: receives changes of role and term.
        observer: is notified of events.
        causes: the meaning of exit statuses; see `contracts.abilities.ExplainsEnds`.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        group: SimulatedGroup,
        status_log: Lines,
        observer: Observer,
        causes: Mapping[int, str] | None = None,
    ) -> None:
        self.nodes = tuple(nodes)
        self.exits: list[Exit] = []
        self.excused = 0
        """Processes that faults ended."""
        self.group_status = GroupStatus(
            self.nodes, self, self._ask, status_log, observer, group.now_ns
        )
        self._group = group
        self._causes = causes or {}
        self._observer = observer
        self._held: set[str] = set()  # paused nodes, without those stopped for a slice
        self._slices = Slices(group, self.is_paused)
        self._cuts: dict[str, tuple[Sequence[tuple[str, str]], Callable[[str], None]]] = {}
        self._cut_count = 0
        self._broken_connections = 0
        self._stopped: dict[str, Json] = {}  # by healed cuts
        self._shapes: dict[str, SimulatedShape] = {}
        self._unshaped: set[str] = set()
        self._disks = Disks(group.target, SimulatedMachines(group))
        self._leaving = Leaving()
        self._clocks = self._disk_faults = self._steered = SimSteered(group.machines, self, nodes)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch and poll the nodes until cancelled."""
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(self.group_status.poll, node)
            nursery.start_soon(self._watch)
            nursery.start_soon(self._slices.run)
            nursery.start_soon(self._steered.run)
            task_status.started()

    # ---- primitives of faults ----------------------------------------------------------

    @property
    def name_servers(self) -> Sequence[str]:
        """Return the name servers; see `contracts.capabilities.LinksNameServers`."""
        return [name for name in self._group.addresses if name not in self._group.layouts]

    @property
    def name_server_peers(self) -> Sequence[str]:
        """Return nodes and clients; see `contracts.capabilities.FaultsNameServers`."""
        return (*self.nodes, self._group.clients_host)

    @property
    def client_hosts(self) -> Sequence[str]:
        """Return the clients' host; see `contracts.capabilities.LinksClients`."""
        return (self._group.clients_host,)

    async def break_connections(self, nodes: Sequence[str]) -> None:
        """Break all connections of clients to these nodes; see `LinksClients`."""
        self._broken_connections += sum(map(self._group.break_connections, nodes))

    def broken_connections(self) -> int:
        """Return how many connections of clients were broken so far."""
        return self._broken_connections

    async def leader(self, order: Sequence[str] = ()) -> str | None:
        """Return the node that claims to lead the highest term, if any; see `World.leader`."""
        return self.group_status.leader(order)

    async def kill(self, node: str) -> Json:
        """Kill the node's process; see `World.kill`."""
        return self._end(node, self._group.kill)

    async def cut_power(self, node: str) -> Json:
        """Cut the power of the node's machine; see `Processes.cut_power`."""
        return self._end(node, self._group.lose_power)

    def _end(self, node: str, end: Callable[[str], None]) -> Json:
        if not self._group.is_running(node):
            return {"incarnation": UNTOUCHED}
        end(node)
        if node in self.nodes:
            self._steered.ends(node)
            self.group_status.learn(node, None)
        return {"incarnation": self._group.incarnation(node)}

    async def restart(self, node: str, incarnation: int) -> None:
        """Start the node again if `incarnation` is still its last and dead (idempotent)."""
        if node in self._disks.lost:
            return  # `replace` starts it, as a new member
        if self._group.incarnation(node) == incarnation and not self._group.is_running(node):
            self._group.start(node)

    async def pause(self, node: str) -> Json:
        """Pause the node's process; see `World.pause`."""
        if not self._group.is_running(node) or self.is_paused(node):
            return {"incarnation": UNTOUCHED}
        self._held.add(node)
        self._group.pause(node)
        return {"incarnation": self._group.incarnation(node)}

    async def resume(self, node: str, incarnation: int) -> None:
        """Resume that incarnation if it still exists (idempotent)."""
        if self.is_alive(node, incarnation):
            self._held.discard(node)
            self._group.resume(node)

    def is_paused(self, node: str) -> bool:
        """True while the node's process is paused."""
        return node in self._held and self._group.is_paused(node)

    def is_alive(self, node: str, incarnation: int) -> bool:
        """True if that incarnation of the node still runs (or is paused)."""
        return self._group.incarnation(node) == incarnation and self._group.is_running(node)

    async def cut(self, links: Sequence[tuple[str, str]]) -> str:
        """Hold all that flows from a to b, for each (a, b); return a cut id."""
        self._cut_count += 1
        name = f"cut-{self._cut_count}"
        self._cuts[name] = (links, self._group.cut(links))
        return name

    async def heal(self, cut: str, how: str) -> None:
        """Heal this cut (idempotent)."""
        if cut in self._cuts:
            self._stopped[cut] = self.held(cut)
            self._cuts.pop(cut)[1](how)

    async def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; see `contracts.capabilities.ShapesLinks`.

        Raises:
            HarnessError: the target's simulation cannot.
        """
        if not isinstance(self._group, ShapesSimulatedLinks):
            raise HarnessError("the simulated group has no links that could be shaped")
        name = f"shape-{len(self._shapes)}"
        self._shapes[name] = self._group.shape(links, shape)
        return name

    async def unshape(self, shape: str) -> None:
        """Remove this shape (idempotent)."""
        if shape in self._shapes and shape not in self._unshaped:
            self._unshaped.add(shape)
            self._shapes[shape].end()

    def shaped(self, shape: str) -> Json:
        """Return what the shape did so far."""
        return self._shapes[shape].did() if shape in self._shapes else {}

    def held(self, cut: str) -> Json:
        """Return what the cut holds, or held before: {"bytes": n, "connections": n}."""
        if cut not in self._cuts:
            return self._stopped.get(cut, {"bytes": 0, "connections": 0})
        size, connections = self._group.held(self._cuts[cut][0])
        return {"bytes": size, "connections": connections}

    def why_not_wiped(self, node: str) -> str | None:
        """Return why the node's disk must not be lost now; see `World.why_not_wiped`."""
        return self._leaving.why_not_wiped() or self._disks.why_not_wiped(node)

    async def wipe(self, node: str) -> Json:
        """Kill the node's process, and empty its disk; see `World.wipe`."""
        why = self.why_not_wiped(node)  # checked before, but the node was cut off for a while since
        if why is not None:
            return {"incarnation": UNTOUCHED, "why": why, "files": 0, "bytes": 0, "messages": 0}
        self._disks.lost.add(node)
        killed = await self.kill(node)
        return {**killed, **await self._disks.lose(node)}

    async def replace(self, node: str, incarnation: int) -> None:
        """Start a wiped node with an empty disk; see `World.replace`."""
        if self._group.incarnation(node) == incarnation:
            await self._disks.renew(node)
        await self._disks.readmit(node)

    async def transfer(self, to: str) -> Json:
        """Ask the leader to transfer leadership to `to`; see `World.transfer`."""
        target, layouts = self._group.target, self._group.layouts
        assert isinstance(target, TransfersLeadership), "the fault was not available"

        async def ask(leader: str, successor: str, timeout_s: float) -> None:
            await target.transfer_leadership(layouts[leader], successor, timeout_s)

        return await transfer(self.group_status, ask, to)

    # ---- operators and resources ------------------------------------------------------------

    async def stop(self, node: str) -> Json:
        """Stop the node gracefully; see `StopsNodes.stop`."""
        if not self._group.is_running(node):
            return {"incarnation": UNTOUCHED}
        await self.resume(node, self._group.incarnation(node))
        self._group.stop(node)
        if not await wait_until(lambda: not self._group.is_running(node), STOP_GRACE_S):
            self._group.kill(node)
        self._steered.ends(node)  # calls of its last work count, too
        self.group_status.learn(node, None)
        return {"incarnation": self._group.incarnation(node)}

    async def until_ready(self, timeout_s: float) -> bool:
        """Wait until all running nodes agree on a leader; see `StopsNodes.until_ready`."""
        return await self.group_status.until_ready(timeout_s)

    async def remove_member(self, node: str) -> Json:
        """Remove the node from its group; see `MovesMembers.remove_member`."""
        if without := self._disks.without_disk:  # a quorum of those that are left may need it
            why = f"{', '.join(sorted(without))} is not back yet"
            return {"took_ms": None, "members": [], "error": why}
        with self._leaving.asked(node):
            return await remove_member(self._operator(), self._group.layouts, node)

    async def add_member(self, node: str) -> Json:
        """Add the node to its group again; see `MovesMembers.add_member`."""
        answer = await add_member(self._operator(), self._group.layouts, node)
        self._leaving.is_back(node)
        return answer

    def _operator(self) -> ChangesMembers:
        target = self._group.target
        assert isinstance(target, ChangesMembers), "the fault was not available"
        return target

    async def limit_resources(self, node: str, resources: Resources) -> str:
        """Limit the node's CPU time; see `LimitsResources.limit_resources`."""
        return self._slices.limit_resources(node, resources)

    async def lift_limits(self, limits: str) -> None:
        """Lift exactly this limit (idempotent); see `LimitsResources.lift_limits`."""
        self._slices.lift_limits(limits)

    def limit_effects(self, limits: str) -> Json:
        """Return what the limit did so far; see `LimitsResources.limit_effects`."""
        return self._slices.limit_effects(limits)

    # ---- the files of dead nodes (contracts.capabilities.InjectsDiskFaults) ---------------------

    async def damage(self, node: str, damage: Damage) -> Json:
        """Unsupported: a campaign learns before it starts that simulated files are not edited."""
        raise HarnessError(NO_DAMAGE)

    async def copy_store(self, node: str) -> str:
        """Unsupported; see `damage`."""
        raise HarnessError(NO_DAMAGE)

    async def start_damaged(self, node: str, incarnation: int) -> Json:
        """Unsupported; see `damage`."""
        raise HarnessError(NO_DAMAGE)

    async def revive(self, node: str, incarnation: int) -> None:
        """Unsupported; see `damage`."""
        raise HarnessError(NO_DAMAGE)

    # ---- for the phases ----------------------------------------------------------------

    def start_all(self) -> tuple[str, ...]:
        """Start every node that does not run; return which."""
        # A node without its disk is not a member of its group: only `replace` may start it.
        down = tuple(
            node
            for node in self.nodes
            if not self._group.is_running(node) and node not in self._disks.awaited
        )
        for node in down:
            self._group.start(node)
        return down

    def restore(self) -> tuple[str, ...]:
        """Heal, resume and start whatever a fault left behind; return what that was."""
        found = [f"{cut} was not healed" for cut in self._cuts]
        for _, heal in self._cuts.values():
            heal("deliver")
        self._cuts.clear()
        for name in sorted(self._shapes.keys() - self._unshaped):
            self._shapes[name].end()
            self._unshaped.add(name)
            found.append(f"{name} was still in force")
        found += self._slices.give_up() + self._steered.give_up()
        for node in (*self.nodes, *self.name_servers):
            if self.is_paused(node):
                self._held.discard(node)
                self._group.resume(node)
                found.append(f"{self._called(node)} was still paused")
        for name in self.name_servers:
            if not self._group.is_running(name):
                self._group.start(name)
                found.append(f"{self._called(name)} was down: started again")
        found += [f"node {node} was down: started again" for node in self.start_all()]
        return tuple(found)

    async def restore_disks(self, patience_s: float) -> tuple[str, ...]:
        """Try for that long to complete nodes that wait for a disk; return the others.

        Other faults may have prevented it until now. Call it when none is in force any more.
        """
        for node in sorted(self._disks.awaited):
            with trio.move_on_after(patience_s):
                while node in self._disks.awaited:
                    await self._give_disk_back(node)
        return tuple(f"node {node} never got its disk back" for node in sorted(self.awaited()))

    async def _give_disk_back(self, node: str) -> None:
        try:
            with as_plugin_error():
                if not self._group.is_running(node):
                    await self._disks.renew(node)
                await self._disks.readmit(node)
        except PlugInError:
            await trio.sleep(STATUS_INTERVAL_S)

    def _called(self, name: str) -> str:
        return f"node {name}" if name in self.nodes else f"name server {name}"

    async def stop_all(self) -> None:
        """Stop all nodes gracefully, then at once. Status is not updated from now on."""
        self.group_status.is_ending = True
        for node in self.nodes:
            if self._group.is_running(node):
                self._group.stop(node)
        await wait_until(lambda: not any(map(self._group.is_running, self.nodes)), STOP_GRACE_S)
        for node in self.nodes:
            if self._group.is_running(node):
                self._group.kill(node)

    def explain(self, ended: Exit) -> str:
        """Describe in one line how a node ended by itself."""
        return f"node {ended}"

    def remarks(self) -> tuple[str, ...]:
        """Return the name servers that ended; other problems are broken invariants here."""
        return self._group.problems()

    def broken(self) -> tuple[Broken, ...]:
        """Return the violated invariants, and name servers that ended: no fault ends one."""
        ended = (name_server_ended(line, self._group.now_ns()) for line in self._group.problems())
        return (*self._group.broken, *ended)

    def awaited(self) -> frozenset[str]:
        """Return the nodes that lost their disk and have not caught up yet."""
        return frozenset(self._disks.awaited)

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        return self._group.is_running(node)

    def incarnation(self, node: str) -> int:
        """Return how often the node was started."""
        return self._group.incarnation(node)

    def last_line(self, node: str) -> str:
        """Return "": the output of simulated nodes is in traces."""
        return ""

    async def _ask(self, node: str) -> NodeStatus | None:
        return await self._group.target.status(self._group.layouts[node], STATUS_TIMEOUT_S)

    async def _watch(self) -> None:
        """Report processes that ended by themselves, and violations that the world found."""
        seen = 0
        while True:
            while len(self.exits) + self.excused < len(self._group.ended):
                self._report_end(len(self.exits) + self.excused)
            for broken in self._group.broken[seen:]:
                self._observer.note(str(broken))
            seen = len(self._group.broken)
            await trio.sleep(STATUS_INTERVAL_S)

    def _report_end(self, number: int) -> None:
        ended, now_ns = self._group.ended[number], self._group.now_ns()
        if self._steered.is_excused(ended.node, ended.incarnation, ended.last_output):
            self.excused += 1
            return
        has_disk_fault = self._steered.has_disk_fault(ended.node, ended.incarnation)
        cause = self._causes.get(ended.status, "" if has_disk_fault else ENDED_UNHARMED)
        one = Exit(
            ended.node, ended.incarnation, ended.status, False, ended.last_output, now_ns, cause
        )
        self.exits.append(one)
        if not self._group.is_running(ended.node):
            self.group_status.learn(ended.node, None)
        self._observer.note(self.explain(one))


# The disks of simulated nodes, for `harness.runtime.processes.disks`: they are in memory.


class SimulatedMachines:
    """Implements `harness.runtime.processes.disks.Machines` with a simulated group."""

    def __init__(self, group: SimulatedGroup) -> None:
        self._group = group

    @property
    def layouts(self) -> Mapping[str, NodeLayout]:
        """Return where each node lives."""
        return self._group.layouts

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        return self._group.is_running(node)

    def is_paused(self, node: str) -> bool:
        """True while its process is paused."""
        return self._group.is_paused(node)

    async def lose(self, node: str, store: Path) -> Json:
        """Empty a dead node's disk; see `Machines.lose`. No virtual time passes."""
        await trio.lowlevel.checkpoint()
        try:
            with tempfile.TemporaryDirectory() as folder:
                self._group.save(node, Path(folder))
                read_log = self._group.target.read_log
                stored = Stored(*count_log(read_log, Path(folder), node))
        except OSError as error:
            raise HarnessError(f"the log of {node} cannot be read: {error}") from error
        files = self._group.lose_disk(node)
        return {"files": files, "bytes": stored.bytes_, "messages": stored.messages}

    async def empty(self, node: str, store: Path) -> None:
        """Empty a dead node's disk (idempotent)."""
        await trio.lowlevel.checkpoint()
        self._group.lose_disk(node)

    async def launch(self, node: str, launch: Launch) -> None:
        """Start a node with this launch; see `Machines.launch`."""
        group = self._group
        if group.is_running(node):
            group.stop(node)
            if not await wait_until(lambda: not group.is_running(node), STOP_GRACE_S):
                group.kill(node)
        group.configure(node, launch)
        group.start(node)


# Limits of CPU time for simulated nodes: each runs for its share of each slice.
#
# Source: `harness.runtime.processes.limited_processes`, which does the same for processes.


@dataclass(slots=True)
class _Taken:
    node: str
    incarnation: int
    resources: Resources
    began: float
    stops: int = 0
    stopped_s: float = 0.0
    wall_s: float | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Slices:
    """The CPU limits of the nodes of a simulated group.

    Args:
        group: the nodes.
        is_held: returns whether a pause holds a node, which a slice must not end.
    """

    def __init__(self, group: SimulatedGroup, is_held: Callable[[str], bool]) -> None:
        self._group = group
        self._is_held = is_held
        self._taken: dict[str, _Taken] = {}
        self._numbers = count()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Provide the nursery for slices while the world runs."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def limit_resources(self, node: str, resources: Resources) -> str:
        """Let a node run for its share of the time; return "" if it does not run."""
        assert self._nursery is not None, "the world does not run"
        if not self._group.is_running(node):
            return ""
        incarnation = self._group.incarnation(node)
        taken = _Taken(node, incarnation, resources, trio.current_time())
        name = f"taken-{next(self._numbers)}"
        self._taken[name] = taken
        self._nursery.start_soon(self._slice, taken)
        return name

    def lift_limits(self, name: str) -> None:
        """Let the node run all the time again (idempotent)."""
        taken = self._taken.get(name)
        if taken is not None and taken.wall_s is None:
            taken.wall_s = trio.current_time() - taken.began
            taken.scope.cancel()

    def give_up(self) -> list[str]:
        """Lift all limits; return what these were."""
        left = [name for name, taken in self._taken.items() if taken.wall_s is None]
        for name in left:
            self.lift_limits(name)
        return [f"resources of {self._taken[name].node} were not given back" for name in left]

    def limit_effects(self, name: str) -> Json:
        """Return what the limit did so far; see `LimitsResources.limit_effects`."""
        taken = self._taken.get(name)
        if taken is None:
            return {"node": None, "ended": None}
        wall_s = trio.current_time() - taken.began if taken.wall_s is None else taken.wall_s
        return {
            "node": taken.node,
            "ended": None,
            "stops": taken.stops,
            "stopped_ms": taken.stopped_s * 1e3,
            "wall_ms": wall_s * 1e3,
            "cpu_ms": None,
        }

    async def _slice(self, taken: _Taken) -> None:
        slice_s, share = taken.resources.slice_ms / 1e3, taken.resources.cpu_share
        with taken.scope:
            while self._is_it(taken):
                await self._nap(taken, slice_s * (1 - share))
                await trio.sleep(slice_s * share)

    async def _nap(self, taken: _Taken, seconds: float) -> None:
        group, node = self._group, taken.node
        if group.is_paused(node):  # by a pause, or by another slice
            await trio.sleep(seconds)
            return
        began = trio.current_time()
        group.pause(node)
        try:
            await trio.sleep(seconds)
            if self._is_it(taken) and group.is_paused(node):
                taken.stops += 1
                taken.stopped_s += trio.current_time() - began
        finally:
            if self._is_it(taken) and group.is_paused(node) and not self._is_held(node):
                group.resume(node)

    def _is_it(self, taken: _Taken) -> bool:
        is_same = self._group.incarnation(taken.node) == taken.incarnation
        return is_same and self._group.is_running(taken.node)

"""The world of processes: nodes on loopback, connected by user-space proxies.

It implements the primitives of faults (DESIGN.md decision 10), watches the nodes' processes, and
polls the nodes' status, so it knows the leader and the report can show it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic_ns

import trio

from shaketable.harness.contracts.abilities import (
    Broken,
    ChangesMembers,
    ExplainsEnds,
    TransfersLeadership,
)
from shaketable.harness.contracts.capabilities import Damage, Link, LinkShape, Resources
from shaketable.harness.contracts.errors import HarnessError, IndefiniteError
from shaketable.harness.contracts.plugins import UNTOUCHED, Json, NodeLayout, NodeStatus, Target
from shaketable.harness.network.links import Network
from shaketable.harness.runtime import group_status
from shaketable.harness.runtime.clients.workers import ClientsOfWorkers
from shaketable.harness.runtime.group_status import GroupStatus, status_timeout_s
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import Observer
from shaketable.harness.runtime.processes import ports
from shaketable.harness.runtime.processes.disks import (
    STOP_GRACE_S,
    Damages,
    Disks,
    Leaving,
    Member,
    ProcessMachines,
)
from shaketable.harness.runtime.processes.limited_processes import ResourceLimits
from shaketable.harness.runtime.processes.nodes import Exit, NodeProcess
from shaketable.harness.runtime.processes.steered import SteeredCapabilities, SteeredNodes
from shaketable.harness.runtime.stored_logs import StoredLogs, reads_logs

EXITS_KEPT_MAX = 1_000
DAMAGED = "bytes of its files had been changed by a fault"


class ProcessWorld(SteeredCapabilities, ClientsOfWorkers):
    """Implements `contracts.plugins.World` with processes and proxies.

    Args:
        target: the system under test; asked for each node's status.
        members: the nodes by id, not started.
        network: the links among them; run by the caller.
        status_log: receives changes of role and term.
        observer: is notified of events.
        start_ns: the run's start on CLOCK_MONOTONIC.
        helpers: name servers, not started; node faults do not choose them.
        logs: counts the stored entries of nodes whose log a fault removes.
    """

    def __init__(
        self,
        target: Target,
        members: Mapping[str, Member],
        network: Network,
        status_log: Lines,
        observer: Observer,
        start_ns: int,
        helpers: Sequence[NodeProcess] = (),
        logs: StoredLogs | None = None,
    ) -> None:
        self.nodes = tuple(members)
        self.exits: list[Exit] = []
        self.group_status = GroupStatus(
            self.nodes,
            self,
            self._ask,
            status_log,
            observer,
            lambda: monotonic_ns() - start_ns,
            status_timeout_s(target),
        )
        self._target = target
        self._members = dict(members)
        self._helpers = tuple(helpers)
        self._logs = logs or StoredLogs(target.read_log)
        counted = self._logs if reads_logs(target) else None
        self._disks = Disks(target, ProcessMachines(self._members, self, counted))
        self._clocks = self._disk_faults = self._steered = SteeredNodes(target, self._members, self)
        self._resource_limits = ResourceLimits(self._members, self, self._answers)
        self._leaving = Leaving()
        self._damages = Damages(target, self._members, self._answers, counted)
        self._network = network
        self._observer = observer
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch and poll the nodes until cancelled; at the end no process is left."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = self._steered.nursery = nursery
                for node in self.nodes:
                    nursery.start_soon(self.group_status.poll, node)
                task_status.started()
        finally:
            self._nursery = self._steered.nursery = None
            with trio.CancelScope(shield=True):
                await self._logs.end()
                await self._for_each(lambda process: process.kill())

    # ---- primitives of faults ----------------------------------------------------------

    async def leader(self, order: Sequence[str] = ()) -> str | None:
        """Return the node that claims to lead the highest term, if any; see `World.leader`."""
        return self.group_status.leader(order)

    @property
    def name_servers(self) -> Sequence[str]:
        """Return the name servers; see `contracts.capabilities.FaultsNameServers`."""
        return [helper.node for helper in self._helpers]

    @property
    def name_server_peers(self) -> Sequence[str]:
        """Return none: no proxy is on the way to a name server."""
        return ()

    async def kill(self, node: str) -> Json:
        """Kill the node's process with SIGKILL; see `World.kill`."""
        process = self._process(node)
        if not process.is_running:
            return {"incarnation": UNTOUCHED}
        await process.kill()
        if node in self._members:
            self.group_status.learn(node, None)
        return {"incarnation": process.incarnation}

    async def restart(self, node: str, incarnation: int) -> None:
        """Start the node again if `incarnation` is still its last and dead (idempotent)."""
        process = self._process(node)
        if process.is_running or self._nursery is None:  # a world that has ended starts nothing
            return
        if node in self._disks.lost:
            return  # `replace` starts it, as a new member
        if process.incarnation == incarnation:
            self.start(node)
        elif incarnation != UNTOUCHED:
            self._observer.note(
                f"node {node} stays down: incarnation {incarnation} was to be started again, but"
                f" {process.incarnation} is its last"
            )

    async def pause(self, node: str) -> Json:
        """Pause the node's process with SIGSTOP; see `World.pause`."""
        process = self._process(node)
        if not process.is_running or process.is_paused:
            return {"incarnation": UNTOUCHED}
        await process.pause()
        return {"incarnation": process.incarnation}

    async def resume(self, node: str, incarnation: int) -> None:
        """Resume that incarnation (SIGCONT) if it still exists (idempotent)."""
        process = self._process(node)
        if process.incarnation == incarnation:
            process.resume()

    def is_paused(self, node: str) -> bool:
        """True if the kernel reports the node's process as stopped."""
        return self._process(node).is_paused

    def is_alive(self, node: str, incarnation: int) -> bool:
        """True if that incarnation of the node still runs (or is paused)."""
        process = self._process(node)
        return process.incarnation == incarnation and process.is_running

    async def cut(self, links: Sequence[tuple[str, str]]) -> str:
        """Hold all bytes that flow from a to b, for each (a, b); return a cut id."""
        return self._network.cut(links)

    async def heal(self, cut: str, how: str) -> None:
        """Heal this cut (idempotent)."""
        self._network.heal(cut, how)

    def held(self, cut: str) -> Json:
        """Return what the cut has held so far: {"bytes": n, "connections": n}."""
        return self._network.held(cut)

    async def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; see `contracts.capabilities.ShapesLinks`."""
        await trio.lowlevel.checkpoint()
        return self._network.shape(links, shape)

    async def unshape(self, shape: str) -> None:
        """Remove this shape (idempotent)."""
        await trio.lowlevel.checkpoint()
        self._network.unshape(shape)

    def shaped(self, shape: str) -> Json:
        """Return what the shape did so far."""
        return self._network.shaped(shape)

    def why_not_wiped(self, node: str) -> str | None:
        """Return why the node's disk must not be lost now; see `World.why_not_wiped`."""
        if self._logs.is_warming_up:  # else the node would wait for its disk that long
            return "what reads its log is still being compiled"
        return self._leaving.why_not_wiped() or self._disks.why_not_wiped(node)

    async def wipe(self, node: str) -> Json:
        """Kill the node's process and delete its store; see `World.wipe`."""
        why = self.why_not_wiped(node)  # checked before, but the node was cut off for a while since
        if why is not None:
            return {"incarnation": UNTOUCHED, "why": why, "files": 0, "bytes": 0, "messages": 0}
        self._disks.lost.add(node)  # at once: another fault may have killed it just now
        killed = await self.kill(node)
        lost = await self._disks.lose(node)
        self._damages.renewed(node)
        return {**killed, **lost}

    async def replace(self, node: str, incarnation: int) -> None:
        """Start a wiped node with an empty disk; see `World.replace`."""
        if self._members[node].process.incarnation == incarnation and self._nursery is not None:
            await self._disks.renew(node)
        await self._disks.readmit(node)

    async def transfer(self, to: str) -> Json:
        """Ask the leader to transfer leadership to `to`; see `World.transfer`."""
        assert isinstance(self._target, TransfersLeadership), "the fault was not available"
        target = self._target

        async def ask(leader: str, successor: str, timeout_s: float) -> None:
            await target.transfer_leadership(self._members[leader].layout, successor, timeout_s)

        return await group_status.transfer(self.group_status, ask, to)

    # ---- the files of dead nodes (contracts.capabilities.InjectsDiskFaults) ---------------------

    async def damage(self, node: str, damage: Damage) -> Json:
        """Damage the files of a dead node; see `InjectsDiskFaults.damage`."""
        return await self._damages.damage(node, damage)

    async def copy_store(self, node: str) -> str:
        """Copy a dead node's store; return an id."""
        return await self._damages.copy(node)

    async def start_damaged(self, node: str, incarnation: int) -> Json:
        """Start a node on a damaged store; see `InjectsDiskFaults.start_damaged`."""
        process = self._members[node].process
        if self._damages.is_damaged(node):  # a node with an intact store ends for its own reasons
            started = incarnation + 1
            process.excuse(("damaged", started), lambda ended: ended == started)
        await self.restart(node, incarnation)
        found = await self._damages.watch(node)
        return {"incarnation": process.incarnation, **found}

    async def revive(self, node: str, incarnation: int) -> None:
        """Give a node that refused its store an empty disk; see `InjectsDiskFaults.revive`."""
        process = self._members[node].process
        if process.incarnation == incarnation:
            if process.is_running:  # it accepted the store
                return
            await self._disks.give_up(node)
            self._damages.renewed(node)
        await self.replace(node, incarnation)

    # ---- operators and resources ------------------------------------------------------------

    async def stop(self, node: str) -> Json:
        """Stop the node gracefully; see `StopsNodes.stop`."""
        process = self._members[node].process
        if not process.is_running:
            return {"incarnation": UNTOUCHED}
        await process.stop(STOP_GRACE_S)
        return {"incarnation": process.incarnation}

    async def until_ready(self, timeout_s: float) -> bool:
        """Wait until all running nodes agree on a leader; see `StopsNodes.until_ready`."""
        return await self.group_status.until_ready(timeout_s)

    async def remove_member(self, node: str) -> Json:
        """Remove the node from its group; see `MovesMembers.remove_member`."""
        assert isinstance(self._target, ChangesMembers), "the fault was not available"
        if without := self._disks.without_disk:  # a quorum of those that are left may need it
            why = f"{', '.join(sorted(without))} is not back yet"
            return {"took_ms": None, "members": [], "error": why}
        with self._leaving.asked(node):
            return await group_status.remove_member(self._target, self._layouts(), node)

    async def add_member(self, node: str) -> Json:
        """Add the node to its group again; see `MovesMembers.add_member`."""
        assert isinstance(self._target, ChangesMembers), "the fault was not available"
        answer = await group_status.add_member(self._target, self._layouts(), node)
        self._leaving.is_back(node)
        return answer

    async def limit_resources(self, node: str, resources: Resources) -> str:
        """Limit resources of the node's process; see `LimitsResources.limit_resources`."""
        assert self._nursery is not None, "the world does not run"
        return await self._resource_limits.limit_resources(node, resources, self._nursery)

    async def lift_limits(self, limits: str) -> None:
        """Lift exactly these limits (idempotent); see `LimitsResources.lift_limits`."""
        await self._resource_limits.lift_limits(limits)

    def limit_effects(self, limits: str) -> Json:
        """Return what the limits did so far; see `LimitsResources.limit_effects`."""
        return self._resource_limits.limit_effects(limits)

    # ---- for the supervisor -------------------------------------------------------------

    def start(self, node: str) -> None:
        """Start a node that does not run, and watch it."""
        assert self._nursery is not None, "the world does not run"
        process = self._process(node)
        process.start()
        self._nursery.start_soon(self._watch, node, process)

    def start_all(self) -> tuple[str, ...]:
        """Start every node that does not run; return which."""
        assert self._nursery is not None, "the world does not run"
        # A node without its disk is not a member of its group: only `replace` may start it.
        down = tuple(
            node
            for node in self.nodes
            if not self.is_running(node) and node not in self._disks.awaited
        )
        for helper in self._helpers:
            if not helper.is_running:
                helper.start()
                self._nursery.start_soon(self._watch, helper.node, helper)
        for node in down:
            self.start(node)
        return down

    def restore(self) -> tuple[str, ...]:
        """Heal, resume and start whatever a fault left behind; return what that was.

        Called when all faults are over: there is nothing to do unless an undo failed or a node
        ended by itself.
        """
        found = [f"{cut} was not healed" for cut in self._network.open_cuts()]
        for cut in self._network.open_cuts():
            self._network.heal(cut, "deliver")
        found += [f"{shape} was still in force" for shape in self._network.open_shapes()]
        for shape in self._network.open_shapes():
            self._network.unshape(shape)
        found += self._steered.give_up() + self._resource_limits.give_up()
        for node in self.nodes:
            if self.is_paused(node):
                self._members[node].process.resume()
                found.append(f"node {node} was still paused")
        for helper in self._helpers:
            if helper.is_paused:
                helper.resume()
                found.append(f"name server {helper.node} was still paused")
        found += [f"node {node} was down: started again" for node in self.start_all()]
        return tuple(found)

    async def restore_disks(self, patience_s: float) -> tuple[str, ...]:
        """Wait that long for nodes that got an empty disk; return those that never did.

        An undo that was late is no reason to call a node lost that has caught up since.
        """
        with trio.move_on_after(patience_s):
            for node in sorted(self._disks.awaited):
                with suppress(IndefiniteError):
                    await self._disks.readmit(node)
        return tuple(f"node {node} never got its disk back" for node in sorted(self._disks.awaited))

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        return self._members[node].process.is_running

    async def stop_all(self) -> None:
        """Stop all nodes gracefully, then with SIGKILL. Status is not updated from now on."""
        self.group_status.is_ending = True
        await self._for_each(lambda process: process.stop(STOP_GRACE_S))

    def remarks(self) -> tuple[str, ...]:
        """Return what nodes did, seen from outside, that no node may do."""
        return tuple(self._damages.remarks)

    def broken(self) -> tuple[Broken, ...]:
        """Return none: invariants inside a process cannot be observed."""
        return ()

    def incarnation(self, node: str) -> int:
        """Return how often the node was started."""
        return self._members[node].process.incarnation

    def last_line(self, node: str) -> str:
        """Return the last line of the node's output; "" if none."""
        return self._members[node].process.last_line()

    def awaited(self) -> frozenset[str]:
        """Return the nodes that lost their disk and have not caught up yet."""
        return frozenset(self._disks.awaited)

    def explain(self, ended: Exit) -> str:
        """Describe in one line how a node ended by itself, and where to read more."""
        return f"node {ended} (see nodes/{ended.node}/node.log)"

    def _process(self, name: str) -> NodeProcess:
        """Return the process of a node or of a name server."""
        if name in self._members:
            return self._members[name].process
        return next(helper for helper in self._helpers if helper.node == name)

    def _layouts(self) -> dict[str, NodeLayout]:
        return {node: member.layout for node, member in self._members.items()}

    def _answers(self, node: str) -> bool:
        return self.group_status.statuses()[node] is not None

    async def _for_each(self, act: Callable[[NodeProcess], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            for member in self._members.values():
                nursery.start_soon(act, member.process)
            for helper in self._helpers:
                nursery.start_soon(act, helper)

    async def _watch(self, node: str, process: NodeProcess) -> None:
        """Wait for the end of an incarnation, and report it if it was not requested.

        Raises:
            HarnessError: it ended because another program uses its port: no fault of the node.
        """
        ended = await process.wait()
        is_node = node in self._members
        if is_node and process.incarnation == ended.incarnation:
            self.group_status.learn(node, None)
        if ended.asked:
            return
        if is_node and not process.is_running:
            self._check_ports(self._members[node].layout)
        if len(self.exits) < EXITS_KEPT_MAX:
            self.exits.append(self._explained(ended))
            self._observer.note(self.explain(ended))

    def _explained(self, ended: Exit) -> Exit:
        """Return `ended` with the meaning of its exit status, and its possible cause."""
        target, node = self._target, ended.node
        causes = target.end_causes if isinstance(target, ExplainsEnds) else {}
        excuse = self._resource_limits.refused(node, ended.incarnation)
        if self._damages.is_damaged(node):
            excuse = DAMAGED
        return replace(ended, cause=causes.get(ended.returncode, ""), excuse=excuse)

    def _check_ports(self, layout: NodeLayout) -> None:
        for whom, address in (
            ("clients", layout.client_address),
            ("peers", layout.peer_address),
            *((name, port.own) for name, port in layout.further.items()),
        ):
            if not ports.is_free(address.port):
                owner = f"the {whom} of node {layout.node}"
                raise HarnessError(ports.in_use(address.port, owner))

    async def _ask(self, node: str) -> NodeStatus | None:
        return await self._target.status(self._members[node].layout, status_timeout_s(self._target))

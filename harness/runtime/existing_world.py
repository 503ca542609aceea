"""The world of groups that run already: addresses, and commands for what faults need.

Nodes are neither started nor ended by a run. Whether a kill or a pause took effect shows in a
status request that the node does not answer; what a cut drops is counted by a command. When the run
ends, in whatever way, everything is put back; if the harness is killed, `shaketable heal` does it.

Source: jepsen.control (commands on nodes), jepsen.os (nodes that exist); docs/your-own-system.md.
"""

from __future__ import annotations

import hashlib
from collections import Counter as Multiset
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import count, permutations
from time import monotonic_ns
from typing import Final, Protocol

import trio

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign, node_names
from shaketable.harness.contracts.abilities import RunsAlready
from shaketable.harness.contracts.broken_rules import Broken
from shaketable.harness.contracts.capabilities import Capability, Link
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import (
    UNTOUCHED,
    Json,
    NodeLayout,
    NodeStatus,
    Target,
)
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.run_markers import boot_id
from shaketable.harness.runtime.clients.workers import WorkerGroup, plan_workers
from shaketable.harness.runtime.facts import wall_clock
from shaketable.harness.runtime.group_status import GroupStatus, status_timeout_s
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import Observer
from shaketable.harness.runtime.processes.nodes import Exit
from shaketable.harness.runtime.rig import Rig, make_nemesis, open_records
from shaketable.harness.runtime.samples import AnsweredClocks, Samples

COUNT_EVERY_S: Final = 0.2
"""By default; each time it is a command for each link."""
COUNT_AGAIN_AFTER_S: Final = 1.0
PUT_BACK_ATTEMPTS_MAX: Final = 3


class RunningGroup(Target, RunsAlready, Protocol):
    """A target whose group runs already."""


class ActedOn(Protocol):
    """What the world needs of a group; see `RunsAlready` and `Target`."""

    async def act(self, action: str, node: str, to: str = "") -> str:
        """Do something to a node, or to what it sends to another."""
        ...

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        """Ask a node; None if it does not answer."""
        ...


class ExistingWorld:
    """Implements `contracts.plugins.World` by the target's commands.

    Args:
        target: the group; asked for each node's status, and to act on it.
        layouts: its nodes by id.
        status_log: receives changes of role and term.
        observer: is notified of events.
        start_ns: the run's start on CLOCK_MONOTONIC.

    Attributes:
        shows_effects: whether an action that succeeds has seen its effect; otherwise it shows in a
            status request that is not answered.
        count_every_s: how often is asked what a cut has dropped, until it is something.
    """

    shows_effects = False
    count_every_s = COUNT_EVERY_S

    def __init__(
        self,
        target: ActedOn,
        layouts: Mapping[str, NodeLayout],
        status_log: Lines,
        observer: Observer,
        start_ns: int,
    ) -> None:
        self.nodes = tuple(layouts)
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
        self._observer = observer
        self._target = target
        self._layouts = layouts
        self._incarnation = dict.fromkeys(self.nodes, 1)
        self._down: dict[str, bool] = {}  # -> whether a request went unanswered since
        self._paused: dict[str, bool] = {}  # likewise
        self._cuts: dict[str, tuple[Link, ...]] = {}
        self._crossing: Multiset[Link] = Multiset()
        self._dropped: dict[str, int] = {}
        self._numbers = count(1)
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Poll the nodes until cancelled; then put back what is left of faults."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for node in self.nodes:
                    nursery.start_soon(self.group_status.poll, node)
                task_status.started()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                await self._at_end()

    async def _at_end(self) -> None:
        for line in await self.put_back():
            self._observer.note(f"at the end, {line}")

    # ---- primitives of faults ----------------------------------------------------------

    async def leader(self, order: Sequence[str] = ()) -> str | None:
        """Return the node that claims to lead the highest term, if any; see `World.leader`."""
        return self.group_status.leader(order)

    async def kill(self, node: str) -> Json:
        """Run the command that ends the node; see `World.kill`."""
        return await self._end("kill", node)

    async def stop(self, node: str) -> Json:
        """Run the command that stops the node gracefully; see `StopsNodes.stop`."""
        return await self._end("stop", node)

    async def _end(self, action: str, node: str) -> Json:
        if node in self._down:
            return {"incarnation": UNTOUCHED}
        self._down[node] = False
        await self._strike(action, node, self._start)
        self._down[node] |= self.shows_effects
        return {"incarnation": self._incarnation[node]}

    async def _strike(self, action: str, node: str, undo: Callable[[str], Awaitable[None]]) -> None:
        """Run a command; if it fails it may have acted, and is undone."""
        try:
            await self._target.act(action, node)
        except BaseException:  # also when cancelled
            with trio.CancelScope(shield=True):
                await self._tried(partial(undo, node))
            raise

    async def restart(self, node: str, incarnation: int) -> None:
        """Start the node again if `incarnation` is still its last and down (idempotent)."""
        if node in self._down and self._incarnation[node] == incarnation:
            await self._start(node)

    async def _start(self, node: str) -> None:
        await self._target.act("start", node)
        self._paused.pop(node, None)  # the process that was paused is gone
        was_seen = self._down.pop(node)
        self._incarnation[node] += was_seen

    async def pause(self, node: str) -> Json:
        """Run the command that pauses the node; see `World.pause`."""
        if node in self._down or node in self._paused:
            return {"incarnation": UNTOUCHED}
        self._paused[node] = False
        await self._strike("pause", node, self._resume)
        self._paused[node] |= self.shows_effects
        return {"incarnation": self._incarnation[node]}

    async def resume(self, node: str, incarnation: int) -> None:
        """Run the command that resumes the node, if it is paused (idempotent)."""
        if node in self._paused and self._incarnation[node] == incarnation:
            await self._resume(node)

    async def _resume(self, node: str) -> None:
        await self._target.act("resume", node)
        del self._paused[node]

    def is_paused(self, node: str) -> bool:
        """True if the node was paused, and has not answered a request since."""
        return self._paused.get(node, False)

    def is_alive(self, node: str, incarnation: int) -> bool:
        """False if that incarnation was ended, and a request went unanswered since."""
        return self._incarnation[node] == incarnation and not self._down.get(node, False)

    async def cut(self, links: Sequence[Link]) -> str:
        """Drop what flows from a to b, for each (a, b); return a cut id."""
        name = f"cut {next(self._numbers)}"
        self._cuts[name] = tuple(links)
        self._dropped[name] = 0
        fresh = [link for link in links if not self._crossing[link]]
        self._crossing.update(links)
        try:
            await _each(fresh, partial(self._act_on_link, "cut"))
        except BaseException:  # also when cancelled
            with trio.CancelScope(shield=True):
                await self.heal(name, "deliver")
            raise
        if self._nursery is not None:
            self._nursery.start_soon(self._count, name)
        return name

    async def heal(self, cut: str, how: str) -> None:
        """Heal this cut (idempotent). What was dropped is lost: TCP sends it again."""
        links = self._cuts.get(cut, ())
        last = [link for link in links if self._crossing[link] == 1]
        counted: list[int] = []

        async def heal(link: Link) -> None:
            counted.append(await self._heal_link(link))

        await _each(last, heal)
        self._dropped[cut] = max(self._dropped.get(cut, 0), sum(counted))
        if self._cuts.pop(cut, None) is not None:
            self._crossing.subtract(links)

    def held(self, cut: str) -> Json:
        """Return what the cut was last seen to have dropped, in packets or in bytes."""
        return {"bytes": self._dropped.get(cut, 0), "connections": 0, "packets": 0}

    def why_not_wiped(self, node: str) -> str | None:
        """Return the reason: its disk is not known."""
        return "the disks of nodes that run already are not known"

    async def wipe(self, node: str) -> Json:
        """Raise HarnessError: no fault that needs it is available."""
        raise _not_here("wipe a disk")

    async def replace(self, node: str, incarnation: int) -> None:
        """Raise HarnessError: no fault that needs it is available."""
        raise _not_here("renew a disk")

    async def transfer(self, to: str) -> Json:
        """Raise HarnessError: no fault that needs it is available."""
        raise _not_here("transfer leadership")

    # ---- for the supervisor -------------------------------------------------------------

    async def until_ready(self, timeout_s: float) -> bool:
        """Wait until all nodes that were not ended answer; see `StopsNodes.until_ready`."""
        return await self.group_status.until_ready(timeout_s)

    def start_all(self) -> tuple[str, ...]:
        """Start nothing: the group runs already."""
        return ()

    def restore(self) -> tuple[str, ...]:
        """Return nothing: commands take time; `put_back` runs them."""
        return ()

    async def put_back(self, patience_s: float = 0.0) -> tuple[str, ...]:
        """Heal, resume and start whatever a fault left behind; return what that was."""
        left = [(f"{cut} was not healed", partial(self.heal, cut, "deliver")) for cut in self._cuts]
        left += [
            (f"node {node} was still paused", partial(self._resume, node)) for node in self._paused
        ]
        left += [(f"node {node} was down", partial(self._start, node)) for node in self._down]
        return tuple([what + await self._tried(undo) for what, undo in left])

    async def _tried(self, undo: Callable[[], Awaitable[None]]) -> str:
        """Undo something; return "", or why that failed."""
        error = ""
        for _ in range(PUT_BACK_ATTEMPTS_MAX):
            try:
                await undo()
            except HarnessError as failed:
                error = f", and still is: {failed}"
            else:
                return ""
        return error

    def is_running(self, node: str) -> bool:
        """True unless a fault ended the node: what else becomes of it is not known here."""
        return node not in self._down

    def incarnation(self, node: str) -> int:
        """Return how often the node was started, as far as faults did it."""
        return self._incarnation[node]

    def last_line(self, node: str) -> str:
        """Return nothing: the node's output is not known."""
        return ""

    async def stop_all(self) -> None:
        """Stop watching: the group goes on."""
        await trio.lowlevel.checkpoint()
        self.group_status.is_ending = True

    def explain(self, ended: Exit) -> str:
        """Describe in one line how a node ended by itself."""
        return f"node {ended}"

    def remarks(self) -> tuple[str, ...]:
        """Return nothing: nodes are seen from outside only."""
        return ()

    def broken(self) -> tuple[Broken, ...]:
        """Return none: invariants inside a process cannot be observed."""
        return ()

    def awaited(self) -> frozenset[str]:
        """Return none: no disk is lost here."""
        return frozenset()

    async def _ask(self, node: str) -> NodeStatus | None:
        status = await self._target.status(self._layouts[node], status_timeout_s(self._target))
        if status is None:
            for struck in (self._down, self._paused):
                if node in struck:
                    struck[node] = True
        return status

    async def _heal_link(self, link: Link) -> int:
        """Let a link's packets through; return what it has dropped, 0 if that is not known."""
        await self._act_on_link("heal", link)
        return 0

    async def _act_on_link(self, action: str, link: Link) -> None:
        await self._target.act(action, *link)

    async def _count(self, cut: str) -> None:
        """Ask again and again what a cut dropped, until it is healed."""
        is_told = False
        while cut in self._cuts:
            try:
                total = await self._count_dropped(self._cuts[cut])
            except HarnessError as error:
                if cut in self._cuts and not is_told:  # else it was healed meanwhile
                    is_told = True
                    self._observer.note(f"what {cut} drops is not known: {error}")
            else:
                self._dropped[cut] = max(self._dropped[cut], total)
            await trio.sleep(COUNT_AGAIN_AFTER_S if self._dropped[cut] else self.count_every_s)

    async def _count_dropped(self, links: Sequence[Link]) -> int:
        return sum([number_in(await self._target.act("dropped", *link)) for link in links])


def build(
    campaign: Campaign, folder: RunFolder, observer: Observer, *, command: Sequence[str] = ()
) -> Rig:
    """Assemble a run on a group that runs already; touch nothing.

    Args: as for `rig.build`.

    Raises:
        UsageError: the campaign leaves no room for its faults, or none of them is available.
        HarnessError: a file cannot be written.
    """
    target: RunningGroup = discovery.get("targets", campaign.target)
    start_ns = monotonic_ns()

    def now_ns() -> int:
        return monotonic_ns() - start_ns

    records = open_records(campaign, target, folder, command, now_ns, start_ns, monotonic_ns)
    records.facts.update(clock=wall_clock(now_ns))
    layouts = layouts_of(target, folder, node_names(campaign))
    world = ExistingWorld(target, layouts, records.status_log, observer, start_ns)
    world.group_status.samples = Samples(records.samples_log, AnsweredClocks(), now_ns)
    clients = {node: layout.client_address for node, layout in layouts.items()}
    plans = plan_workers(campaign, folder, clients, start_ns, run_name(folder, start_ns))
    return Rig(
        campaign=campaign,
        folder=folder,
        clock_ns=monotonic_ns,
        observer=observer,
        facts=records.facts,
        world=world,
        workers=WorkerGroup(plans, records.ledger.process),
        services=(world.run,),
        collect=_nothing,
        nemesis=make_nemesis(campaign, records, world, observer, now_ns),
        schedule=records.schedule,
        recorder=records.recorder,
        ledger=records.ledger,
        logs=(records.status_log, records.samples_log),
        let_go=_nothing,
        restore_late=world.put_back,
    )


def layouts_of(
    target: RunsAlready, folder: RunFolder, nodes: Sequence[str]
) -> dict[str, NodeLayout]:
    """Return where the nodes are; for each other, as far as known, at the clients' addresses."""
    at = dict(zip(nodes, target.addresses, strict=True))
    return {
        node: NodeLayout(
            node=node,
            directory=folder.node(node),
            client_address=at[node],
            peer_address=at[node],
            peers={peer: there for peer, there in at.items() if peer != node},
        )
        for node in nodes
    }


def run_name(folder: RunFolder, start_ns: int) -> str:
    """Return a short name that no other run has: keys of the run begin with it."""
    unique = f"{boot_id()} {start_ns} {folder.path}"
    return f"st{hashlib.sha256(unique.encode()).hexdigest()[:10]}"


async def recover(
    target: RunsAlready, needs: AbstractSet[Capability], nodes: Sequence[str]
) -> None:
    """Undo whatever faults with these needs may have done, without knowing what.

    For a run whose harness was killed: commands do nothing where there is nothing to undo.

    Raises:
        HarnessError: a command failed.
    """
    if Capability.CUT in needs:
        await _each(list(permutations(nodes, 2)), lambda link: target.act("heal", *link))
    if Capability.PAUSE in needs:
        await _each(nodes, lambda node: target.act("resume", node))
    if needs & {Capability.KILL, Capability.STOP}:
        await _each(nodes, lambda node: target.act("start", node))


def number_in(text: str) -> int:
    """Return the sum of the whole numbers in a text."""
    return sum(int(word) for word in text.split() if word.isdecimal())


async def _each(items: Iterable[object], act: Callable[..., Awaitable[object]]) -> None:
    """Do something to each at the same time. Raises the first HarnessError after all have ended."""
    failed: list[HarnessError] = []

    async def tried(item: object) -> None:
        try:
            await act(item)
        except HarnessError as error:
            failed.append(error)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(tried, item)
    if failed:
        raise failed[0]


def _not_here(what: str) -> HarnessError:
    return HarnessError(f"cannot {what}: the group runs already")


def _nothing() -> None:
    """Do nothing: nothing was started, and nothing is collected."""

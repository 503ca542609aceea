"""The world of groups that run already: addresses, and commands for what faults need.

Nodes are neither started nor ended by a run. Whether a kill or a pause took effect shows in a
status request, sent after it, that the node does not answer; what a cut drops is counted by a
command. When the run ends, in whatever way, everything is put back; if the harness is killed,
`shaketable heal` does it. Commands for one node, and all for links, run one after the other: two
faults may end at the same time.

Source: jepsen.control (commands on nodes), jepsen.os (nodes that exist); docs/your-own-system.md.
"""

from __future__ import annotations

import hashlib
from collections import Counter as Multiset
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from itertools import count, permutations
from time import monotonic_ns
from typing import Final, Protocol, cast

import trio

from shaketable.harness.campaigns.campaign import Campaign, node_names, target_of
from shaketable.harness.contracts.abilities import Broken, RunsAlready
from shaketable.harness.contracts.capabilities import Capability, Link
from shaketable.harness.contracts.errors import HarnessError, clearest
from shaketable.harness.contracts.plugins import (
    UNTOUCHED,
    Json,
    NodeLayout,
    NodeStatus,
    Target,
)
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.run_markers import boot_id
from shaketable.harness.runtime.clients.workers import ClientsOfWorkers, plan_workers
from shaketable.harness.runtime.facts import wall_clock
from shaketable.harness.runtime.group_status import GroupStatus, status_timeout_s
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import Observer
from shaketable.harness.runtime.processes.nodes import Exit
from shaketable.harness.runtime.rig import Rig, open_records

COUNT_EVERY_S: Final = 0.2
"""What a cut has dropped is asked for so often; each time it is a command for each link."""
COUNT_AGAIN_AFTER_S: Final = 1.0
"""Once it has dropped something."""
SEEN_WITHIN_S: Final = 1.0
"""How long a node may answer after the command that ends it: the command may not wait."""
LOOK_EVERY_S: Final = 0.05
COME_BACK_S: Final = 10.0
"""How long a node may be silent, when all is undone, until it is started once more."""
LAST_COUNT_S: Final = 2.0
"""How long a heal may wait for a last count."""
PUT_BACK_ATTEMPTS_MAX: Final = 3


class RunningGroup(Target, RunsAlready, Protocol):
    """A target whose group runs already."""


@dataclass(slots=True)
class Strike:
    """A kill, stop or pause of a node: whether its command has ended, and a request was missed."""

    is_done: bool = False
    is_seen: bool = False


class ActedOn(Protocol):
    """What the world needs of a group; see `RunsAlready` and `Target`."""

    async def act(self, action: str, node: str, to: str = "") -> str:
        """Do something to a node, or to what it sends to another."""
        ...

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        """Ask a node; None if it does not answer."""
        ...


class ExistingWorld(ClientsOfWorkers):
    """Implements `contracts.plugins.World` by the target's commands.

    Args:
        target: the group; asked for each node's status, and to act on it.
        layouts: its nodes by id.
        status_log: receives changes of role and term.
        observer: is notified of events.
        start_ns: the run's start on CLOCK_MONOTONIC.

    Attributes:
        sees_answers_only: whether an effect shows in a status request that is not answered;
            otherwise an action that succeeds has seen it.
        count_every_s: how often is asked what a cut has dropped, until it is something.
    """

    sees_answers_only = True
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
        self._down: dict[str, Strike] = {}
        self._paused: dict[str, Strike] = {}
        self._ended: set[str] = set()
        """Nodes that were ended once: they may still be down if the command returned too early."""
        self._turns = {node: trio.Lock() for node in self.nodes}
        self._cuts: dict[str, tuple[Link, ...]] = {}
        self._crossing: Multiset[Link] = Multiset()
        self._before: dict[str, dict[Link, int]] = {}  # what was dropped before the cut
        self._dropped: dict[str, dict[Link, int]] = {}
        self._uncounted: set[str] = set()  # cuts of which that was told
        self._links_turn = trio.Lock()
        self._failing: set[tuple[str, ...]] = set()
        """Commands that undo something, and failed the last time."""
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
        async with self._turns[node]:
            if node in self._down:
                return {"incarnation": UNTOUCHED}
            self._down[node] = Strike()
            self._ended.add(node)
            await self._strike(action, node, self._down[node], self._start)
            return {"incarnation": self._incarnation[node]}

    async def _strike(
        self, action: str, node: str, strike: Strike, undo: Callable[[str], Awaitable[None]]
    ) -> str:
        """Run a command, and see whether the node still answers; return what was printed.

        If the command fails it may have acted, and is undone.
        """
        try:
            printed = await self._target.act(action, node)
            strike.is_done, strike.is_seen = True, not self.sees_answers_only
            await self._await_silence(node, strike)
        except BaseException:  # also when cancelled
            with trio.CancelScope(shield=True):
                await self._tried(partial(undo, node))
            raise
        return printed

    async def _await_silence(self, node: str, strike: Strike) -> None:
        """Wait a little for a missed request: the node may be up again before the next poll."""
        end = trio.current_time() + SEEN_WITHIN_S
        if not strike.is_seen:
            await self.group_status.ask(node)
        while not strike.is_seen and trio.current_time() < end and node not in self._paused:
            await trio.sleep(LOOK_EVERY_S)
            await self.group_status.ask(node)

    async def restart(self, node: str, incarnation: int) -> None:
        """Start the node again if `incarnation` is still its last and down (idempotent)."""
        async with self._turns[node]:
            if self._incarnation[node] == incarnation:
                await self._start(node)

    async def _start(self, node: str) -> None:
        if node not in self._down:
            return
        await self._undo("start", node)
        self._incarnation[node] += self._down.pop(node).is_seen
        await self._resume(node)  # the paused process may have survived

    async def pause(self, node: str) -> Json:
        """Run the command that pauses the node; see `World.pause`."""
        async with self._turns[node]:
            if node in self._down or node in self._paused:
                return {"incarnation": UNTOUCHED}
            self._paused[node] = Strike()
            await self._strike("pause", node, self._paused[node], self._resume)
            return {"incarnation": self._incarnation[node]}

    async def resume(self, node: str, incarnation: int) -> None:
        """Run the command that resumes the node, if it is paused (idempotent)."""
        async with self._turns[node]:
            if self._incarnation[node] == incarnation:
                await self._resume(node)

    async def _resume(self, node: str) -> None:
        if node in self._paused:
            await self._undo("resume", node)
            del self._paused[node]

    async def _undo(self, action: str, *where: str) -> None:
        """Run a command that undoes something; while it fails, that is remembered."""
        self._failing.add((action, *where))
        await self._target.act(action, *where)
        self._failing.discard((action, *where))

    def is_paused(self, node: str) -> bool:
        """True if the node was paused, and has not answered a request since."""
        return node in self._paused and self._paused[node].is_seen

    def is_alive(self, node: str, incarnation: int) -> bool:
        """False if that incarnation was ended, and a request went unanswered since."""
        is_gone = node in self._down and self._down[node].is_seen
        return self._incarnation[node] == incarnation and not is_gone

    async def cut(self, links: Sequence[Link]) -> str:
        """Drop what flows from a to b, for each (a, b); return a cut id."""
        async with self._links_turn:
            name = f"cut {next(self._numbers)}"
            self._cuts[name] = tuple(links)
            self._before[name], self._dropped[name] = {}, {}
            fresh = [link for link in links if not self._crossing[link]]
            self._crossing.update(links)
            try:
                await self._count(name)  # another cut's packets, or an earlier one's
                await each_of(fresh, lambda link: self._target.act("cut", *link))
            except BaseException:  # also when cancelled
                with trio.CancelScope(shield=True):
                    await self._tried(partial(self._open, name))
                raise
        if self._nursery is not None:
            self._nursery.start_soon(self._keep_counting, name)
        return name

    async def heal(self, cut: str, how: str) -> None:
        """Heal this cut (idempotent). What was dropped is lost: TCP sends it again."""
        async with self._links_turn:
            if cut in self._cuts and not self.held(cut)["bytes"]:
                with trio.move_on_after(LAST_COUNT_S):  # it may be over before the first one
                    await self._count(cut)
            await self._open(cut)

    async def _open(self, cut: str) -> None:
        links = self._cuts.get(cut, ())
        last = [link for link in links if self._crossing[link] == 1]
        await each_of(last, lambda link: self._undo("heal", *link))
        if self._cuts.pop(cut, None) is not None:
            self._crossing.subtract(links)

    def held(self, cut: str) -> Json:
        """Return what the cut was last seen to have dropped, in packets or in bytes."""
        dropped = sum(self._dropped.get(cut, {}).values())
        return {"bytes": dropped, "connections": 0, "packets": 0}

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
        left = [(f"{cut} was not healed", partial(self._heal_now, cut)) for cut in self._cuts]
        left += [
            (f"node {node} was still paused", partial(self._in_turn, self._resume, node))
            for node in self._paused
        ]
        left += [
            (f"node {node} was down", partial(self._in_turn, self._start, node))
            for node in self._down
        ]
        did = [what + await self._tried(undo) for what, undo in left]
        if self._ended:
            await self._start_silent(min(patience_s, COME_BACK_S))
        return tuple(did)

    async def _start_silent(self, patience_s: float) -> None:
        """Start nodes that were ended, started, and do not come back: perhaps too slowly."""
        await self.until_ready(patience_s)
        answers = self.group_status.statuses()
        for node in sorted(self._ended - self._down.keys()):
            if answers[node] is None:
                error = await self._tried(partial(self._undo, "start", node))
                self._observer.note(f"node {node} does not answer: started once more{error}")

    async def _heal_now(self, cut: str) -> None:
        async with self._links_turn:
            await self._open(cut)

    async def _in_turn(self, undo: Callable[[str], Awaitable[None]], node: str) -> None:
        async with self._turns[node]:
            await undo(node)

    def left_over(self) -> str | None:
        """Return which undo failed, and was not done since; see `TellsWhatIsLeft.left_over`."""
        return ", ".join(" ".join(each) for each in sorted(self._failing)) or None

    async def _tried(self, undo: Callable[[], Awaitable[None]]) -> str:
        """Undo something; return "", or why that failed."""
        error = ""
        for _ in range(PUT_BACK_ATTEMPTS_MAX):
            try:
                await undo()
            except Exception as failed:  # whatever it is, the rest has to be put back too
                error = f", and still is: {clearest(failed)}"
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
        # A paused node does not answer in any case: that says nothing of its kill.
        strike = self._paused.get(node) or self._down.get(node)
        counts = strike is not None and strike.is_done
        status = await self._target.status(self._layouts[node], status_timeout_s(self._target))
        if strike is not None and counts and status is None:
            strike.is_seen = True
        return status

    async def _count(self, cut: str) -> None:
        """Ask what a cut dropped, as far as that can be told; the first number is its start."""
        links = self._cuts.get(cut, ())
        try:
            by_link = await self._dropped_by(links)
        except Exception as error:  # a count ends no run
            if cut not in self._uncounted and cut in self._cuts:  # else it was healed meanwhile
                self._uncounted.add(cut)
                self._observer.note(f"what {cut} drops is not known: {clearest(error)}")
            return
        for link, number in by_link.items():
            fresh = number - self._before[cut].setdefault(link, number)
            self._dropped[cut][link] = max(fresh, self._dropped[cut].get(link, 0))

    async def _dropped_by(self, links: Sequence[Link]) -> dict[Link, int]:
        """Return what was dropped of each link so far."""
        dropped: dict[Link, int] = {}

        async def ask(link: Link) -> None:
            dropped[link] = number_in(await self._target.act("dropped", *link))

        await each_of(links, ask)
        return dropped

    async def _keep_counting(self, cut: str) -> None:
        while cut in self._cuts:
            await self._count(cut)
            is_seen = self.held(cut)["bytes"] > 0
            await trio.sleep(COUNT_AGAIN_AFTER_S if is_seen else self.count_every_s)


def build(
    campaign: Campaign, folder: RunFolder, observer: Observer, *, command: Sequence[str] = ()
) -> Rig:
    """Assemble a run on a group that runs already; touch nothing.

    Args: as for `rig.build`.

    Raises:
        UsageError: the campaign leaves no room for its faults, or none of them is available.
        HarnessError: a file cannot be written.
    """
    target = cast(RunningGroup, target_of(campaign))
    start_ns = monotonic_ns()

    def now_ns() -> int:
        return monotonic_ns() - start_ns

    records = open_records(campaign, target, folder, command, now_ns, start_ns, monotonic_ns)
    run = run_name(folder, start_ns)
    group = {"nodes": [str(at) for at in target.addresses], "keys": f"{run}-"}
    records.facts.update(clock=wall_clock(now_ns), group=group)
    layouts = layouts_of(target, folder, node_names(campaign))
    world = ExistingWorld(target, layouts, records.status_log, observer, start_ns)
    clients = {node: layout.client_address for node, layout in layouts.items()}
    plans = plan_workers(campaign, folder, clients, start_ns, run)
    return records.rig(
        observer, world, plans, services=(world.run,),
        let_go=_nothing, restore_late=world.put_back,
    )  # fmt: skip


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
        await each_of(list(permutations(nodes, 2)), lambda link: target.act("heal", *link))
    if Capability.PAUSE in needs:
        await each_of(nodes, lambda node: target.act("resume", node))
    if needs & {Capability.KILL, Capability.STOP}:
        await each_of(nodes, lambda node: target.act("start", node))


def number_in(text: str) -> int:
    """Return the sum of the whole numbers in a text."""
    return sum(int(word) for word in text.split() if word.isdecimal())


async def each_of(items: Iterable[object], act: Callable[..., Awaitable[object]]) -> None:
    """Do something to each at the same time. Raises the first error after all have ended."""
    failed: list[Exception] = []

    async def tried(item: object) -> None:
        try:
            await act(item)
        except Exception as error:
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

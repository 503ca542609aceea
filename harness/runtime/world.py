"""The world of processes: nodes on loopback, user-space proxies between them.

It gives faults their small vocabulary (kill, pause, cut; DESIGN.md decision 10), watches
the nodes' processes, and asks the nodes for their status all the time, so that it knows who
leads and the report can show it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns

import trio

from harness.abilities import TransfersLeadership
from harness.errors import DefiniteError, HarnessError, IndefiniteError
from harness.network.proxy import ProxyNetwork
from harness.plugins import UNTOUCHED, Json, NodeLayout, NodeStatus, Target
from harness.runtime import ports
from harness.runtime.ledger import Lines
from harness.runtime.nodes import Exit, NodeProcess
from harness.runtime.observer import Observer

STATUS_INTERVAL_S = 0.1
STATUS_TIMEOUT_S = 0.3
STOP_GRACE_S = 5.0
TRANSFER_TIMEOUT_S = 3.0
"""How long a transfer of leadership is waited for."""
TRANSFER_POLL_S = 0.01
EXITS_KEPT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Member:
    """One node as the world knows it: where it lives, and its process."""

    layout: NodeLayout
    process: NodeProcess


class ProcessWorld:
    """Implements `harness.plugins.World` over processes and proxies.

    Args:
        target: how to ask a node for its status.
        members: the nodes by id, not started.
        network: the links among them; run by the caller.
        status_log: where changes of role and term are written.
        observer: who is told.
        start_ns: the run's start on CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        target: Target,
        members: Mapping[str, Member],
        network: ProxyNetwork,
        status_log: Lines,
        observer: Observer,
        start_ns: int,
    ) -> None:
        self.nodes = tuple(members)
        self.exits: list[Exit] = []
        self.leader_changes = 0
        self._target = target
        self._members = dict(members)
        self._network = network
        self._status_log = status_log
        self._observer = observer
        self._start_ns = start_ns
        self._status: dict[str, NodeStatus | None] = dict.fromkeys(self.nodes)
        self._asked = dict.fromkeys(self.nodes, -math.inf)  # when the last answer was asked for
        self._written: dict[str, tuple[object, ...]] = {}
        self._led: tuple[str | None, int] = (None, 0)
        self._last_leader: tuple[str, int] | None = None
        self._puzzled: set[str] = set()
        self._nursery: trio.Nursery | None = None
        self._is_ending = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch and poll the nodes until cancelled; in the end no process is left."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for node in self.nodes:
                    nursery.start_soon(self._poll, node)
                task_status.started()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                await self._for_each(lambda member: member.process.kill())

    # ---- the vocabulary of faults ------------------------------------------------------

    async def leader(self) -> str | None:
        """The node that says it leads the highest term, if any answers."""
        return self._leading()[0]

    async def kill(self, node: str) -> Json:
        """End the node's process by SIGKILL; see `World.kill`."""
        process = self._members[node].process
        if not process.is_running:
            return {"incarnation": UNTOUCHED}
        await process.kill()
        self._learn(node, None)
        return {"incarnation": process.incarnation}

    async def restart(self, node: str, incarnation: int) -> None:
        """Start the node again if its dead incarnation is still `incarnation` (idempotent)."""
        process = self._members[node].process
        is_ours = process.incarnation == incarnation and not process.is_running
        if is_ours and self._nursery is not None:  # a world that has ended starts nothing
            self.start(node)

    async def pause(self, node: str) -> Json:
        """Stop the node's process by SIGSTOP; see `World.pause`."""
        process = self._members[node].process
        if not process.is_running or process.is_paused:
            return {"incarnation": UNTOUCHED}
        await process.pause()
        return {"incarnation": process.incarnation}

    async def resume(self, node: str, incarnation: int) -> None:
        """Let that incarnation go on (SIGCONT); nothing if it is gone (idempotent)."""
        process = self._members[node].process
        if process.incarnation == incarnation:
            process.resume()

    def is_paused(self, node: str) -> bool:
        """True if the kernel reports the node's process as stopped."""
        return self._members[node].process.is_paused

    def is_alive(self, node: str, incarnation: int) -> bool:
        """True if that incarnation of the node still runs (or is paused)."""
        process = self._members[node].process
        return process.incarnation == incarnation and process.is_running

    async def cut(self, links: Sequence[tuple[str, str]]) -> str:
        """Hold all bytes that flow from a to b, for each (a, b); return a cut id."""
        return self._network.cut(links)

    async def mend(self, cut: str, how: str) -> None:
        """Mend that cut (idempotent)."""
        self._network.mend(cut, how)

    def held(self, cut: str) -> Json:
        """What that cut has held so far: {"bytes": n, "connections": n}."""
        return self._network.held(cut)

    async def transfer(self, to: str) -> Json:
        """Ask whoever leads to hand leadership to `to`; see `World.transfer`."""
        was, term = self._leading()
        answer: Json = {"from": was, "took_ms": None, "error": None}
        if was is None or was == to:
            return answer
        assert isinstance(self._target, TransfersLeadership), "the fault was not available"
        asked_s = trio.current_time()
        with trio.move_on_after(TRANSFER_TIMEOUT_S):
            try:
                await self._target.transfer_leadership(
                    self._members[was].layout, to, TRANSFER_TIMEOUT_S
                )
            except IndefiniteError as error:  # it may still be handed over
                answer["error"] = str(error)
            except DefiniteError as error:
                return {**answer, "error": str(error)}
            await self._wait_until_leads(to, term)
            answer["took_ms"] = round((trio.current_time() - asked_s) * 1e3, 1)
        return answer

    async def _wait_until_leads(self, node: str, after_term: int) -> None:
        """Ask the node itself, more often than polling does, until it leads a later term."""
        while True:
            status = await self._ask(self._members[node].layout)
            if status is not None and status.role == "leader" and status.term > after_term:
                return
            await trio.sleep(TRANSFER_POLL_S)

    # ---- what the supervisor needs besides ---------------------------------------------

    def start(self, node: str) -> None:
        """Start a node that does not run, and watch it."""
        assert self._nursery is not None, "the world does not run"
        process = self._members[node].process
        process.start()
        self._nursery.start_soon(self._watch, node, process)

    def start_all(self) -> tuple[str, ...]:
        """Start every node that does not run; return which ones these were."""
        down = tuple(node for node in self.nodes if not self.is_running(node))
        for node in down:
            self.start(node)
        return down

    def restore(self) -> tuple[str, ...]:
        """Mend, resume and start whatever is still not as it should be; say what that was.

        For when all faults are over: nothing is left to do then, unless the undo of a
        fault failed or a node ended by itself.
        """
        found = [f"{cut} was not mended" for cut in self._network.open_cuts()]
        for cut in self._network.open_cuts():
            self._network.mend(cut, "deliver")
        for node in self.nodes:
            if self.is_paused(node):
                self._members[node].process.resume()
                found.append(f"node {node} was still paused")
        found += [f"node {node} was down: started again" for node in self.start_all()]
        return tuple(found)

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        return self._members[node].process.is_running

    async def stop_all(self) -> None:
        """Ask all nodes to end; end those by SIGKILL that do not. No news from here on."""
        self._is_ending = True
        await self._for_each(lambda member: member.process.stop(STOP_GRACE_S))

    def statuses(self) -> dict[str, NodeStatus | None]:
        """What each node last said of itself; None if it did not answer."""
        return dict(self._status)

    def is_ready(self, since: float) -> bool:
        """True if every running node answers and names the same leader, which agrees.

        Answers to questions asked before `since` (trio's clock) do not count.
        """
        leader, term = self._leading()
        running = [self._status[node] for node in self.nodes if self.is_running(node)]
        is_fresh = all(self._asked[node] >= since for node in self.nodes if self.is_running(node))
        return (
            is_fresh
            and leader is not None
            and all(
                status is not None and status.leader == leader and status.term == term
                for status in running
            )
        )

    def is_settled(self, since: float) -> bool:
        """True if the group is ready and all has been committed everywhere, since then."""
        if not self.is_ready(since):
            return False
        running = (self._status[node] for node in self.nodes if self.is_running(node))
        indexes = {
            index
            for status in running
            if status is not None
            for index in (status.committed_index, status.end_index)
        }
        return len(indexes) == 1

    def why_not_ready(self) -> str:
        """Say of each node in a few words why the group is not ready."""
        return "; ".join(self._state_of(node) for node in self.nodes)

    def explain(self, ended: Exit) -> str:
        """Say in one line how a node ended by itself, and where to read more."""
        return f"node {ended} (see nodes/{ended.node}/node.log)"

    def _state_of(self, node: str) -> str:
        process, status = self._members[node].process, self._status[node]
        if not process.is_running:
            return f"{node} does not run"
        if status is None:
            said = process.last_line()
            return f"{node} does not answer" + (f" (its last line: {said})" if said else "")
        follows = f"follows {status.leader}" if status.leader else "knows no leader"
        return (
            f"{node} is {status.role} of term {status.term}, {follows}, "
            f"committed {status.committed_index} of {status.end_index}"
        )

    async def _for_each(self, act: Callable[[Member], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            for member in self._members.values():
                nursery.start_soon(act, member)

    async def _watch(self, node: str, process: NodeProcess) -> None:
        """Wait for the end of an incarnation, and tell it if nobody asked for it.

        Raises:
            HarnessError: it ended because somebody else has its port: no fault of its own.
        """
        ended = await process.wait()
        if process.incarnation == ended.incarnation:
            self._learn(node, None)
        if ended.asked:
            return
        if not process.is_running:
            self._check_ports(self._members[node].layout)
        if len(self.exits) < EXITS_KEPT_MAX:
            self.exits.append(ended)
            self._observer.note(self.explain(ended))

    def _check_ports(self, layout: NodeLayout) -> None:
        for whom, address in (
            ("clients", layout.client_address),
            ("peers", layout.peer_address),
        ):
            if not ports.is_free(address.port):
                owner = f"the {whom} of node {layout.node}"
                raise HarnessError(ports.in_use(address.port, owner))

    async def _poll(self, node: str) -> None:
        layout = self._members[node].layout
        while True:
            asked, asked_of = trio.current_time(), self._members[node].process.incarnation
            status = await self._ask(layout)
            if asked_of == self._members[node].process.incarnation and self.is_running(node):
                self._asked[node] = asked
                self._learn(node, status)
            await trio.sleep(STATUS_INTERVAL_S)

    async def _ask(self, layout: NodeLayout) -> NodeStatus | None:
        try:
            with trio.move_on_after(2 * STATUS_TIMEOUT_S):  # even if the target forgets its own
                return await self._target.status(layout, STATUS_TIMEOUT_S)
        except Exception as error:
            if layout.node not in self._puzzled:
                self._puzzled.add(layout.node)
                what = f"{type(error).__name__}: {error}"
                self._observer.note(f"{self._target.name}: status of {layout.node} failed: {what}")
        return None

    def _learn(self, node: str, status: NodeStatus | None) -> None:
        """Take in what a node said; write it down and tell it if that is news."""
        if self._is_ending:
            return
        self._status[node] = status
        news = () if status is None else (status.role, status.term, status.leader)
        if self._written.get(node) != news:
            self._written[node] = news
            self._status_log.append(self._row(node, status))
        led = self._leading()
        if led != self._led:
            self._led = led
            if led[0] is not None and (led[0], led[1]) != self._last_leader:
                self.leader_changes += self._last_leader is not None
                self._last_leader = (led[0], led[1])
            self._observer.leader_changed(*led, self._now_ns())

    def _leading(self) -> tuple[str | None, int]:
        """(node, term) of the leader of the highest term; (None, last term) without one."""
        leaders = [
            (status.term, node)
            for node, status in self._status.items()
            if status is not None and status.role == "leader"
        ]
        if not leaders:
            return None, self._led[1]
        term, node = max(leaders)
        return node, term

    def _row(self, node: str, status: NodeStatus | None) -> Json:
        row: Json = {"time_ns": self._now_ns(), "node": node}
        for name in ("role", "term", "leader", "committed_index", "end_index"):
            row[name] = None if status is None else getattr(status, name)
        return row

    def _now_ns(self) -> int:
        return monotonic_ns() - self._start_ns


async def wait_until(
    is_so: Callable[[], bool], timeout_s: float, interval_s: float = STATUS_INTERVAL_S / 2
) -> bool:
    """Wait until `is_so()`; False if it is not within `timeout_s`. What it raises is raised."""
    deadline = trio.current_time() + timeout_s
    while not is_so():
        if trio.current_time() >= deadline:
            return False
        await trio.sleep(interval_s)
    return True

"""Lost disks of a run's nodes, and how these nodes come back: one at a time.

A node without its disk is a different member, for its target too: only `renew` starts it again, in
the way that the target defines.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from shaketable.harness.contracts.abilities import LosesDisks
from shaketable.harness.contracts.plugins import Json, Launch, NodeLayout, Target
from shaketable.harness.runtime.processes.faketime import FakedTime
from shaketable.harness.runtime.processes.nodes import NodeProcess
from shaketable.harness.runtime.stored_logs import CountsLogs

STOP_GRACE_S = 5.0
READMIT_TIMEOUT_S = 12.0
"""Less than an undo may take, so that the error names the node that does not come back."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node as the world knows it: its place, its process, its clock if that is faked."""

    layout: NodeLayout
    process: NodeProcess
    clock: FakedTime | None = None


class Machines(Protocol):
    """Operations on the machines of nodes that lose their disks, in one world."""

    @property
    def layouts(self) -> Mapping[str, NodeLayout]:
        """Return where each node lives."""
        ...

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        ...

    def is_paused(self, node: str) -> bool:
        """True while its process is stopped."""
        ...

    async def lose(self, node: str, store: Path) -> Json:
        """Delete a dead node's store; return {"files", "bytes", "messages"}.

        Raises:
            HarnessError: the store cannot be counted or deleted.
        """
        ...

    async def empty(self, node: str, store: Path) -> None:
        """Delete a dead node's store (idempotent)."""
        ...

    async def launch(self, node: str, launch: Launch) -> None:
        """Start a node with this launch, now and from now on; stop it first if it runs."""
        ...


class Starter(Protocol):
    """Starts nodes and watches them."""

    def start(self, node: str) -> None:
        """Start a node that does not run."""
        ...


class ProcessMachines:
    """Implements `Machines` with processes, whose disks are local folders."""

    def __init__(self, members: Mapping[str, Member], starter: Starter, logs: CountsLogs) -> None:
        self._members = members
        self._starter = starter
        self._logs = logs

    @property
    def layouts(self) -> Mapping[str, NodeLayout]:
        """Return where each node lives."""
        return {node: member.layout for node, member in self._members.items()}

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        return self._members[node].process.is_running

    def is_paused(self, node: str) -> bool:
        """True while its process is stopped."""
        return self._members[node].process.is_paused

    async def lose(self, node: str, store: Path) -> Json:
        """Delete a dead node's store; see `Machines.lose`."""
        stored = await self._logs.count(self._members[node].layout)
        files = await trio.to_thread.run_sync(_delete, store)
        return {"files": files, "bytes": stored.bytes_, "messages": stored.messages}

    async def empty(self, node: str, store: Path) -> None:
        """Delete a dead node's store (idempotent)."""
        await trio.to_thread.run_sync(partial(shutil.rmtree, store, ignore_errors=True))

    async def launch(self, node: str, launch: Launch) -> None:
        """Start a node with this launch; see `Machines.launch`."""
        process = self._members[node].process
        process.launch = launch
        if process.is_running:
            await process.stop(STOP_GRACE_S)
        self._starter.start(node)


class Disks:
    """The state of the nodes' disks.

    Attributes:
        awaited: nodes that lost their disk and have not caught up yet.
    """

    def __init__(self, target: Target, machines: Machines) -> None:
        self.awaited: set[str] = set()
        self._target = target
        self._machines = machines
        self._lost: Counter[str] = Counter()

    def why_not_wiped(self, node: str) -> str | None:
        """Return why a node's disk must not be lost now; None if it may."""
        machines = self._machines
        missing = [
            other
            for other in machines.layouts
            if other != node
            and (
                not machines.is_running(other) or machines.is_paused(other) or other in self.awaited
            )
        ]
        if not machines.is_running(node) or node in self.awaited:
            return "it does not run"
        return self._known().why_not_now(node, missing)

    async def lose(self, node: str) -> Json:
        """Delete a dead node's store; return {"files", "bytes", "messages"}.

        If that fails, the node gets its empty disk at once: no undo knows that it is down.
        """
        store = self._begin(node)
        try:
            return await self._machines.lose(node, store)
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + READMIT_TIMEOUT_S):
                await self._machines.empty(node, store)
                await self.renew(node)
                await self.readmit(node)
            raise

    async def give_up(self, node: str) -> None:
        """Delete the store that a dead node refused (idempotent)."""
        await self._machines.empty(node, self._begin(node))

    async def renew(self, node: str) -> None:
        """Start a node without its disk in its new role, and others whose role changes."""
        layouts = self._machines.layouts
        launches = await self._known().renew(layouts, node, dict(self._lost))
        for other, launch in launches.items():
            await self._machines.launch(other, launch)

    async def readmit(self, node: str) -> None:
        """Wait until a restarted node has caught up; return at once if it has.

        Raises:
            IndefiniteError: it has not in time.
        """
        if node not in self.awaited:
            return
        layouts = self._machines.layouts
        await self._known().readmit(layouts, node, dict(self._lost), READMIT_TIMEOUT_S)
        self.awaited.discard(node)

    def _begin(self, node: str) -> Path:
        """Record that a node loses its disk; return its store."""
        self.awaited.add(node)
        self._lost[node] += 1
        return self._known().store(self._machines.layouts[node])

    def _known(self) -> LosesDisks:
        assert isinstance(self._target, LosesDisks), "the fault was not available"
        return self._target


def _delete(store: Path) -> int:
    """Delete everything; return the number of files."""
    files = sum(path.is_file() for path in store.rglob("*"))
    shutil.rmtree(store)
    return files

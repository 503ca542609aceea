"""Disks of a run's nodes that are lost, and how their nodes come back: one at a time.

A node without its disk is another one than before, also for its target: it is started again by
`renew` alone, in the way that the target says.
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
"""Less than an undo may take, so that a node which does not come back is told in its words."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node as the world knows it: where it lives, its process, its clock if that is faked."""

    layout: NodeLayout
    process: NodeProcess
    clock: FakedTime | None = None


class Machines(Protocol):
    """What is done to the machines of nodes whose disks are lost, in one world."""

    @property
    def layouts(self) -> Mapping[str, NodeLayout]:
        """Where each node lives."""
        ...

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        ...

    def is_paused(self, node: str) -> bool:
        """True while its process stands still."""
        ...

    async def lose(self, node: str, store: Path) -> Json:
        """Delete all that a dead node stored; return {"files", "bytes", "messages"}.

        Raises:
            HarnessError: it cannot be said what that was, or not be deleted.
        """
        ...

    async def empty(self, node: str, store: Path) -> None:
        """Delete whatever a dead node stored (idempotent)."""
        ...

    async def launch(self, node: str, launch: Launch) -> None:
        """Start a node in that way, now and from now on; one that runs is ended before."""
        ...


class Starter(Protocol):
    """What starts nodes and watches them."""

    def start(self, node: str) -> None:
        """Start a node that does not run."""
        ...


class ProcessMachines:
    """Implements `Machines` over processes, whose disks are folders of this machine."""

    def __init__(self, members: Mapping[str, Member], starter: Starter, logs: CountsLogs) -> None:
        self._members = members
        self._starter = starter
        self._logs = logs

    @property
    def layouts(self) -> Mapping[str, NodeLayout]:
        """Where each node lives."""
        return {node: member.layout for node, member in self._members.items()}

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        return self._members[node].process.is_running

    def is_paused(self, node: str) -> bool:
        """True while its process stands still."""
        return self._members[node].process.is_paused

    async def lose(self, node: str, store: Path) -> Json:
        """Delete all that a dead node stored; see `Machines.lose`."""
        stored = await self._logs.count(self._members[node].layout)
        files = await trio.to_thread.run_sync(_delete, store)
        return {"files": files, "bytes": stored.bytes_, "messages": stored.messages}

    async def empty(self, node: str, store: Path) -> None:
        """Delete whatever a dead node stored (idempotent)."""
        await trio.to_thread.run_sync(partial(shutil.rmtree, store, ignore_errors=True))

    async def launch(self, node: str, launch: Launch) -> None:
        """Start a node in that way; see `Machines.launch`."""
        process = self._members[node].process
        process.launch = launch
        if process.is_running:
            await process.stop(STOP_GRACE_S)
        self._starter.start(node)


class Disks:
    """What became of the nodes' disks.

    Attributes:
        awaited: nodes whose disk is gone, and that are not whole again yet.
    """

    def __init__(self, target: Target, machines: Machines) -> None:
        self.awaited: set[str] = set()
        self._target = target
        self._machines = machines
        self._lost: Counter[str] = Counter()

    def why_not_wiped(self, node: str) -> str | None:
        """Say why a node's disk must not be lost now, None if it may."""
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
        """Delete all that a dead node stored; return {"files", "bytes", "messages"}.

        If that fails the node gets its empty disk at once: nobody else knows that it is down.
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
        """Delete all that a dead node stored, which it refused (idempotent)."""
        await self._machines.empty(node, self._begin(node))

    async def renew(self, node: str) -> None:
        """Start a node without its disk in its new part, and others whose part changes."""
        layouts = self._machines.layouts
        launches = await self._known().renew(layouts, node, dict(self._lost))
        for other, launch in launches.items():
            await self._machines.launch(other, launch)

    async def readmit(self, node: str) -> None:
        """Wait until a node that was started again is whole; nothing if it is.

        Raises:
            IndefiniteError: it is not in time.
        """
        if node not in self.awaited:
            return
        layouts = self._machines.layouts
        await self._known().readmit(layouts, node, dict(self._lost), READMIT_TIMEOUT_S)
        self.awaited.discard(node)

    def _begin(self, node: str) -> Path:
        """Note that a node's disk goes; return its store."""
        self.awaited.add(node)
        self._lost[node] += 1
        return self._known().store(self._machines.layouts[node])

    def _known(self) -> LosesDisks:
        assert isinstance(self._target, LosesDisks), "the fault was not available"
        return self._target


def _delete(store: Path) -> int:
    """Delete all; return how many files there were."""
    files = sum(path.is_file() for path in store.rglob("*"))
    shutil.rmtree(store)
    return files

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

from harness.abilities import LosesDisks
from harness.plugins import Json, NodeLayout, Target
from harness.runtime.faketime import FakedTime
from harness.runtime.nodes import NodeProcess
from harness.runtime.stored_logs import CountsLogs

STOP_GRACE_S = 5.0
READMIT_TIMEOUT_S = 12.0
"""Less than an undo may take, so that a node which does not come back is told in its words."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node as the world knows it: where it lives, its process, its clock if that is faked."""

    layout: NodeLayout
    process: NodeProcess
    clock: FakedTime | None = None


class Starter(Protocol):
    """What starts nodes and watches them."""

    def start(self, node: str) -> None:
        """Start a node that does not run."""
        ...


class Disks:
    """What became of the nodes' disks.

    Attributes:
        awaited: nodes whose disk is gone, and that are not whole again yet.
    """

    def __init__(
        self,
        target: Target,
        members: Mapping[str, Member],
        starter: Starter,
        logs: CountsLogs,
    ) -> None:
        self.awaited: set[str] = set()
        self._logs = logs
        self._target = target
        self._members = members
        self._starter = starter
        self._lost: Counter[str] = Counter()

    def why_not_wiped(self, node: str) -> str | None:
        """Say why a node's disk must not be lost now, None if it may."""
        missing = [
            other
            for other, member in self._members.items()
            if other != node
            and (not member.process.is_running or member.process.is_paused or other in self.awaited)
        ]
        if not self._members[node].process.is_running or node in self.awaited:
            return "it does not run"
        return self._known().why_not_now(node, missing)

    async def lose(self, node: str) -> Json:
        """Delete all that a dead node stored; return {"files", "bytes", "messages"}.

        If that fails the node gets its empty disk at once: nobody else knows that it is down.
        """
        layout = self._members[node].layout
        self.awaited.add(node)
        self._lost[node] += 1
        store = self._known().store(layout)
        try:
            stored = await self._logs.count(layout)
            files = await trio.to_thread.run_sync(_delete, store)
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + READMIT_TIMEOUT_S):
                await _empty(store)
                await self.renew(node)
                await self.readmit(node)
            raise
        return {"files": files, "bytes": stored.bytes_, "messages": stored.messages}

    async def give_up(self, node: str) -> None:
        """Delete all that a dead node stored, which it refused (idempotent)."""
        layout = self._members[node].layout
        self.awaited.add(node)
        self._lost[node] += 1
        await _empty(self._known().store(layout))

    async def renew(self, node: str) -> None:
        """Start a node without its disk in its new part, and others whose part changes."""
        launches = await self._known().renew(self._layouts(), node, dict(self._lost))
        for other, launch in launches.items():
            process = self._members[other].process
            process.launch = launch
            if process.is_running:
                await process.stop(STOP_GRACE_S)
            self._starter.start(other)

    async def readmit(self, node: str) -> None:
        """Wait until a node that was started again is whole; nothing if it is.

        Raises:
            IndefiniteError: it is not in time.
        """
        if node not in self.awaited:
            return
        await self._known().readmit(self._layouts(), node, dict(self._lost), READMIT_TIMEOUT_S)
        self.awaited.discard(node)

    def _known(self) -> LosesDisks:
        assert isinstance(self._target, LosesDisks), "the fault was not available"
        return self._target

    def _layouts(self) -> dict[str, NodeLayout]:
        return {node: member.layout for node, member in self._members.items()}


async def _empty(store: Path) -> None:
    await trio.to_thread.run_sync(partial(shutil.rmtree, store, ignore_errors=True))


def _delete(store: Path) -> int:
    """Delete all; return how many files there were."""
    files = sum(path.is_file() for path in store.rglob("*"))
    shutil.rmtree(store)
    return files

"""The disks of simulated nodes, for `harness.runtime.disks`: what is lost there is memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import trio

from shaketable.harness.errors import HarnessError
from shaketable.harness.plugins import Json, Launch, NodeLayout
from shaketable.harness.runtime.disks import STOP_GRACE_S
from shaketable.harness.runtime.questions import wait_until
from shaketable.harness.runtime.stored_logs import Stored, count_log
from shaketable.harness.simulation import SimulatedGroup


class SimulatedMachines:
    """Implements `harness.runtime.disks.Machines` over a simulated group."""

    def __init__(self, group: SimulatedGroup) -> None:
        self._group = group

    @property
    def layouts(self) -> Mapping[str, NodeLayout]:
        """Where each node lives."""
        return self._group.layouts

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        return self._group.is_running(node)

    def is_paused(self, node: str) -> bool:
        """True while its process stands still."""
        return self._group.is_paused(node)

    async def lose(self, node: str, store: Path) -> Json:
        """Empty a dead node's disk; see `Machines.lose`. No time passes for the world."""
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
        """Start a node in that way; see `Machines.launch`."""
        group = self._group
        if group.is_running(node):
            group.stop(node)
            if not await wait_until(lambda: not group.is_running(node), STOP_GRACE_S):
                group.kill(node)
        group.configure(node, launch)
        group.start(node)

"""The world of groups on other machines: nodes are started and ended there, by OpenSSH.

Faults are those of the world of groups that run already, by scripts of ours in place of the user's
commands. Their effect is seen on the host: processes that are gone or stopped, bytes that were
dropped.

Source: jepsen.core `run!` on nodes that SSH reaches; docs/your-own-system.md.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Final

import trio

from shaketable.harness.campaigns.campaign import Campaign, faults_of, target_of
from shaketable.harness.contracts.abilities import RunsOnHosts
from shaketable.harness.contracts.capabilities import Capability, Link
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import UNTOUCHED, Json, NodeStatus
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.discovery import get
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.run_markers import scratch_prefix
from shaketable.harness.runtime.clients.workers import plan_workers
from shaketable.harness.runtime.existing_world import (
    ExistingWorld,
    Strike,
    each_of,
    run_name,
)
from shaketable.harness.runtime.facts import wall_clock
from shaketable.harness.runtime.hosts.group import HostGroup
from shaketable.harness.runtime.hosts.ssh import UnreachableError
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import Observer
from shaketable.harness.runtime.processes.nodes import Exit
from shaketable.harness.runtime.rig import Rig, open_records

LOOK_AGAIN_AFTER_S: Final = 1.0
"""A host is asked so often at most what became of a node that does not answer."""
EXITS_KEPT_MAX: Final = 1_000
NO_TRACE: Final = "it is gone with its shell: killed there, or the host was started anew"


class HostsWorld(ExistingWorld):
    """Implements `contracts.plugins.World` by scripts on other machines.

    Args:
        group: the nodes, looked at and not started.
        folder: the run's folder.
        status_log: receives changes of role and term.
        observer: is notified of events.
        start_ns: the run's start on CLOCK_MONOTONIC.
    """

    sees_answers_only = False
    count_every_s = 0.05  # a short fault is over soon, and a script takes 0.1 s

    def __init__(
        self,
        group: HostGroup,
        folder: RunFolder,
        status_log: Lines,
        observer: Observer,
        start_ns: int,
    ) -> None:
        super().__init__(group, group.layouts, status_log, observer, start_ns)
        self._group, self._folder, self._start_ns = group, folder, start_ns
        self._last_lines = dict.fromkeys(self.nodes, "")
        self._looking: set[str] = set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the nodes, poll them until cancelled; at the end nothing of the run is left."""
        try:
            await self._group.start_all()
        except BaseException:  # also when cancelled: some may have been started
            with trio.CancelScope(shield=True):
                await self._at_end()
            raise
        await super().run(task_status=task_status)

    async def _at_end(self) -> None:
        """End what `stop_all` did not: the run was cut off, or a host could not be reached."""
        self.group_status.is_ending = True
        was_left = bool(self._group.left)
        await self._group.end(gently=False)
        for line in self.remarks():
            self._observer.note(line)
        if was_left and not self._group.left:
            self._observer.note("all hosts are clean now")

    async def stop_all(self) -> None:
        """Stop all nodes gracefully, then by SIGKILL; fetch their output, clean their hosts."""
        self.group_status.is_ending = True
        await self._group.end(gently=True)

    def last_line(self, node: str) -> str:
        """Return the last line of the node's output when its host was asked last."""
        return self._last_lines[node]

    def explain(self, ended: Exit) -> str:
        """Describe in one line how a node ended by itself, and where to read more."""
        return f"node {ended} (see nodes/{ended.node}/node.log when the run is over)"

    def remarks(self) -> tuple[str, ...]:
        """Return which nodes may still run on their hosts: `heal` ends them."""
        return tuple(
            f"{node} may still run on its host ({why}); end it by: {PROGRAM} heal"
            f" {self._folder.path}"
            for node, why in self._group.left.items()
        )

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        """Cut the power of nodes, all at once; see `LosesPower.lose_power`.

        No event of a node is seen here, so it is cut at once.
        """
        printed: dict[str, str | None] = {}

        async def strike(node: str) -> None:
            printed[node] = await self._cut_power(node)

        await each_of(nodes, strike)
        lost = {
            node: dict(line.split() for line in text.splitlines())
            for node, text in printed.items()
            if text
        }
        return {
            "incarnations": {
                node: UNTOUCHED if text is None else self._incarnation[node]
                for node, text in printed.items()
            },
            "lost_bytes": {node: int(of["lost_bytes"]) for node, of in lost.items()},
            "lost_entries": {node: int(of["lost_entries"]) for node, of in lost.items()},
        }

    async def _cut_power(self, node: str) -> str | None:
        """Cut a node's power; return what was printed, None if the node is down."""
        async with self._turns[node]:
            if node in self._down:
                return None
            self._down[node] = Strike()
            self._ended.add(node)
            return await self._strike("power", node, self._down[node], self._start)

    async def _ask(self, node: str) -> NodeStatus | None:
        status = await super()._ask(node)
        if status is None and self._nursery is not None and node not in self._looking:
            self._nursery.start_soon(self._look_at, node)
        return status

    async def _look_at(self, node: str) -> None:
        """Find out on its host what became of a node that does not answer."""
        incarnation = self.incarnation(node)
        self._looking.add(node)
        try:
            state, _, last = (await self._group.act("state", node)).partition("\n")
        except UnreachableError:  # it was told; nothing is known of the node
            await trio.sleep(LOOK_AGAIN_AFTER_S)
        except HarnessError as error:
            self._observer.note(f"the state of {node} is not known: {error}")
            await trio.sleep(LOOK_AGAIN_AFTER_S)
        else:
            self._last_lines[node] = last.strip()
            is_struck = node in self._down or node in self._paused
            is_over = (
                is_struck or self.group_status.is_ending or incarnation != self.incarnation(node)
            )
            if not is_over and state not in ("running", "paused"):
                self._note_end(node, incarnation, state)
            await trio.sleep(LOOK_AGAIN_AFTER_S)
        finally:
            self._looking.discard(node)

    def _note_end(self, node: str, incarnation: int, state: str) -> None:
        """Record that a node has ended by itself; at the end of the faults it is started again."""
        self._down[node] = Strike(is_done=True, is_seen=True)
        self.group_status.learn(node, None)
        code = state.removeprefix("ended ")
        status = int(code) if code.isdecimal() else 128 + signal.SIGKILL
        last = self._last_lines[node] if code.isdecimal() else NO_TRACE
        ended = Exit(
            node=node,
            incarnation=incarnation,
            returncode=128 - status if status > 128 else status,  # as subprocess has it
            asked=False,
            last_line=last,
            at_ns=monotonic_ns() - self._start_ns,
        )
        if len(self.exits) < EXITS_KEPT_MAX:
            self.exits.append(ended)
            self._observer.note(self.explain(ended))

    async def _dropped_by(self, links: Sequence[Link]) -> dict[Link, int]:
        """Ask each host once what it has dropped."""
        dropped: dict[Link, int] = {}
        for to in sorted({to for _, to in links}):
            by_sender = await self._group.dropped(to)
            dropped |= {link: by_sender.get(link[0], 0) for link in links if link[1] == to}
        return dropped


async def build(
    campaign: Campaign, folder: RunFolder, observer: Observer, *, command: Sequence[str] = ()
) -> Rig:
    """Look at the hosts, and assemble a run on them; start nothing.

    Args: as for `rig.build`.

    Raises:
        UsageError: the campaign leaves no room for its faults, or none of them is available.
        HarnessError: a host cannot be used, or a file cannot be written.
    """
    target = target_of(campaign)
    assert isinstance(target, RunsOnHosts), "looked at when the campaign was resolved"
    start_ns = monotonic_ns()

    def now_ns() -> int:
        return monotonic_ns() - start_ns

    scratch = Path(tempfile.mkdtemp(prefix=scratch_prefix("ssh")))
    let_go = partial(shutil.rmtree, scratch, ignore_errors=True)
    try:
        run = run_name(folder, start_ns)
        needs = {need for fault in faults_of(campaign) for need in get("faults", fault).needs}
        has_disks = Capability.POWER in needs
        group = HostGroup(run, target.hosts, folder, observer.note, scratch, has_disks=has_disks)
        target.lacks.update(await group.check(target))
        records = open_records(campaign, target, folder, command, now_ns, start_ns, monotonic_ns)
    except BaseException:
        let_go()
        raise
    records.facts.update(clock=wall_clock(now_ns))
    world = HostsWorld(group, folder, records.status_log, observer, start_ns)
    clients = {node: layout.client_address for node, layout in group.layouts.items()}
    plans = plan_workers(campaign, folder, clients, start_ns)
    return records.rig(
        observer, world, plans, services=(group.keep_connected, world.run),
        let_go=let_go, restore_late=world.put_back,
    )  # fmt: skip

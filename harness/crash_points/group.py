"""One group on volatile disks, made anew for each point: runs a workload, loses power, comes back.

Its addresses, links and disks stay; its folder, files and processes do not. The run's folder is as
that of a campaign with the one fault `power`, so that it is judged and shown like any other.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from time import monotonic_ns
from typing import Final

import trio

from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import clients, promises_of, target_of, workload_options
from shaketable.harness.contracts.abilities import (
    HasVolatileDisk,
    LosesDisks,
    SteersNodes,
    TakesOptions,
)
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Launch, NodeLayout, Target
from shaketable.harness.crash_points.course import Course, Ending, Plan
from shaketable.harness.crash_points.points import Point
from shaketable.harness.history.run_folder import RunFolder, write_atomically
from shaketable.harness.history.segments import Recorder
from shaketable.harness.runtime import sites
from shaketable.harness.runtime.clients.tasks import TaskWorkers
from shaketable.harness.runtime.clients.worker import WorkerPlan
from shaketable.harness.runtime.facts import RunFacts, describe, wall_clock
from shaketable.harness.runtime.ledger import Ledger, Lines
from shaketable.harness.runtime.nemesis import Nemesis
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.processes.disks import Member
from shaketable.harness.runtime.processes.nodes import NodeProcess
from shaketable.harness.runtime.rig import (
    Rig,
    beside_nodes,
    configure_name_servers,
    node_options,
    note_in_ledger,
)
from shaketable.harness.runtime.supervisor import one_line
from shaketable.harness.runtime.world import ProcessWorld
from shaketable.harness.volatile_disk.disk import KEPT, LOG, VolatileDisk

WORKER: Final = "worker-0"
CLOSE_TIMEOUT_S: Final = 5.0
END_TIMEOUT_S: Final = 30.0


def disk_of(target: Target, layout: NodeLayout) -> Path:
    """Return the folder with all that a node stores, where its disk is mounted.

    Raises:
        UsageError: the target does not say which it is.
    """
    if isinstance(target, HasVolatileDisk):
        return target.disk(layout)
    if isinstance(target, LosesDisks):
        return target.store(layout)
    raise UsageError(
        f"--target {target.name}: nothing says in which folder its nodes keep their data; for a"
        ' target of shaketable.toml: disk = "volatile"'
    )


class Group:
    """A group in `folder`; `open` it, let `network` run, and `run` it again and again.

    All methods are for the main thread, and one trio task at a time.
    """

    def __init__(self, plan: Plan, folder: RunFolder) -> None:
        self.folder = folder
        self._plan = plan
        self._campaign = plan.campaign
        self._target = _own(target_of(plan.campaign))
        self._disks: dict[str, VolatileDisk] = {}
        self._opened = ExitStack()
        # Its own disk would lose what is not synced by itself, and count its calls by itself.
        options = {**node_options(self._campaign), "steering": False, "spares": False}
        if isinstance(self._target, SteersNodes):
            options["disk"] = "real"
        folder.nodes.mkdir(parents=True)
        beside = beside_nodes(self._campaign)
        self._site = sites.lay_out(self._campaign, folder, None, options, beside)
        self._opened.callback(self._site.network.close)
        self.network = self._site.network.run
        """Carries the bytes among its nodes, until cancelled: a service of trio's kind."""

    def open(self) -> None:
        """Mount the disks. Raises HarnessError: they cannot be."""
        for node, layout in self._site.layouts.items():
            folder = disk_of(self._target, layout)
            folder.mkdir(parents=True)
            self._disks[node] = VolatileDisk(node, folder)
            self._opened.callback(self._disks[node].close)
        for disk in self._disks.values():
            disk.ready()

    def close(self) -> None:
        """Close disks and links (idempotent)."""
        self._opened.close()

    async def run(self, point: Point | None, repeat: str = "") -> Ending:
        """Run the workload on empty disks, up to `point` or to its end; its folder stays.

        `repeat` is the command that does it again, for the record.

        Raises:
            HarnessError: the harness could not do it.
        """
        self._target = _own(target_of(self._campaign))
        launches = self._make_anew()
        rig, course = self._assemble(point, launches)
        rig.facts.update(repeat=repeat)
        segments: dict[str, int | None] = {}
        try:
            with one_line():
                async with trio.open_nursery() as nursery:
                    for service in rig.services:
                        await nursery.start(service)
                    try:
                        await course.run()
                    finally:
                        segments = await _end(rig)
                    nursery.cancel_scope.cancel()
            segments["nemesis.seg"] = rig.recorder.close()
            rig.facts.update(segments=segments, stalls=rig.workers.stalls())
            _conclude(rig, course.ending)
        finally:
            rig.close()
        return course.ending

    def keep(self, folder: Path) -> None:
        """Copy all that the last run has left; its nodes have ended.

        Raises:
            OSError: it cannot be copied.
        """
        disks = {disk.folder.parent for disk in self._disks.values()}

        def left_out(where: str, names: list[str]) -> list[str]:
            here = Path(where)
            ours = {KEPT, LOG} if here in disks else set()
            return [name for name in names if name in ours or not _is_plain(here / name)]

        shutil.copytree(self.folder.path, folder, ignore=left_out, symlinks=True)

    def _make_anew(self) -> Mapping[str, Launch]:
        """Delete all of the last run, and configure the nodes for a first start on empty disks."""
        for path in self.folder.path.iterdir():
            if path != self.folder.nodes:
                _delete(path)
        self.folder.segments.mkdir(parents=True)
        write_atomically(self.folder.campaign_toml, campaigns.to_toml(self._campaign))
        write_atomically(self.folder.schedule_json, "[]")
        launches = {}
        for node, layout in self._site.layouts.items():
            disk = self._disks[node]
            keeps = (disk.folder, disk.folder.with_name(KEPT), disk.log)
            for path in layout.directory.iterdir():
                if path not in keeps:
                    _delete(path)
            with disk.detached():
                for path in disk.folder.iterdir():
                    _delete(path)
                launches[node] = self._target.prepare(layout)
        return launches

    def _assemble(self, point: Point | None, launches: Mapping[str, Launch]) -> tuple[Rig, Course]:
        """Assemble the parts of a run; start nothing."""
        start_ns = monotonic_ns()
        folder, campaign, target, site = self.folder, self._campaign, self._target, self._site
        promises = promises_of(campaign, target) or target.promises
        breaks = None if campaign.mutant is None else target.mutants.get(campaign.mutant)
        known = describe(campaign, promises, [], breaks)

        def now_ns() -> int:
            return monotonic_ns() - start_ns

        facts = RunFacts(folder.run_json, known, now_ns)
        facts.update(clock=wall_clock(now_ns))
        ledger, status_log = Ledger(folder.faults_jsonl, now_ns), Lines(folder.status_jsonl)
        recorder = Recorder(folder.segment("nemesis"), start_ns, monotonic_ns)
        observer = SilentObserver()
        helpers = configure_name_servers(target, site, folder, start_ns, campaign.mutant)
        members = {
            node: Member(layout, self._process(layout, launches[node], start_ns), None, disk)
            for (node, layout), disk in zip(site.layouts.items(), self._disks.values(), strict=True)
        }
        note_in_ledger(ledger, site, members, helpers)
        world = ProcessWorld(target, members, site.network, status_log, observer, start_ns, helpers)
        workers = TaskWorkers(self._worker_plan(start_ns))
        nemesis = Nemesis({}, world, ledger, recorder.nemesis, observer, now_ns)
        rig = Rig(
            campaign=campaign, folder=folder, clock_ns=monotonic_ns, observer=observer, facts=facts,
            world=world, workers=workers, services=(world.run, workers.run), collect=_nothing,
            nemesis=nemesis, schedule=(), recorder=recorder, ledger=ledger, logs=(status_log,),
            let_go=_nothing,
        )  # fmt: skip
        return rig, Course(self._plan, point, rig, world, members, workers)

    def _process(self, layout: NodeLayout, launch: Launch, start_ns: int) -> NodeProcess:
        node = layout.node
        prefix = self._disks[node].enter_command(layout.directory)
        log = self.folder.node_log(node)
        return NodeProcess(node, launch, layout.directory, log, start_ns, prefix)

    def _worker_plan(self, start_ns: int) -> WorkerPlan:
        """Return the plan of the one worker that has all clients."""
        campaign = self._campaign
        assert campaign.seed is not None, "operations are drawn from a seed"
        count = clients(campaign)
        layouts = self._site.layouts.items()
        return WorkerPlan(
            name=WORKER,
            target=campaign.target,
            option=campaign.option,
            workload=campaign.workload,
            seed=campaign.seed,
            addresses={node: layout.client_address for node, layout in layouts}
            | dict(self._site.name_servers),
            slots=tuple(range(count)),
            clients=count,
            rate_hz=campaign.rate_hz,
            think_time_s=campaign.think_time_s,
            op_timeout_s=campaign.op_timeout_s,
            start_ns=start_ns,
            segment=self.folder.segment(WORKER),
            parent_pid=os.getpid(),
            options=workload_options(campaign),
            mutant=campaign.mutant,
        )


async def _end(rig: Rig) -> dict[str, int | None]:
    """Close the clients' recordings and end the nodes, shielded but bounded."""
    segments: dict[str, int | None] = {}
    with trio.CancelScope(shield=True, deadline=trio.current_time() + END_TIMEOUT_S):
        segments = await rig.workers.close(CLOSE_TIMEOUT_S)
        rig.world.group_status.is_ending = True
        async with trio.open_nursery() as nursery:
            for node in rig.world.nodes:
                nursery.start_soon(rig.world.kill, node)
    return segments


def _conclude(rig: Rig, ending: Ending) -> None:
    """Complete the facts of the run, as of any other (`harness.runtime.supervisor`)."""
    took_effect = int(bool(ending.node))
    done = {"applied": took_effect, "bit": took_effect, "failed": 0, "stuck": 0, "left_out": 0}
    back = "" if ending.serves else "the group did not serve after the power loss"
    rig.facts.update(
        status="complete",
        counts=asdict(rig.workers.counts()),
        faults_done={"planned": took_effect, **done},
        leader_changes=rig.world.group_status.leader_changes,
        drained=ending.drained,
        exits=[asdict(ended) for ended in rig.world.exits],
        broken=[],
        left=[],
        problems=[*filter(None, (back,)), *map(str, rig.world.exits)],
    )


def _own(target: Target) -> Target:
    """Return a target without what it has learnt of another group, or of an earlier run."""
    return target.configured({}) if isinstance(target, TakesOptions) else target


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _is_plain(path: Path) -> bool:
    """True for what can be copied: a socket or a pipe that a node has left cannot."""
    return path.is_symlink() or path.is_dir() or path.is_file()


def _nothing() -> None:
    """Do nothing: nodes write into the run's folder, and its site stays."""

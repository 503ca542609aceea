"""One group on volatile disks, made anew for each point, and the course of its run.

A group starts, clients work, power is lost at a call, it comes back. Its addresses, links and disks
stay; its folder, files and processes do not. The run's folder is as that of a campaign with the one
fault `power`, so that it is judged and shown like any other.

Source: ALICE's workload and checker (OSDI 2014), for a group of processes: the checker is the one
of histories, and nodes have to start again, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Final

import trio

from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import (
    Campaign,
    clients,
    promises_of,
    target_of,
    workload_options,
)
from shaketable.harness.contracts.abilities import (
    HasVolatileDisk,
    LosesDisks,
    SteersNodes,
    TakesOptions,
)
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Json, Launch, NodeLayout, Target
from shaketable.harness.crash_points.points import Point
from shaketable.harness.history.run_folder import RunFolder, write_atomically
from shaketable.harness.history.segments import Recorder
from shaketable.harness.runtime import phases, sites
from shaketable.harness.runtime.clients.worker import WorkerPlan
from shaketable.harness.runtime.clients.workers import TaskWorkers
from shaketable.harness.runtime.facts import RunFacts, describe, wall_clock
from shaketable.harness.runtime.group_status import wait_until
from shaketable.harness.runtime.ledger import Ledger, Lines
from shaketable.harness.runtime.nemesis import Nemesis
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.processes.disks import Member
from shaketable.harness.runtime.processes.nodes import MARK, NodeProcess
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
from shaketable.harness.volatile_disk.requests import CHANGING

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
    done = {
        "applied": took_effect,
        "took_effect": took_effect,
        "failed": 0,
        "stuck": 0,
        "left_out": 0,
    }
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


# The course of one run.

POLL_S: Final = 0.01
READY_TIMEOUT_S: Final = 30.0
"""How long a new group may take until it serves."""
WORK_TIMEOUT_S: Final = 30.0
"""How long clients may take until the point is reached."""
OPERATIONS_FACTOR: Final = 4
"""A point comes after so many times the operations that it was counted with, or is not reached."""
BACK_TIMEOUT_S: Final = 20.0
"""How long a group may take after the power loss until it serves again."""
AFTER_S: Final = 0.3
"""How long clients go on after the group serves again: what was written wrong may show then."""
AFTER_OPERATIONS: Final = 8
"""So many operations must be done then: after a crash at the start nothing else was."""
AFTER_TIMEOUT_S: Final = 5.0
"""But they are not waited for any longer; the checkers say that it is too little."""
LAST_READS_S: Final = 5.0
"""How long a group that does not serve again is asked for what it still has."""
LAST_LINES_MAX: Final = 12
LOG_TAIL_BYTES: Final = 16 << 10
POWER: Final = "power"
ALL: Final = "all"
LEADER: Final = "leader"
TRIP: Final = 1
"""The number of the only trip of a disk."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all points of a command share.

    Attributes:
        campaign: resolved; its faults are POWER alone.
        victims: which nodes lose power: ALL, LEADER, or one by name.
        counted: the node whose calls are counted, unless the leader's are.
        operations: how many operations the workload has.
    """

    campaign: Campaign
    victims: str
    counted: str
    operations: int


@dataclass(slots=True)
class Ending:
    """How a run went.

    Attributes:
        calls: how many calls of each kind the counted node made, if power was not to be lost.
        node: the node at whose call power was lost; "" if the point was not reached.
        path: the file or folder of that call, on the node's disk; "" if it has no name.
        lost_bytes: bytes that were not synced, on all victims.
        lost_entries: names in folders that were not synced, on all victims.
        ended: the victims that ended by themselves when they were started again.
        serves: whether the group served again; of a group without a crash, at all.
        drained: whether clients read all at the end, and the nodes agreed.
        last_lines: the last lines of the log of a victim, if the group does not serve again.
    """

    calls: Mapping[str, int] = field(default_factory=dict)
    node: str = ""
    path: str = ""
    lost_bytes: int = 0
    lost_entries: int = 0
    ended: tuple[str, ...] = ()
    serves: bool = True
    drained: bool = False
    last_lines: tuple[str, ...] = ()


class Course:
    """One run of a group that has not been started yet.

    Args:
        plan: what it shares with others.
        point: where power is lost; None: nowhere, its calls are counted.
        rig: its parts; the world runs when `run` is called.
        members: its nodes, each with a disk.
        workers: its clients.
    """

    def __init__(
        self,
        plan: Plan,
        point: Point | None,
        rig: Rig,
        world: ProcessWorld,
        members: Mapping[str, Member],
        workers: TaskWorkers,
    ) -> None:
        self.ending = Ending()
        self._plan = plan
        self._point = point
        self._rig = rig
        self._world = world
        self._members = members
        self._workers = workers
        self._counted = plan.counted
        self._before: Mapping[str, int] = {}

    async def run(self) -> None:
        """Run it; `ending` says how it went."""
        rig = self._rig
        if self._plan.victims != LEADER:
            self._arm()
        with self._phase("setup"):
            since = trio.current_time()
            self._world.start_all()
            await rig.workers.start(READY_TIMEOUT_S)
            self.ending.serves = await self._until(lambda: self._serves(since), READY_TIMEOUT_S)
        if self._plan.victims == LEADER and not self._world.exits:
            self._counted = await self._world.leader() or self._counted
            self._arm()
        with self._phase("steady"):
            await rig.workers.generate()
            await self._until(self._has_worked, WORK_TIMEOUT_S)
        if self._point is None:
            self.ending.calls = self._calls()
        elif self._is_off():
            self.ending.node = self._counted
            await self._lose_power(self._point)
        if all(not self._world.is_running(node) for node in self._members):
            return  # nothing can be read
        with self._phase("drain"):
            limit_s = float("inf") if self.ending.serves else LAST_READS_S
            with trio.move_on_after(limit_s):
                self.ending.drained = await phases.drain(rig)

    # ---- up to the point ------------------------------------------------------------------------

    def _arm(self) -> None:
        """Let the counted node end at the point; count its calls from now on."""
        disk, process = self._disk(self._counted), self._members[self._counted].process
        disk.order()  # a trip of the same number would go on counting
        self._before = disk.calls()
        if self._point is None:
            return
        trip = {"number": TRIP, "call": self._point.call, "nth": self._point.nth}
        pid = process.pid
        disk.order(trips=[trip if pid is None else {**trip, "pid": pid}])
        registered = process.on_start

        def started(node: str, pid: int) -> None:
            registered(node, pid)
            if not self.ending.node:
                disk.order(trips=[{**trip, "pid": pid}])

        process.on_start = started
        first = max(1, process.incarnation)
        process.excuse(self, lambda incarnation: incarnation == first and self._is_off())

    def _is_off(self) -> bool:
        """True once the counted node has lost power."""
        if self._point is None:
            return False
        if self.ending.node:
            return True
        process = self._members[self._counted].process
        return not process.is_running and self._disk(self._counted).tripped() is not None

    def _serves(self, since: float) -> bool:
        is_over = self._is_off() or bool(self._world.exits)
        return is_over or self._world.group_status.is_ready(since)

    def _has_worked(self) -> bool:
        factor = 1 if self._point is None else OPERATIONS_FACTOR
        is_over = self._is_off() or bool(self._world.exits)
        return is_over or self._workers.operations >= factor * self._plan.operations

    def _calls(self) -> dict[str, int]:
        now = self._disk(self._counted).calls()
        counted = {name: now.get(name, 0) - self._before.get(name, 0) for name in CHANGING}
        return {name: count for name, count in counted.items() if count}

    # ---- the power loss -------------------------------------------------------------------------

    async def _lose_power(self, point: Point) -> None:
        """Let all victims lose power, start them again, and wait until the group serves."""
        ending, rig = self.ending, self._rig
        ending.path = self._disk(self._counted).tripped() or ""
        victims = list(self._members) if self._plan.victims == ALL else [self._counted]
        where = f" ({ending.path})" if ending.path else ""
        who = "all nodes" if self._plan.victims == ALL else self._counted
        what = f"power loss of {who} at {point.call} {point.nth} of {self._counted}{where}"
        plan: Json = {
            "variant": self._plan.victims, "order": list(self._members), "victims": victims,
            "leader": None, "on": str(point),
        }  # fmt: skip
        event: Json = {"fault": 0, "plan": plan, "description": what}
        with self._phase("chaos"):
            rig.ledger.applying(0, POWER, plan)
            event["began_ns"] = rig.facts.now_ns()
            async with trio.open_nursery() as nursery:
                for node in victims:
                    nursery.start_soon(self._world.kill, node)
            incarnations = {node: self._members[node].process.incarnation for node in victims}
            rig.ledger.applied(0, {"incarnations": incarnations})
            rig.recorder.nemesis(POWER, {**event, "phase": "start"})
            for node in victims:
                lost = self._disk(node).lose()
                ending.lost_bytes += lost["bytes"]
                ending.lost_entries += lost["entries"]
            for node in victims:
                self._world.start(node)
            rig.ledger.undone(0)
            lost_too = f"{ending.lost_bytes:,} bytes and {ending.lost_entries:,} names"
            measures = {"killed": len(victims), "lost_bytes": ending.lost_bytes}
            stopped = {
                "took_effect": True,
                "evidence": f"unsynced: {lost_too}",
                "measures": measures,
            }
            rig.recorder.nemesis(POWER, {**event, "phase": "stop", **stopped})
        with self._phase("heal"):
            await self._come_back(victims)

    async def _come_back(self, victims: Sequence[str]) -> None:
        """Wait until the group serves again, or a victim has ended by itself."""
        world, since = self._world, trio.current_time()
        world.group_status.undisturbed_s = since

        def is_over() -> bool:
            return bool(self._down(victims)) or world.group_status.is_ready(since)

        is_in_time = await self._until(is_over, BACK_TIMEOUT_S)
        if is_in_time and not self._down(victims):
            wanted = self._workers.succeeded + AFTER_OPERATIONS
            await trio.sleep(AFTER_S)
            await self._until(lambda: self._workers.succeeded >= wanted, AFTER_TIMEOUT_S)
        self.ending.ended = self._down(victims)
        self.ending.serves = is_in_time and not self.ending.ended
        if not self.ending.serves:
            shown = (*self.ending.ended, self._counted)[0]
            self.ending.last_lines = last_lines(self._members[shown].process.log)

    def _down(self, victims: Sequence[str]) -> tuple[str, ...]:
        return tuple(node for node in victims if not self._members[node].process.is_running)

    # ---- tools ----------------------------------------------------------------------------------

    def _disk(self, node: str) -> VolatileDisk:
        disk = self._members[node].disk
        assert disk is not None, "each node of such a group has one"
        return disk

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        with self._rig.facts.phase(name):
            yield

    async def _until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        return await wait_until(is_so, timeout_s, POLL_S)


def last_lines(log: Path) -> tuple[str, ...]:
    """Return the last lines of a node's last incarnation, without the harness's own."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith(MARK) and " starts " in line]
    own = lines[starts[-1] + 1 if starts else 0 :]
    kept = [line.rstrip() for line in own if line.strip() and not line.startswith(MARK)]
    return tuple(kept[-LAST_LINES_MAX:])

"""Disks of a run's nodes: lost or damaged, and how these nodes come back, one at a time.

A node without its disk is a different member, for its target too: only `renew` starts it again, in
the way that the target defines.
"""

from __future__ import annotations

import filecmp
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, Protocol

import trio

from shaketable.harness.contracts.abilities import (
    DurableRange,
    LosesDisks,
    NoticesDamage,
    StoresFiles,
)
from shaketable.harness.contracts.capabilities import Damage
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Json, Launch, NodeLayout, Target
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.runtime.processes.faketime import FakedTime
from shaketable.harness.runtime.processes.nodes import NodeProcess
from shaketable.harness.runtime.stored_logs import CountsLogs
from shaketable.harness.volatile_disk.disk import VolatileDisk

STOP_GRACE_S = 5.0
DISKS_POLL_S = 0.25
READMIT_TIMEOUT_S = 12.0
"""Less than an undo may take, so that the error names the node that does not come back."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node as the world knows it: its place and process, and what the harness gave to it.

    Attributes:
        clock: its clock, if that is faked.
        disk: its disk, if that loses what was not synced.
    """

    layout: NodeLayout
    process: NodeProcess
    clock: FakedTime | None = None
    disk: VolatileDisk | None = None

    @contextmanager
    def files_at_hand(self) -> Iterator[None]:
        """Let the dead node's files be changed in the body of `with`."""
        with nullcontext() if self.disk is None else self.disk.detached():
            yield

    def make_anew(self, store: Path) -> None:
        """Make the folder of a store that was deleted, where only this moment allows it."""
        if self.disk is not None:
            store.mkdir(exist_ok=True)


async def watch_disks(
    members: Mapping[str, Member],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Watch the processes of disks until cancelled.

    Raises:
        HarnessError: one ended by itself: its node cannot write any more.
    """
    disks = [member.disk for member in members.values() if member.disk is not None]
    task_status.started()
    while True:
        await trio.sleep(DISKS_POLL_S)
        for disk in disks:
            why = disk.why_ended()
            if why is not None:
                raise HarnessError(f"{why}; its errors are in {disk.log}")


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
        """Delete a dead node's store; return {"files", "bytes", "messages", "has_log"}.

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
    """Implements `Machines` with processes, whose disks are local folders.

    `logs` counts what is stored; None for a target whose logs cannot be read.
    """

    def __init__(
        self, members: Mapping[str, Member], starter: Starter, logs: CountsLogs | None
    ) -> None:
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
        member = self._members[node]
        stored = None if self._logs is None else await self._logs.count(member.layout)
        with member.files_at_hand():
            files, size = await trio.to_thread.run_sync(_delete, store)
            member.make_anew(store)
        if stored is None:
            return {"files": files, "bytes": size, "messages": 0, "has_log": False}
        return {
            "files": files, "bytes": stored.bytes_, "messages": stored.messages, "has_log": True
        }  # fmt: skip

    async def empty(self, node: str, store: Path) -> None:
        """Delete a dead node's store (idempotent)."""
        member = self._members[node]
        with member.files_at_hand():
            await trio.to_thread.run_sync(partial(shutil.rmtree, store, ignore_errors=True))
            member.make_anew(store)

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
        lost: nodes that are losing their disk, or lost it, and that only `renew` may start: started
            as it was, a member would have forgotten its votes.
    """

    def __init__(self, target: Target, machines: Machines) -> None:
        self.awaited: set[str] = set()
        self.lost: set[str] = set()
        self._target = target
        self._machines = machines
        self._losses: Counter[str] = Counter()

    @property
    def without_disk(self) -> set[str]:
        """Nodes that are losing their disk, or have lost it and have not caught up yet.

        While a node is killed for its disk it is lost already, and not awaited yet.
        """
        return self.awaited | self.lost

    def why_not_wiped(self, node: str) -> str | None:
        """Return why a node's disk must not be lost now; None if it may."""
        machines, without = self._machines, self.without_disk
        missing = [
            other
            for other in machines.layouts
            if other != node
            and (not machines.is_running(other) or machines.is_paused(other) or other in without)
        ]
        if not machines.is_running(node) or node in without:
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
        launches = await self._known().renew(layouts, node, dict(self._losses))
        for other, launch in launches.items():
            await self._machines.launch(other, launch)
        self.lost.discard(node)

    async def readmit(self, node: str) -> None:
        """Wait until a restarted node has caught up; return at once if it has.

        Raises:
            IndefiniteError: it has not in time.
        """
        if node not in self.awaited:
            return
        layouts = self._machines.layouts
        await self._known().readmit(layouts, node, dict(self._losses), READMIT_TIMEOUT_S)
        self.awaited.discard(node)

    def _begin(self, node: str) -> Path:
        """Record that a node loses its disk; return its store."""
        self.awaited.add(node)
        self._losses[node] += 1
        self.lost.add(node)
        return self._known().store(self._machines.layouts[node])

    def _known(self) -> LosesDisks:
        assert isinstance(self._target, LosesDisks), "the fault was not available"
        return self._target


def _delete(store: Path) -> tuple[int, int]:
    """Delete everything; return the number of files, and their size in bytes."""
    sizes = [path.stat().st_size for path in store.rglob("*") if path.is_file()]
    shutil.rmtree(store)
    return len(sizes), sum(sizes)


# ---- nodes that may be out of their group: while one is, no node may lose its disk -----------


class Leaving:
    """Nodes that were removed from their group and are not surely in it again.

    Two faults may strike one node: the second may remove it after the first has added it again.
    """

    def __init__(self) -> None:
        self._out: set[str] = set()
        self._asked: Counter[str] = Counter()

    @contextmanager
    def asked(self, node: str) -> Iterator[None]:
        """Mark a node as being removed: it may be out from now on."""
        self._out.add(node)
        self._asked[node] += 1
        try:
            yield
        finally:
            self._asked[node] -= 1
            self._out.add(node)  # it may have been added meanwhile, and removed again

    def is_back(self, node: str) -> None:
        """Mark a node as a member again, unless another fault is removing it."""
        if not self._asked[node]:
            self._out.discard(node)

    def why_not_wiped(self) -> str | None:
        """Return why no disk must be lost now; None if one may."""
        return f"{', '.join(sorted(self._out))} may be out of the group" if self._out else None


# ---- damage: flipped bits, truncated files, an older copy of the store -------------------------
#
# Source: Jepsen's corrupt-file nemesis (bitflip, truncate, copy, restore); DESIGN.md decision 2.

COPIES: Final = "copies"
"""The folder, in a node's folder, for copies of its store."""
SERVES_TIMEOUT_S: Final = 5.0
"""How long a damaged node may take to answer before it counts as neither serving nor refused."""
POLL_S: Final = 0.01
DRAWS_MAX: Final = 1_000


class Damages:
    """Damages the files of a world's nodes."""

    def __init__(
        self,
        target: Target,
        members: Mapping[str, Member],
        answers: Callable[[str], bool],
        logs: CountsLogs | None,
    ) -> None:
        """`answers` returns whether a running node answers now; `logs` as in `ProcessMachines`."""
        self._target = target
        self._members = members
        self._answers = answers
        self._logs = logs
        self._copies: dict[str, Path] = {}
        self._damaged: set[str] = set()
        self.remarks: list[str] = []
        """One line for each node that serves damaged data."""

    def is_damaged(self, node: str) -> bool:
        """True if bytes of this node's files were changed or cut off."""
        return node in self._damaged

    def renewed(self, node: str) -> None:
        """Forget the damage: the node has a new store."""
        self._damaged.discard(node)

    async def damage(self, node: str, damage: Damage) -> Json:
        """Damage the files of a dead node; see `InjectsDiskFaults.damage`."""
        assert not self._members[node].process.is_running, "files of a running node are its own"
        if damage.how == "rollback":
            return await self._roll_back(node, damage.copy)
        with self._members[node].files_at_hand():
            done = await trio.to_thread.run_sync(self._damage, node, damage)
        self._damaged.add(node)
        return done

    async def copy(self, node: str) -> str:
        """Copy a dead node's store; see `InjectsDiskFaults.copy_store`."""
        assert not self._members[node].process.is_running, "a running node's files change"
        name = f"copy-{len(self._copies) + 1}"
        folder = self._members[node].layout.directory / COPIES / name
        await trio.to_thread.run_sync(shutil.copytree, self._store(node), folder)
        self._copies[name] = folder
        return name

    async def watch(self, node: str) -> Json:
        """Watch a node that was just started: {"refused", "serves"}; see `start_damaged`.

        If it was damaged, its exit must be excused.
        """
        process = self._members[node].process
        with trio.move_on_after(SERVES_TIMEOUT_S):
            while process.is_running and not self._answers(node):  # noqa: ASYNC110 - no event
                await trio.sleep(POLL_S)
        serves = process.is_running and self._answers(node)
        if serves and self.is_damaged(node) and isinstance(self._target, NoticesDamage):
            self.remarks.append(
                f"node {node} (incarnation {process.incarnation}) serves with a damaged store,"
                " and did not notice"
            )
        refused = None if process.is_running else process.last_line() or "it printed nothing"
        return {"refused": refused, "serves": serves}

    def _store(self, node: str) -> Path:
        assert isinstance(self._target, LosesDisks), "the fault was not available"
        return self._target.store(self._members[node].layout)

    def _damage(self, node: str, damage: Damage) -> Json:
        rng = rng_for(damage.seed, "damage", node)
        try:
            part = self._part(node, damage, rng)
            if damage.how == "flip":
                return _flip(part, damage.bytes_, rng)
            return _cut(part, rng)
        except OSError as error:
            raise HarnessError(f"cannot damage what {node} stored: {error}") from error

    def _part(self, node: str, damage: Damage, rng: Random) -> DurableRange:
        """Choose a part that the node must keep. Raises HarnessError: there is none yet."""
        layout = self._members[node].layout
        target, store = self._target, self._store(node)
        if isinstance(target, NoticesDamage):
            ranges = target.durable_ranges(layout)
        else:
            assert isinstance(target, StoresFiles), "the fault was not available"
            ranges = target.stored_ranges(layout)
        parts = [
            part
            for part in ranges
            if fnmatch(str(part.path.relative_to(store)), damage.file or "*")
        ]
        if not parts:
            raise HarnessError(f"{node} has nothing on its disk yet that it must keep")
        if not isinstance(target, NoticesDamage):  # a large file is not more worth than a small one
            return rng.choice(parts)
        return rng.choices(parts, [part.end - part.start for part in parts])[0]

    async def _roll_back(self, node: str, copy: str) -> Json:
        """Replace the store by a copy; return how many entries were lost, or bytes changed."""
        member, folder = self._members[node], self._copies.pop(copy)
        before = None if self._logs is None else await self._logs.count(member.layout)
        changed = 0
        try:
            with member.files_at_hand():
                if before is None:
                    changed = await trio.to_thread.run_sync(
                        _changed_bytes, self._store(node), folder
                    )
                await trio.to_thread.run_sync(_exchange, self._store(node), folder)
        except OSError as error:
            raise HarnessError(f"cannot roll back what {node} stored: {error}") from error
        if self._logs is None or before is None:
            return {"file": ".", "bytes": changed, "entries": 0, "has_log": False}
        after = await self._logs.count(member.layout)
        entries = max(0, before.entries - after.entries)
        return {"file": ".", "bytes": 0, "entries": entries, "has_log": True}


def _changed_bytes(store: Path, copy: Path) -> int:
    """Return the size of all files of a store that its copy lacks, or has with other bytes."""
    return sum(
        path.stat().st_size
        for path in store.rglob("*")
        if path.is_file() and not _is_same(path, copy / path.relative_to(store))
    )


def _is_same(file: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(file, other, shallow=False)


def _exchange(store: Path, folder: Path) -> None:
    aside = store.rename(folder.with_name(f"{folder.name}-behind"))  # the old store is deleted last
    folder.rename(store)
    shutil.rmtree(aside)


def _flip(part: DurableRange, bits: int, rng: Random) -> Json:
    """Flip bits in nonzero bytes: zeros may never have been written."""
    places: list[int] = []
    with part.path.open("r+b") as file:
        for _ in range(DRAWS_MAX):
            at = rng.randrange(part.start, part.end)
            file.seek(at)
            byte = file.read(1)
            if at in places or not byte or byte == b"\0":
                continue
            file.seek(at)
            file.write(bytes([byte[0] ^ (1 << rng.randrange(8))]))
            places.append(at)
            if len(places) >= bits:
                break
    return {"file": part.path.name, "at": min(places, default=-1), "bytes": len(places)}


def _cut(part: DurableRange, rng: Random) -> Json:
    """Truncate a file within its synced part."""
    size = rng.randrange(part.start, part.end)
    with part.path.open("r+b") as file:
        file.truncate(size)
    return {"file": part.path.name, "at": size, "bytes": part.end - size}

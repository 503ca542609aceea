"""Damage to the files of dead nodes: flipped bits, truncated files, an older copy of the store.

Source: Jepsen's corrupt-file nemesis (bitflip, truncate, copy, restore); DESIGN.md decision 2.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Final

import trio

from shaketable.harness.contracts.abilities import DurableRange, LosesDisks, NoticesDamage
from shaketable.harness.contracts.capabilities import Damage
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Json, Target
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.runtime.processes.disks import Member
from shaketable.harness.runtime.stored_logs import CountsLogs

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
        logs: CountsLogs,
    ) -> None:
        """`answers` returns whether a running node answers now."""
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
        if serves and self.is_damaged(node):
            self.remarks.append(
                f"node {node} (incarnation {process.incarnation}) serves with a damaged store,"
                " and did not notice"
            )
        refused = None if process.is_running else process.last_line() or "it said nothing"
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
        assert isinstance(self._target, NoticesDamage), "the fault was not available"
        store = self._store(node)
        parts = [
            part
            for part in self._target.durable_ranges(layout)
            if fnmatch(str(part.path.relative_to(store)), damage.file or "*")
        ]
        if not parts:
            raise HarnessError(f"{node} has nothing on its disk yet that it must keep")
        return rng.choices(parts, [part.end - part.start for part in parts])[0]

    async def _roll_back(self, node: str, copy: str) -> Json:
        """Replace the store by a copy; return how many messages were lost."""
        layout, folder = self._members[node].layout, self._copies.pop(copy)
        before = await self._logs.count(layout)
        try:
            await trio.to_thread.run_sync(_exchange, self._store(node), folder)
        except OSError as error:
            raise HarnessError(f"cannot roll back what {node} stored: {error}") from error
        after = await self._logs.count(layout)
        return {"file": ".", "bytes": 0, "entries": max(0, before.entries - after.entries)}


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

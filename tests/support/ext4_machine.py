"""A real file system that loses power: ext4 in a file on a loop device. Needs root.

`Ext4.lose_power` shuts it down as it stands (nothing more gets to the disk, the journal is not
flushed), so that after the next mount there is what was synced, and of the rest what happened to
be written. Whatever happens, nothing stays mounted.

Source: ext4's EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH; xfstests' godown;
HARNESSES.md section 6.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.abilities import LosesDisks
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.faults.victims import in_effect

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
CANARY = "canary"
CANARY_BYTES = 4096
CANARY_INTERVAL_S = 0.005
KILL_WAIT_S = 10.0


class Ext4:
    """A mounted file system of its own; use `ext4`."""

    def __init__(self, image: Path, mount: Path) -> None:
        self.image = image
        self.mount = mount
        self.losses = 0
        self.canary_bytes_lost = 0
        self._is_mounted = False
        self._written = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def attach(self) -> None:
        """Mount it, and begin to write what nobody syncs."""
        _run("mount", "-o", "loop", str(self.image), str(self.mount))
        self._is_mounted = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sing, args=(self._stop,), daemon=True)
        self._thread.start()

    def detach(self) -> None:
        """Unmount it, which frees the loop device (idempotent)."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._is_mounted:
            _run("umount", str(self.mount))
            self._is_mounted = False

    def shut_down(self) -> None:
        """Let the machine lose power: from now on nothing gets to the disk."""
        self.losses += 1
        fd = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def come_back(self) -> int:
        """Mount again what is left; return how many bytes that nobody had synced are gone."""
        self.detach()
        written = self._written
        _run("mount", "-o", "loop", str(self.image), str(self.mount))
        canary = self.mount / CANARY
        kept = canary.stat().st_size if canary.exists() else 0
        _run("umount", str(self.mount))
        self.attach()
        lost = max(0, written - kept)
        self.canary_bytes_lost += lost
        return lost

    def _sing(self, stop: threading.Event) -> None:
        """Append to a file without a sync, until told to stop or the power is gone."""
        self._written = 0
        try:
            with (self.mount / CANARY).open("wb", buffering=0) as file:
                while not stop.wait(CANARY_INTERVAL_S):
                    self._written += file.write(b"c" * CANARY_BYTES)
        except OSError:
            return


@contextmanager
def ext4(folder: Path, size_bytes: int) -> Iterator[Ext4]:
    """Make an ext4 of that size in a folder; in the end nothing is mounted.

    Raises:
        subprocess.CalledProcessError: it cannot be made, or mounted (not root, no loop device).
    """
    image, mount = folder / "disk.img", folder / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-F", str(image))
    disk = Ext4(image, mount)
    try:
        disk.attach()
        yield disk
    finally:
        disk.detach()
        image.unlink()


class Ext4Power:
    """Let the machine on which all nodes keep their stores lose power, and come back."""

    name = "ext4-power"
    family = capabilities.DISK

    def __init__(self, disk: Ext4) -> None:
        self._disk = disk

    def configured(self, options: Json) -> Fault:
        """Return itself: it always strikes all."""
        return self

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs to know where the stores are."""
        return None if isinstance(target, LosesDisks) else f"{target.name} has no known stores"

    def plan(self, rng: Random, nodes: Sequence[str], turn: int) -> Json:
        """All nodes, at once."""
        return {"victims": list(nodes)}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Who leads is told alone."""
        return {**plan, "leader": leader}

    def describe(self, plan: Json) -> str:
        """Say so."""
        return "power loss of the machine of all nodes"

    async def apply(self, plan: Json, world: World) -> Json:
        """Shut the file system down, kill everybody, and mount it again."""
        self._disk.shut_down()
        killed: dict[str, int] = {}

        async def kill(node: str) -> None:
            killed[node] = (await world.kill(node))["incarnation"]

        async with trio.open_nursery() as nursery:
            for node in plan["victims"]:
                nursery.start_soon(kill, node)
        lost = await trio.to_thread.run_sync(self._disk.come_back)
        return {"incarnations": killed, "lost_bytes": lost}

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Bit if bytes that nobody had synced are gone."""
        await trio.lowlevel.checkpoint()
        lost = undo["lost_bytes"]
        what = f"{lost:,} bytes that nobody had synced are gone from the file system"
        return Evidence(lost > 0, what, {"lost_bytes": lost})

    async def undo(self, undo: Json, world: World) -> None:
        """Start the nodes again."""
        for node, incarnation in in_effect(undo):
            await world.restart(node, incarnation)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)

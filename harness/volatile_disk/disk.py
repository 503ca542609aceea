"""The harness's side of a node's volatile disk: starts its process, and gives it orders.

A node whose data is on such a disk can lose power though it is any program: it is killed, and then
its disk forgets what was not synced. Its disk calls can fail, wait and stall.

Whether that works on this machine is tried: a program writes, and dies. Every campaign with such a
disk asks for the answer, which does not change: it is kept.

Source: lazyfs; ADR 0047.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from shaketable.harness import guard, namespaces, run_markers
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.controlled_process import ControlledProcess

KEPT: Final = "kept"
"""The folder beside a disk for files that a power loss may bring back."""
LOG: Final = "disk.log"
ANSWER_TIMEOUT_S: Final = 10.0
"""A disk answers in milliseconds, and in seconds if it has to bring back thousands of files."""


class VolatileDisk:
    """The disk of one node. Starts its process at once; `ready` waits for it.

    Create it in the main thread: the process ends with it. Implements
    `contracts.abilities.NodeSteering`, but for clocks.

    Args:
        node: whose disk it is.
        folder: where the file system is mounted for those that enter; what is there is on it.

    Raises:
        HarnessError: its process cannot be started.
    """

    def __init__(self, node: str, folder: Path) -> None:
        self._node = node
        self.folder = folder
        """Where it is mounted; from outside, the tree as the node sees it."""
        self._version = 0
        kept = folder.with_name(KEPT)
        self.log = folder.with_name(LOG)
        """What its process says; empty if all is well."""
        try:
            kept.mkdir(exist_ok=True)
            self._process = ControlledProcess(
                f"the disk of {node}",
                "shaketable.harness.volatile_disk.server",
                (folder, kept),
                self.log,
                ANSWER_TIMEOUT_S,
            )
        except OSError as error:
            raise HarnessError(f"the disk of {node} cannot be started: {error}") from error

    def ready(self) -> None:
        """Wait until the file system is mounted.

        Raises:
            HarnessError: it cannot be mounted; the message says why.
        """
        self._process.ready()

    @property
    def pid(self) -> int:
        """The pid of its process."""
        return self._process.pid

    def enter_command(self, directory: Path) -> tuple[str, ...]:
        """Return the command prefix that runs a program in a folder, where it sees the disk."""
        return tuple(namespaces.into_mounts(self.pid, str(directory)))

    def why_ended(self) -> str | None:
        """Return how its process ended; None while it runs."""
        status = self._process.status
        return None if status is None else f"the disk of {self._node} ended (status {status})"

    # ---- orders ---------------------------------------------------------------------------------

    def order(
        self,
        clocks: Sequence[Mapping[str, object]] = (),
        disk_faults: Sequence[Mapping[str, object]] = (),
        trips: Sequence[Mapping[str, object]] = (),
    ) -> int:
        """Replace all orders in force, at once; return their version.

        Raises:
            HarnessError: the process is gone, or silent.
        """
        assert not clocks, "a disk has no clock"
        self._process.ask("order", disk_faults=list(disk_faults), trips=list(trips))
        self._version += 1
        return self._version

    def effects(self) -> Mapping[str, int]:
        """Return its counters by name: calls, errors, waits, what is unsynced, what was lost."""
        counts: dict[str, int] = self._process.ask("effects")
        return {**counts, "control_version": self._version}

    def calls(self) -> Mapping[str, int]:
        """Return how many calls there were of each name (`requests.CHANGING`) since its start."""
        counts: dict[str, int] = self._process.ask("calls")["counts"]
        return counts

    def tripped(self) -> str | None:
        """Return the path of the call at which a trip ended the node; None: it did not yet.

        "" if the file has no name. The power is off from then on, until `lose`.
        """
        found = self._process.ask("calls")["tripped"]
        return None if found is None else str(found["path"])

    def disk_fault(self, number: int) -> Mapping[str, int]:
        """Return the counters of one disk fault, also of one that is over; {} if unknown."""
        found: dict[str, int] = self._process.ask("disk_fault", fault=number)
        return found

    def lose(self) -> Mapping[str, int]:
        """Forget what was not synced; the node must be dead.

        Returns {"bytes": that were lost, "entries": of folders that are others now, "sizes": of
        files that were only cut or extended}.
        """
        lost: dict[str, int] = self._process.ask("lose")
        return lost

    @contextmanager
    def detached(self) -> Iterator[None]:
        """Let the files of a dead node be changed from outside in the body of `with`.

        Everything counts as synced then.
        """
        self._process.ask("detach")
        try:
            yield
        finally:
            self._process.ask("attach")

    def close(self) -> None:
        """End its process, which syncs everything and unmounts (idempotent)."""
        self._process.close()
        with suppress(OSError):  # what its process could not delete, or had to say, stays
            self.folder.with_name(KEPT).rmdir()
            if not self.log.stat().st_size:
                self.log.unlink()


# Whether a disk of this machine can lose what was not synced.

TRIAL_TIMEOUT_S: Final = 10.0
KEPT_BYTES: Final = 4096
LOST_BYTES: Final = 8192
PROGRAM: Final = f"""
import os, signal
kept = os.open("disk/kept", os.O_CREAT | os.O_RDWR)
os.write(kept, b"k" * {KEPT_BYTES}), os.fsync(kept), os.fsync(os.open("disk", os.O_RDONLY))
os.write(kept, b"l" * {LOST_BYTES}), os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """Whether it works, and what was seen; `advice` says what to do if not."""

    works: bool
    what: str
    advice: str = ""


def why_no_volatile_disk() -> str | None:
    """Return why no disk can lose what was not synced, and what to do; None if one can."""
    found = tried_here()
    if found.works:
        return None
    return f"{found.what}; {found.advice}" if found.advice else found.what


@cache
def tried_here() -> Trial:
    """Try it, once in the life of this process. Must be called in the main thread."""
    with tempfile.TemporaryDirectory(prefix=run_markers.scratch_prefix("disk")) as name:
        folder = Path(name)
        (folder / "disk").mkdir()
        try:
            disk = VolatileDisk("this machine", folder / "disk")
        except HarnessError as error:
            return Trial(False, str(error))
        try:
            disk.ready()
            return _lost(disk, folder)
        except (HarnessError, OSError, subprocess.SubprocessError) as error:
            what = str(error).removeprefix("disk of this machine: ")
            return Trial(False, what, _advice(what))
        finally:
            disk.close()


def _lost(disk: VolatileDisk, folder: Path) -> Trial:
    """Let a program write and kill itself; compare what is lost with what it had not synced."""
    argv = [*disk.enter_command(folder), sys.executable, "-I", "-S", "-c", PROGRAM]
    done = subprocess.run(
        guard.command(argv, os.getpid()), capture_output=True, timeout=TRIAL_TIMEOUT_S, check=False
    )
    if done.returncode >= 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return Trial(False, last or f"a program on it ended with status {done.returncode}")
    lost = disk.lose()["bytes"]
    if lost != LOST_BYTES or (folder / "disk" / "kept").stat().st_size != KEPT_BYTES:
        return Trial(False, f"{lost} bytes were lost, and {LOST_BYTES} not synced")
    return Trial(True, f"FUSE: a killed program lost {lost} unsynced bytes, and kept {KEPT_BYTES}")


def _advice(what: str) -> str:
    if "/dev/fuse" in what:
        return "let root do: modprobe fuse; chmod a+rw /dev/fuse"
    if "namespace" in what or "not permitted" in what:
        return "run as root, or let users make namespaces (sysctl user.max_user_namespaces)"
    return ""

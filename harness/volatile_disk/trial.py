"""Tries on this machine whether a disk can lose what was not synced: a program writes, and dies.

The answer is asked for by every campaign with such a disk, and does not change: it is kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from shaketable.harness import guard, run_markers
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.volatile_disk.disk import VolatileDisk

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


def why_not() -> str | None:
    """Return why no disk can lose what was not synced, and what to do; None if one can."""
    found = tried()
    if found.works:
        return None
    return f"{found.what}; {found.advice}" if found.advice else found.what


@cache
def tried() -> Trial:
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

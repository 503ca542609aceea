"""Identify the processes and scratch folders of a run, also after its harness was killed.

Every process that a run starts, and all its descendants, carry a marker in their environment: the
harness process (`ProcessIdentity`) and the run's folder. The name of a scratch folder holds the
process that made it. The kernel reuses pids, but a pid together with the start time of its process
is unique until the next boot.

While a harness works in a run's folder it holds a lock on it, which ends with the harness.

Source: flock(2), proc(5) (field 22 of /proc/PID/stat); jepsen.control.util (pid files, which may
name another's process).
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

VARIABLE: Final = "SHAKETABLE_RUN"
"""The environment variable with the mark: PID.START:FOLDER."""
SCRATCH: Final = "shaketable"
_GONE: Final = ("Z", "X")
_MARKER: Final = re.compile(r"(\d+)\.(\d+):(/.*)", re.DOTALL)
_SCRATCH: Final = re.compile(rf"{SCRATCH}-[a-z]+-(\d+)\.(\d+)\.(\d+)-.*")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process and no other: its pid, and when it started, in clock ticks since the boot."""

    pid: int
    started: int

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return identify(self.pid) == self

    def __str__(self) -> str:
        return f"{self.pid}.{self.started}"


@dataclass(frozen=True, slots=True)
class RunMarker:
    """The mark of a run: the process of its harness, and its folder."""

    harness: ProcessIdentity
    folder: Path

    def __str__(self) -> str:
        return f"{self.harness}:{self.folder}"


def identify(pid: int) -> ProcessIdentity | None:
    """Say who has that pid; None if nobody has, or only a process that has ended."""
    fields = proc_stat(pid)
    if fields is None or fields[0] in _GONE:
        return None
    return ProcessIdentity(pid, int(fields[19]))


def proc_stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third (the state) on; None if there is no process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def this_process() -> ProcessIdentity:
    """Say who this process is."""
    found = identify(os.getpid())
    assert found is not None, "this process runs"
    return found


@cache
def boot_id() -> str:
    """Name the machine's boot: what is said of processes holds until the next one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pids() -> list[int]:
    """The pids of all processes that can be seen from here."""
    return sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def marker_of(pid: int) -> RunMarker | None:
    """Return the mark in the environment that a process was started with.

    None if it has none, is gone, is somebody else's, or is of a container with pids of its own.
    """
    if _pid_namespace(pid) != _pid_namespace(os.getpid()):
        return None
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    for entry in environment.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == VARIABLE.encode():
            return parse_marker(os.fsdecode(value))
    return None


def parse_marker(text: str) -> RunMarker | None:
    """Read a mark as it stands in an environment; None if it is none."""
    found = _MARKER.fullmatch(text)
    return found and RunMarker(ProcessIdentity(int(found[1]), int(found[2])), Path(found[3]))


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Mark what is started in the body of `with` as this run's, and hold the run's lock."""
    before = os.environ.get(VARIABLE)
    handle = _locked(folder, fcntl.LOCK_SH)
    os.environ[VARIABLE] = str(RunMarker(this_process(), folder))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
        if handle is not None:
            os.close(handle)


@contextmanager
def try_exclusive(folder: Path) -> Iterator[bool]:
    """Hold the run's lock alone in the body of `with`; gives False if somebody works in it."""
    try:
        handle = _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        if handle is not None:
            os.close(handle)


def _locked(folder: Path, how: int) -> int | None:
    """Lock a folder; None where it has no locks (a file system of another machine's)."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:
        os.close(handle)
        return None
    return handle


def scratch_prefix(what: str) -> str:
    """How the name of a scratch folder of this process begins; `what` is one word of letters."""
    return f"{SCRATCH}-{what}-{this_process()}.{_pid_namespace(os.getpid())}-"


def abandoned_scratch(parent: Path) -> list[Path]:
    """Return the scratch folders in a folder that are ours and whose process is gone."""
    found, namespace = [], _pid_namespace(os.getpid())
    try:
        entries = sorted(parent.glob(f"{SCRATCH}-*"))
    except OSError:
        return []
    for path in entries:
        named = _SCRATCH.fullmatch(path.name)
        if (
            named is None
            or int(named[3]) != namespace
            or ProcessIdentity(int(named[1]), int(named[2])).is_alive
        ):
            continue
        try:
            is_ours = path.lstat().st_uid == os.geteuid() and path.is_dir()
        except OSError:
            continue
        if is_ours and not path.is_symlink():
            found.append(path)
    return found


def _pid_namespace(pid: int) -> int:
    """The number of the namespace in which that process has its pid; 0 if it cannot be known."""
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return 0

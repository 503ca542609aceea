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
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

VARIABLE: Final = "SHAKETABLE_RUN"
"""The environment variable that holds the marker: PID.START:FOLDER."""
SCRATCH: Final = "shaketable"
_GONE: Final = ("Z", "X")
_MARKER: Final = re.compile(r"(\d+)\.(\d+):(/.*)", re.DOTALL)
_SCRATCH: Final = re.compile(rf"{SCRATCH}-[a-z]+-(\d+)\.(\d+)\.(\d+)-.*")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A unique process: its pid and its start time, in clock ticks since the boot."""

    pid: int
    started: int

    @property
    def is_alive(self) -> bool:
        """Return whether this very process still runs, and not another one with its pid."""
        return identify(self.pid) == self

    def __str__(self) -> str:
        return f"{self.pid}.{self.started}"


@dataclass(frozen=True, slots=True)
class RunMarker:
    """The marker of a run: the process of its harness, and its folder."""

    harness: ProcessIdentity
    folder: Path

    def __str__(self) -> str:
        return f"{self.harness}:{self.folder}"


def identify(pid: int) -> ProcessIdentity | None:
    """Return the process that has this pid; None if there is none or it is a zombie."""
    fields = proc_stat(pid)
    if fields is None or fields[0] in _GONE:
        return None
    return ProcessIdentity(pid, int(fields[19]))


def proc_stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (the state) on; None if no process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def this_process() -> ProcessIdentity:
    """Return the identity of this process."""
    found = identify(os.getpid())
    assert found is not None, "this process runs"
    return found


@cache
def boot_id() -> str:
    """Return the id of the machine's boot: process identities are valid for one boot only."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pids() -> list[int]:
    """Return the pids of all processes that are visible here."""
    return sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def marker_of(pid: int) -> RunMarker | None:
    """Return the marker in the environment that a process was started with.

    None if it has none, is gone, belongs to another user, or has another pid namespace.
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
    """Parse a marker from an environment variable's value; None if it is none."""
    found = _MARKER.fullmatch(text)
    return found and RunMarker(ProcessIdentity(int(found[1]), int(found[2])), Path(found[3]))


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Mark processes started in the body of `with` as this run's, and hold its lock, shared."""
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
    """Hold the run's lock exclusively in the body of `with`; yield False if a harness holds it."""
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
    """Lock a folder; None where the file system (such as a remote one) has no locks."""
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
    """Return the name prefix of this process's scratch folders; `what` is one word of letters."""
    return f"{SCRATCH}-{what}-{this_process()}.{_pid_namespace(os.getpid())}-"


def abandoned_scratch(parent: Path) -> list[Path]:
    """Return our scratch folders in `parent` whose process is gone."""
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
    """Return the inode of a process's pid namespace; 0 if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return 0


def session_of(pid: int) -> int:
    """Return the id of a process's session; -1 if there is no such process."""
    fields = proc_stat(pid)
    return int(fields[3]) if fields is not None else -1


def kill(process: ProcessIdentity) -> None:
    """Send SIGKILL to that process, and to no other that may get its pid."""
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            if process.is_alive:  # so the handle is of this very process
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)

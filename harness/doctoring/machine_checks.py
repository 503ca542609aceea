"""Check the machine: Java, Python, Spark, disk, cores, faked clocks of other programs, rights.

What can be tried is tried: a program runs under a faked clock, a child is attached to.
"""

from __future__ import annotations

import ctypes
import os
import platform
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from shaketable.checkers.engine.java import find_java
from shaketable.harness import guard
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Launch
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.doctoring.findings import Fact
from shaketable.harness.runtime.processes import children, faketime
from shaketable.harness.volatile_disk.disk import tried_here

FREE_BYTES_MIN: Final = 1 << 30
"""A campaign of one minute writes a tenth of this."""
PYTHON_MIN: Final = (3, 11)
OFFSET_S: Final = 3600.0
OFFSET_ERROR_S: Final = 60.0
RUN_TIMEOUT_S: Final = 10.0
SPARK_TIMEOUT_S: Final = 120.0
"""Spark starts in 5 to 10 seconds, on a busy machine in a minute."""
WITHOUT_SPARK: Final = f"checks run without it: {PROGRAM} analyze RUN --engine local"
OUTPUT_CHARS_MAX: Final = 300
PTRACE_SEIZE: Final = 0x4206


def run_checks(scratch: Path) -> list[Fact]:
    """Run all checks; `scratch` is a folder for temporary files."""
    return [
        _python(),
        _java(),
        _spark(scratch),
        _cores(),
        _disk(scratch),
        _foreign_clock(scratch),
        _foreign_disk(),
        _ptrace(),
        _cgroup(),
    ]


def setting() -> str:
    """Return the user and, if any, the user namespace: "root", "nobody (uid 65534)"."""
    user = os.geteuid()
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = "somebody"
    outside = _outside(user)
    if outside is not None:
        return f"{name} of a user namespace (uid {outside} outside)"
    return name if user == 0 else f"{name} (uid {user})"


def _outside(user: int) -> int | None:
    """Return the uid of this user outside its user namespace; None if it is in none."""
    try:
        rows = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:
        return None
    if rows == [["0", "0", str(2**32 - 1)]]:
        return None
    for inside, outside, count in rows:
        if int(inside) <= user < int(inside) + int(count):
            return int(outside) + user - int(inside)
    return None


def _python() -> Fact:
    found = platform.python_version()
    is_ok = sys.version_info[:2] >= PYTHON_MIN
    return Fact("Python", found, is_ok, "" if is_ok else "install Python 3.11 or newer")


def _java() -> Fact:
    try:
        found = find_java(os.environ)
    except UsageError as error:
        return Fact("Java for Spark", str(error), False)
    return Fact("Java for Spark", found.describe(), True)


def _spark(scratch: Path) -> Fact:
    """Start Spark as a check does, and run Python in it."""
    argv = [sys.executable, "-P", "-m", "shaketable.harness.doctoring.spark_trial"]
    argv = guard.command(argv, os.getpid())
    done = children.ask(argv, SPARK_TIMEOUT_S, add={"TMPDIR": str(scratch)})
    if done.is_late:
        what = f"did not start and end within {SPARK_TIMEOUT_S:g} s"
        return Fact("Spark", what, False, f"try when the machine does less; {WITHOUT_SPARK}")
    lines = (done.errors if done.status else done.output).decode(errors="replace")
    last_line = lines.strip().rpartition("\n")[2] or f"ended with exit status {done.status}"
    is_ok = done.status == 0
    return Fact("Spark", last_line[:OUTPUT_CHARS_MAX], is_ok, "" if is_ok else WITHOUT_SPARK)


def _cores() -> Fact:
    count = len(os.sched_getaffinity(0))
    return Fact("cores", str(count), True)


def _disk(scratch: Path) -> Fact:
    where = Path.cwd()
    free = shutil.disk_usage(where).free
    temporary = shutil.disk_usage(scratch).free
    is_ok = min(free, temporary) >= FREE_BYTES_MIN
    what = f"{free / 1e9:.1f} GB free here, {temporary / 1e9:.1f} GB in {scratch.parent}"
    return Fact("disk", what, is_ok, "" if is_ok else "free 1 GB, or name another --store")


def _foreign_clock(scratch: Path) -> Fact:
    """Run a foreign program under a faked clock, and compare its time."""
    name = "clocks of programs not ours"
    program = shutil.which("date")
    if program is None:
        return Fact(name, "not tried: there is no program date", True)
    try:
        faked = faketime.FakedTime(scratch)
        faked.change(offset_ms=OFFSET_S * 1e3)
        launch = faked.launch(Launch((program, "+%s.%N")))
        faked.change(offset_ms=OFFSET_S * 1e3)
        done = subprocess.run(
            launch.argv, env={**os.environ, **launch.env}, capture_output=True, text=True,
            timeout=RUN_TIMEOUT_S, check=True,
        )  # fmt: skip
        ahead_s = float(done.stdout) - time.time()
    except (HarnessError, OSError, subprocess.SubprocessError, ValueError) as error:
        return Fact(name, f"libfaketime does not work: {error}", True, "pip install libfaketime")
    if abs(ahead_s - OFFSET_S) > OFFSET_ERROR_S:
        return Fact(name, f"no effect: date was {ahead_s:.0f} s ahead of {OFFSET_S:.0f} s", True)
    what = f"libfaketime: date was {ahead_s:.0f} s ahead (requested {OFFSET_S:.0f} s)"
    return Fact(name, what, True)


def _foreign_disk() -> Fact:
    """Let a program on a disk of the harness lose power, and compare what it lost."""
    found = tried_here()
    what = found.what if found.works else f"cannot lose power: {found.what}"
    return Fact("disks of programs not ours", what, True, found.advice)


def _ptrace() -> Fact:
    """Attach to a child process by ptrace, and end it."""
    asleep = [sys.executable, "-I", "-S", "-c", "input()"]
    child = subprocess.Popen(asleep, stdin=subprocess.PIPE)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        libc.ptrace.restype = ctypes.c_long
        if libc.ptrace(PTRACE_SEIZE, child.pid, None, None) == 0:
            return Fact("ptrace", "attached to a child (nothing here needs it)", True)
        why = os.strerror(ctypes.get_errno())
        return Fact("ptrace", f"refused: {why} (nothing here needs it)", True)
    finally:
        child.kill()
        child.communicate()


def _cgroup() -> Fact:
    """Return the version of this process's control group, and whether it may create others."""
    own = [line.split(":", 2) for line in _text("/proc/self/cgroup").splitlines()]
    mounts = [line.split() for line in _text("/proc/self/mounts").splitlines()]
    version = "v2" if any(fields[2] == "cgroup2" for fields in mounts) else "v1"
    where = next((path for number, _, path in own if number == "0"), "")
    root = next((fields[1] for fields in mounts if fields[2] == "cgroup2"), "")
    is_ours = bool(root and where) and os.access(Path(root + where), os.W_OK)
    what = f"{version}, {'may' if is_ours else 'may not'} be divided (nothing here needs it)"
    return Fact("control group", what if mounts else "none", True)


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""

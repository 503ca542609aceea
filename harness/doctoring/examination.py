"""Check the machine, and try the faults on all worlds concurrently, each in a process of its own.

A fault that hangs, breaks the group or ends Python ends the trials of its world: it is reported,
and new trials start for the rest, a few times. Nothing is left behind: trials die with this
process, and their scratch folder is removed (by the next `heal`, if this process is killed).

Of the machine are checked Java, Python, Spark, disk, cores, faked clocks of other programs, rights.
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
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import trio

from shaketable.checkers.engine.java import find_java
from shaketable.harness import guard, namespaces, run_markers
from shaketable.harness.campaigns.campaign import default_faults
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Launch, Target
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.doctoring import survey as surveys
from shaketable.harness.doctoring.findings import Examination, Fact, Finding, untried
from shaketable.harness.doctoring.survey import Survey
from shaketable.harness.doctoring.trials import Task
from shaketable.harness.network.probe import why_no_namespace
from shaketable.harness.runtime.processes import children, faketime
from shaketable.harness.volatile_disk.disk import tried_here

FAULT_TIMEOUT_S: Final = 60.0
"""How long a fault may take with the recovery of the group; most take less than 5 s."""
START_TIMEOUT_S: Final = 120.0
"""How long a group may take to start or to end."""
WORLD_TIMEOUT_S: Final = 360.0
"""A world takes less than a minute, but longer on a busy machine or when faults hang."""
TRIALS_MAX: Final = 6
"""How often trials are started for a world: each fault that hangs or ends them costs one."""

OnFinding = Callable[[Finding], None]
"""Called with each fault's finding."""
OnSurvey = Callable[[Survey, Sequence[str]], OnFinding]
"""Called with the survey and the worlds before the trials; returns the callback for findings."""


def examine(on_survey: OnSurvey, target: Target, worlds: Sequence[str]) -> Examination:
    """Try all faults on a target's group on these worlds, and check the machine.

    Must be called in the main thread.

    Raises:
        HarnessError: a built-in fault cannot be imported, or no file can be written.
    """
    findings: list[Finding] = []
    try:
        scratch = Path(tempfile.mkdtemp(prefix=run_markers.scratch_prefix("doctor")))
    except OSError as error:
        raise HarnessError(f"cannot write any temporary file: {error.strerror}") from error
    try:
        survey = surveys.find_faults(scratch)
        on_finding = on_survey(survey, worlds)

        def note(finding: Finding) -> None:
            findings.append(finding)
            on_finding(finding)

        facts = run_checks(scratch)
        trio.run(_try_all, _Trials(target.name, scratch, survey, note), worlds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    setting = machine_setting()
    return Examination(findings, facts, setting, default_faults(target), target.name, worlds)


@dataclass(frozen=True, slots=True)
class _Trials:
    """What all worlds' trials have in common."""

    target: str
    scratch: Path
    survey: Survey
    note: OnFinding


async def _try_all(trials: _Trials, worlds: Sequence[str]) -> None:
    async with trio.open_nursery() as nursery:
        for world in worlds:
            for name, why in sorted(trials.survey.broken.items()):
                trials.note(Finding(name, world, "failed", why))
            nursery.start_soon(_try_world, trials, world)


async def _try_world(trials: _Trials, world: str) -> None:
    """Try one world; report what it did not get to as untried, with the reason."""
    left = set(trials.survey.names)
    why = why_no_namespace() if world == "netns" else None
    if why is None:
        with trio.move_on_after(WORLD_TIMEOUT_S) as scope:
            why = await _try_until_done(trials, world, left)
        if scope.cancelled_caught:
            why = f"the trials took longer than {WORLD_TIMEOUT_S:g} s"
    for finding in untried(sorted(left), world, why or "the trials ended before it"):
        trials.note(finding)


async def _try_until_done(trials: _Trials, world: str, left: set[str]) -> str:
    """Run trials until nothing is `left`; return why the rest stays untried."""
    why = ""

    def on_finding(finding: Finding) -> None:
        left.discard(finding.fault)
        trials.note(finding)

    for number in range(TRIALS_MAX):
        if not left:
            break
        output, before = TrialOutput(on_finding), len(left)
        without, faults = tuple(trials.survey.without), tuple(sorted(left))
        task = Task(world, str(trials.scratch), faults, without, trials.target)
        why = await _run(task, trials.scratch / f"{world}-{number}.log", output)
        if output.trying:
            on_finding(Finding(output.trying, world, "failed", why))
        elif len(left) == before:  # no progress: it would fail the same way again
            break
    return why


@dataclass(slots=True)
class TrialOutput:
    """Parses the output of trials: forwards findings, keeps which fault is being tried."""

    on_finding: OnFinding
    trying: str = field(default="")

    def take(self, line: bytes) -> float:
        """Handle a line; return within how many seconds the next one must follow."""
        message = msgspec.json.decode(line, type=Finding | str)
        if isinstance(message, str):
            self.trying = message
        else:
            self.trying = ""
            self.on_finding(message)
        return FAULT_TIMEOUT_S if self.trying else START_TIMEOUT_S


async def _run(task: Task, log: Path, output: TrialOutput) -> str:
    """Run trials until they end; return why they ended, in case something was not tried."""
    program = [sys.executable, "-P", "-m", "shaketable.harness.doctoring.trials"]
    argv = [*program, str(os.getpid()), msgspec.json.encode(task).decode()]
    argv = guard.command(namespaces.new(argv) if task.world == "netns" else argv, os.getpid())
    ended = await children.run(argv, log, output.take, START_TIMEOUT_S)
    if ended.is_late and output.trying:
        return f"it hangs: it was under way for longer than {FAULT_TIMEOUT_S:g} s"
    if ended.is_late:
        return f"the trials printed nothing for {START_TIMEOUT_S:g} s"
    last_line = children.last_line(log)
    if output.trying:
        return f"it ended the trials (exit status {ended.status}): {last_line}"
    return last_line if ended.status else "the trials ended before it"


# The machine.

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


def machine_setting() -> str:
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

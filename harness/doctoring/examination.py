"""Has every world tried, each by a process of its own, all at the same time.

Nothing is left: trials end with this process, however it ends, and their scratch folder is removed
(by the next `heal`, if this process is killed).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from harness import campaign, discovery, marks
from harness.campaign import faults_of
from harness.doctoring import surroundings
from harness.doctoring.findings import WORLDS, Examination, Finding, untried
from harness.errors import HarnessError
from harness.network import enter
from harness.network.probe import why_no_namespace
from harness.runtime import guard

WORLD_TIMEOUT_S: Final = 150.0
"""A world takes less than a minute; on a machine that is held up, longer."""
END_POLL_S: Final = 0.01
SAID_CHARS_MAX: Final = 300

Tell = Callable[[Finding], None]
"""Told of each fault as it was tried."""


def examine(tell: Tell, worlds: Sequence[str] = WORLDS) -> Examination:
    """Try all faults on these worlds, and look at the machine. Must be called in the main thread.

    Raises:
        HarnessError: a plug-in is broken, or nothing can be written.
    """
    names = sorted(discovery.find("faults"))
    findings: list[Finding] = []

    def note(finding: Finding) -> None:
        findings.append(finding)
        tell(finding)

    try:
        scratch = Path(tempfile.mkdtemp(prefix=marks.scratch_prefix("doctor")))
    except OSError as error:
        raise HarnessError(f"cannot write any temporary file: {error.strerror}") from error
    try:
        facts = surroundings.look(scratch)
        trio.run(_try_all, worlds, names, scratch, note)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    default = campaign.load(campaign.BUILT_IN)
    return Examination(findings, facts, surroundings.setting(), faults_of(default))


async def _try_all(worlds: Sequence[str], names: Sequence[str], scratch: Path, note: Tell) -> None:
    async with trio.open_nursery() as nursery:
        for world in worlds:
            nursery.start_soon(_try_world, world, names, scratch, note)


async def _try_world(world: str, names: Sequence[str], scratch: Path, note: Tell) -> None:
    """Try one world; what it did not get to is told as untried, with the reason."""
    left = set(names)

    def take(finding: Finding) -> None:
        left.discard(finding.fault)
        note(finding)

    why = why_no_namespace() if world == "netns" else None
    if why is None:
        why = await _run(world, scratch, take)
    for finding in untried(sorted(left), world, why or "the trials ended before it"):
        note(finding)


async def _run(world: str, scratch: Path, take: Tell) -> str | None:
    """Run the trials of one world; return what they said if they failed."""
    program = [sys.executable, "-P", "-m", "harness.doctoring.trials"]
    argv = [*program, world, str(scratch), str(os.getpid())]
    argv = guard.command(enter.new(argv) if world == "netns" else argv, os.getpid())
    log = scratch / f"{world}.log"
    process = _started(argv, log)
    assert process.stdout is not None
    try:
        with trio.move_on_after(WORLD_TIMEOUT_S) as scope:
            await _listen(os.dup(process.stdout.fileno()), take)
            while process.poll() is None:  # noqa: ASYNC110 - it has said all, and ends
                await trio.sleep(END_POLL_S)
    finally:  # also when somebody interrupts
        process.stdout.close()
        process.send_signal(signal.SIGKILL)
        process.wait()
    if scope.cancelled_caught:
        return f"the trials took longer than {WORLD_TIMEOUT_S:g} s"
    return _last_line(log) if process.returncode else None


def _started(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that dies with this thread: the main one."""
    with log.open("wb") as errors:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )


async def _listen(handle: int, take: Tell) -> None:
    """Take in what the trials print, until they have ended."""
    rest = b""
    async with trio.lowlevel.FdStream(handle) as stream:
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                take(msgspec.json.decode(line, type=Finding))


def _last_line(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    last = text.rpartition("\n")[2] or "the trials failed without a word"
    return last if len(last) <= SAID_CHARS_MAX else f"{last[:SAID_CHARS_MAX]}..."

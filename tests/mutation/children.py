"""Runs one program of a mutant, with a limit of its own processor time."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.trees import environment_of

WALL_PER_CPU = 20.0
"""How much longer than its processor time a program may take on a busy machine..."""
WALL_S_MIN = 240.0
"""... and how long in any case, since programs also wait."""
OUTPUT_BYTES_MAX = 200_000

_running: set[int] = set()
"""Process groups that are under way."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. `code` is None if it was ended for its limit of time."""

    code: int | None
    output: str
    seconds: float


def run(command: Sequence[str], tree: Path, cpu_s: float, wall_s: float | None = None) -> Ended:
    """Run a program in a tree and wait for it; nothing of its process group outlives it.

    The processor time of each process is limited, not the time that passes: on a busy machine
    that says nothing about the mutant. `wall_s` ends what waits for ever.
    """
    began = time.monotonic()
    limit_s = wall_s or max(WALL_S_MIN, cpu_s * WALL_PER_CPU)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment_of(tree),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running.add(process.pid)
        try:
            with contextlib.suppress(ProcessLookupError):
                limit = int(cpu_s), int(cpu_s) + 5
                resource.prlimit(process.pid, resource.RLIMIT_CPU, limit)
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _running.discard(process.pid)
            _end(process.pid)
            process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_BYTES_MAX))
        text = output.read().decode(errors="replace")
    if code in (-signal.SIGXCPU, -signal.SIGPROF, -signal.SIGKILL):
        code = None
    return Ended(code, text, time.monotonic() - began)


def limit_part(cpu_s: float) -> None:
    """End this program if what comes next takes more processor time, until the next limit."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def end_all() -> None:
    """End every program that is under way: the command was told to stop."""
    for group in tuple(_running):
        _end(group)


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)

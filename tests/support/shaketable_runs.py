"""Run the command line as users do; a run that hangs says where.

A run that was ended by its time limit once told only that it had printed nothing for minutes: on
another machine, so nothing was left to look at. Here a hanging process is asked for the stacks of
its threads (SIGABRT, which `faulthandler` answers) before it goes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HANGS_AFTER_S = 380.0
"""Only a hang takes so long; pytest ends a test after 400 s."""
STACKS_WAIT_S = 10.0


def shaketable(
    *arguments: str | Path, cwd: Path | None = None, timeout_s: float = HANGS_AFTER_S
) -> subprocess.CompletedProcess[str]:
    """Run the command with these arguments to its end; return its exit code and what it printed.

    Raises:
        AssertionError: it did not end in time; says what it printed, the state of its processes,
            and the stacks of its threads.
    """
    argv = [sys.executable, "-P", "-m", "shaketable", *map(str, arguments)]
    with subprocess.Popen(
        argv,
        cwd=cwd,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            printed, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            states = "\n".join(_states(process.pid))
            printed, errors = _stacks(process)
            raise AssertionError(
                f"no end after {timeout_s:g} s: {' '.join(argv)}\n{printed}\n{states}\n{errors}"
            ) from None
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, printed, errors)


def _states(parent: int) -> Iterator[str]:
    """Yield a line on a process and each of its children: state, what it waits for, command."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for pid in (str(parent), *children):
        here = Path("/proc") / pid
        try:
            state = here.joinpath("stat").read_text().rpartition(")")[2].split()[0]
            waits = here.joinpath("wchan").read_text()
            command = here.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended meanwhile
        yield f"{pid} {state} {waits} {command}"


def _stacks(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Have a process print its stacks and end; return all that it printed."""
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGABRT)
    try:
        return process.communicate(timeout=STACKS_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()

"""Start a program that ends with the harness, even when the harness is killed.

`python -I -S guard.py PARENT_PID -- ARGV...` asks the kernel to send SIGKILL when the
parent dies, checks that the parent has not died already, and becomes ARGV. SIGKILL also
ends a process that SIGSTOP holds, so a paused node does not outlive its run either.

Two traps (prctl(2), PR_SET_PDEATHSIG): the "parent" is the *thread* that forked, so nodes are
started from the main thread only; and the setting is not inherited by fork, so a program that
works in a forked child escapes: launch commands must `exec`.

Imports little and runs without site-packages, to start quickly.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
EXIT_CANNOT_RUN = 127


def command(argv: Sequence[str], parent_pid: int) -> list[str]:
    """Return the command line that runs `argv` and dies with process `parent_pid`."""
    return [sys.executable, "-I", "-S", __file__, str(parent_pid), "--", *argv]


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel SIGKILL this process when its parent ends; end now if the parent is gone.

    Raises:
        OSError: the kernel refuses; this is not Linux.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:  # it died before we could ask
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    """Exec the program that the arguments name; return only if that fails."""
    if len(arguments) < 3 or not arguments[0].isdigit() or arguments[1] != "--":
        sys.stderr.write("guard: usage: guard.py PARENT_PID -- PROGRAM [ARGUMENT...]\n")
        return EXIT_CANNOT_RUN
    argv = list(arguments[2:])
    try:
        die_with_parent(int(arguments[0]))
        os.execvp(argv[0], argv)  # noqa: S606 - an argument list from the target, no shell
    except OSError as error:
        sys.stderr.write(f"guard: cannot run {argv[0]}: {error.strerror}\n")
    return EXIT_CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

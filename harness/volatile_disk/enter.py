"""Run a program in the mount namespace of another process, and in its user namespace if need be.

    python -I -S enter.py PID FOLDER -- PROGRAM [ARGUMENT...]

The program keeps this process's pid, terminal and signals, and works in FOLDER, as it is there.
Runs without site-packages, to start quickly.

Source: setns(2), mount_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
PR_SET_PDEATHSIG = 1
EXIT_REFUSED = 125
EXIT_CANNOT_RUN = 127


def into(
    pid: int, folder: str, argv: Sequence[str] = (), python: str = sys.executable
) -> list[str]:
    """Return the command line that runs `argv` where that process is, in a folder."""
    return [python, "-I", "-S", __file__, str(pid), folder, "--", *argv]


def enter(pid: int, folder: str) -> None:
    """Enter the namespaces of a process, and a folder there. Raises OSError: the kernel refuses."""
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, flag in (("user", CLONE_NEWUSER), ("mnt", CLONE_NEWNS)):
        path = f"/proc/{pid}/ns/{kind}"
        if os.readlink(path) == os.readlink(f"/proc/self/ns/{kind}"):  # noqa: PTH115 - as `guard`
            continue
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if libc.setns(file, flag) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        os.close(file)
    os.chdir(folder)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # as `guard` did; it may be cleared
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    """Exec the program that the arguments name; return only if that fails."""
    match list(arguments):
        case [pid, folder, "--", *argv] if argv and pid.isdigit():
            pass
        case _:
            sys.stderr.write("enter: usage: enter.py PID FOLDER -- PROGRAM [ARGUMENT...]\n")
            return EXIT_CANNOT_RUN
    try:
        enter(int(pid), folder)
    except OSError as error:
        sys.stderr.write(f"cannot enter the node's disk: {error.strerror}\n")
        return EXIT_REFUSED
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - an argument list of ours, no shell
    except OSError as error:
        sys.stderr.write(f"enter: cannot run {argv[0]}: {error.strerror}\n")
    return EXIT_CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

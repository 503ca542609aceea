"""Run a program in other namespaces: a new network, an existing one, or the mounts of a process.

    python -I -S namespaces.py new -- PROGRAM [ARGUMENT...]
    python -I -S namespaces.py into PATH -- PROGRAM [ARGUMENT...]
    python -I -S namespaces.py mounts PID FOLDER -- PROGRAM [ARGUMENT...]

As root, the new network namespace is a plain one. Without root, it is inside a new user namespace,
in which the caller is root, and nowhere else. It has no name: a namespace ends with its last
process. In a new namespace loopback is up, and there is no other interface. In the mount namespace
of a process, and in its user namespace if need be, the program works in FOLDER, as it is there.

The program keeps this process's pid, terminal and signals. Imports only what it needs and runs
without site-packages: unshare(2) of a user namespace is refused to a process with threads, and many
libraries start threads.

Source: namespaces(7), user_namespaces(7), mount_namespaces(7), unshare(2), setns(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence

CLONE_NEWNET = 0x40000000
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
EXIT_REFUSED = 125
"""As `unshare` and `nsenter`: the namespace could not be made or entered."""
EXIT_CANNOT_RUN = 127
INSIDE = "SHAKETABLE_NETWORK_NAMESPACE"
"""The environment variable that names the namespace which was made for a process."""
HOW = "new|into PATH|mounts PID FOLDER"
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def new(argv: Sequence[str], python: str = sys.executable) -> list[str]:
    """Return the command line that runs `argv` in a new network namespace."""
    return [python, "-I", "-S", __file__, "new", "--", *argv]


def into(path: str, argv: Sequence[str] = (), python: str = sys.executable) -> list[str]:
    """Return the command line that runs `argv` in the network namespace of that file."""
    return [python, "-I", "-S", __file__, "into", path, "--", *argv]


def into_mounts(
    pid: int, folder: str, argv: Sequence[str] = (), python: str = sys.executable
) -> list[str]:
    """Return the command line that runs `argv` in the mounts of that process, in a folder."""
    return [python, "-I", "-S", __file__, "mounts", str(pid), folder, "--", *argv]


def is_inside() -> bool:
    """True if this process runs in the namespace that was made for it."""
    return os.environ.get(INSIDE) == _own()


def unshare(flags: int) -> None:
    """Move into new namespaces of these kinds.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def setns(file: int, kind: int = CLONE_NEWNET) -> None:
    """Enter the namespace of an open file. Raises OSError as `unshare`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def set_loopback_up() -> None:
    """Bring loopback up in this namespace. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", asked)[1] | _IFF_UP
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))


def make_own() -> None:
    """Move into a new network namespace: as root, or in a new user namespace.

    Raises:
        OSError: the kernel refuses both.
    """
    try:
        unshare(CLONE_NEWNET)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        unshare(CLONE_NEWUSER | CLONE_NEWNET)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {user} 1")
        _write("/proc/self/gid_map", f"0 {group} 1")
    set_loopback_up()


def enter_mounts(pid: int, folder: str) -> None:
    """Enter the mounts of a process, and a folder there. Raises OSError: the kernel refuses."""
    parent = os.getppid()
    for kind, flag in (("user", CLONE_NEWUSER), ("mnt", CLONE_NEWNS)):
        path = f"/proc/{pid}/ns/{kind}"
        if os.readlink(path) != os.readlink(f"/proc/self/ns/{kind}"):  # noqa: PTH115 - see `_write`
            _enter_there(path, flag)
    os.chdir(folder)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # as `guard` did; it may be cleared
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _own() -> str:
    return os.readlink("/proc/self/ns/net")  # noqa: PTH115 - see `_write`


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - pathlib takes longer to import than all else
        file.write(text)


def main(arguments: Sequence[str]) -> int:
    """Exec the program that the arguments name; return only if that fails."""
    enter: Callable[[], None]
    match list(arguments):
        case ["new", "--", *argv] if argv:
            enter, refused = _enter_own, "no network namespace"
        case ["into", path, "--", *argv] if argv:
            enter, refused = lambda: _enter_there(path), "no network namespace"
        case ["mounts", pid, folder, "--", *argv] if argv and pid.isdigit():
            enter, refused = lambda: enter_mounts(int(pid), folder), "cannot enter the node's disk"
        case _:
            sys.stderr.write(f"namespaces: usage: namespaces.py {HOW} -- PROGRAM [ARGUMENT...]\n")
            return EXIT_CANNOT_RUN
    try:
        enter()
    except OSError as error:
        sys.stderr.write(f"{refused}: {error.strerror}\n")
        return EXIT_REFUSED
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - an argument list of ours, no shell
    except OSError as error:
        sys.stderr.write(f"namespaces: cannot run {argv[0]}: {error.strerror}\n")
    return EXIT_CANNOT_RUN


def _enter_own() -> None:
    make_own()
    os.environ[INSIDE] = _own()


def _enter_there(path: str, kind: int = CLONE_NEWNET) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    setns(file, kind)
    os.close(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

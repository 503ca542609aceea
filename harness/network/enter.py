"""Run a program in another network namespace: a new one, or an existing one.

    python -I -S enter.py new -- PROGRAM [ARGUMENT...]
    python -I -S enter.py into PATH -- PROGRAM [ARGUMENT...]

As root, the new namespace is a plain one. Without root, it is inside a new user namespace, in which
the caller is root, and nowhere else. It has no name: a namespace ends with its last process. The
program keeps this process's pid, terminal and signals. In a new namespace loopback is up, and there
is no other interface.

Imports only what it needs and runs without site-packages: unshare(2) of a user namespace is refused
to a process with threads, and many libraries start threads.

Source: namespaces(7), user_namespaces(7), unshare(2), setns(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Sequence

CLONE_NEWNET = 0x40000000
CLONE_NEWUSER = 0x10000000
EXIT_REFUSED = 125
"""As `unshare` and `nsenter`: the namespace could not be made or entered."""
EXIT_CANNOT_RUN = 127
INSIDE = "SHAKETABLE_NETWORK_NAMESPACE"
"""The environment variable that names the namespace which was made for a process."""
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def new(argv: Sequence[str], python: str = sys.executable) -> list[str]:
    """Return the command line that runs `argv` in a new network namespace."""
    return [python, "-I", "-S", __file__, "new", "--", *argv]


def into(path: str, argv: Sequence[str] = (), python: str = sys.executable) -> list[str]:
    """Return the command line that runs `argv` in the network namespace of that file."""
    return [python, "-I", "-S", __file__, "into", path, "--", *argv]


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


def setns(file: int) -> None:
    """Enter the network namespace of an open file. Raises OSError as `unshare`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, CLONE_NEWNET) != 0:
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


def _own() -> str:
    return os.readlink("/proc/self/ns/net")  # noqa: PTH115 - see `_write`


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - pathlib takes longer to import than all else
        file.write(text)


def main(arguments: Sequence[str]) -> int:
    """Exec the program that the arguments name; return only if that fails."""
    match list(arguments):
        case ["new", "--", *argv] if argv:
            path = ""
        case ["into", path, "--", *argv] if argv:
            pass
        case _:
            sys.stderr.write("enter: usage: enter.py new|into PATH -- PROGRAM [ARGUMENT...]\n")
            return EXIT_CANNOT_RUN
    try:
        if path:
            _enter_there(path)
        else:
            make_own()
            os.environ[INSIDE] = _own()
    except OSError as error:
        sys.stderr.write(f"no network namespace: {error.strerror}\n")
        return EXIT_REFUSED
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - an argument list of ours, no shell
    except OSError as error:
        sys.stderr.write(f"enter: cannot run {argv[0]}: {error.strerror}\n")
    return EXIT_CANNOT_RUN


def _enter_there(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    setns(file)
    os.close(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

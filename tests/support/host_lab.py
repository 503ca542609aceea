"""A small network of hosts for tests: each an sshd in namespaces of its own, on a bridge.

    unshare --net --mount --pid --fork --kill-child --mount-proc python host_lab.py FOLDER COUNT

All is inside namespaces of this process: interfaces, processes, mounts. They end with it, and it
ends with its input. Host n1 is 10.77.0.2 and fd77::2; its link to the bridge is v1; what tests
run in the lab itself is at 10.77.0.254. Each host has its own /var/tmp and /run.
"""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

TOOLS = ("sshd", "ssh", "ssh-keygen", "nft", "ip", "unshare", "nsenter", "mount")
DISK_TOOLS = ("mkfs.ext4", "losetup", "mount", "umount", "mountpoint", "perl")
READY_S = 30.0
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
SSHD = """
ListenAddress 10.77.0.{last}
ListenAddress [fd77::{last}]
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""
HOST = """
set -e
mount --bind {folder}/{node} /var/tmp
mount -t tmpfs none /run
[ ! -e ~/.bashrc ] || mount --bind /dev/null ~/.bashrc  # what a shell reads there may take long
mkdir -m 755 /run/sshd
ip link set lo up
until ip link show e{number} >/dev/null 2>&1; do sleep 0.05; done
ip addr add 10.77.0.{last}/24 dev e{number}
ip addr add fd77::{last}/64 dev e{number} nodad
ip link set e{number} up
{sshd} -D -e -f {folder}/{node}.conf &
wait
"""


def missing() -> str:
    """Return why there can be no lab here; "" if there can."""
    if os.geteuid():
        return "not root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    lacking = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    return f"no {', '.join(lacking)}" if lacking else ""


def why_no_power() -> str:
    """Return why hosts here cannot lose power; "" if they can."""
    if os.geteuid():
        return "not root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    lacking = [tool for tool in DISK_TOOLS if shutil.which(tool, path=path) is None]
    if lacking:
        return f"no {', '.join(lacking)}"
    if tuple(map(int, platform.release().split(".")[:2])) < (6, 5):
        return "before Linux 6.5, which tells what is not synced"
    free = subprocess.run(["losetup", "-f"], env={"PATH": path}, capture_output=True, check=False)
    return "no loop devices" if free.returncode else ""


class Lab:
    """A lab that is up, seen from outside of it."""

    def __init__(self, folder: Path, pid: int, hosts: dict[str, int]) -> None:
        self.folder = folder
        self._pid = pid
        self._hosts = hosts
        self.nodes = tuple(hosts)

    def argv(self, script: str, node: str = "") -> list[str]:
        """Return what runs a shell script in the lab, or on one of its hosts."""
        spaces = (self._pid, self._hosts[node]) if node else (self._pid,)
        enter = [
            ("nsenter", f"--target={pid}", "--net", "--mount", "--pid", "--") for pid in spaces
        ]
        return [*chain(*enter), "sh", "-c", script]

    def run(self, script: str, node: str = "") -> subprocess.CompletedProcess[str]:
        """Run a shell script in the lab, or on one of its hosts; wait for its end."""
        return subprocess.run(
            self.argv(script, node), capture_output=True, text=True, timeout=300, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    @contextmanager
    def unplugged(self, node: str) -> Iterator[None]:
        """Take a host off the network in the body of `with`."""
        link = f"v{node.removeprefix('n')}"
        self.run(f"ip link set {link} down")
        try:
            yield
        finally:
            self.run(f"ip link set {link} up")

    def left_on(self, node: str) -> dict[str, str]:
        """Return what is left on a host: processes, tables of the packet filter, mounts, files."""
        seen = {
            "processes": "grep -lF SHAKETABLE_NODE= /proc/[0-9]*/environ 2>/dev/null || :",
            "tables": "/usr/sbin/nft list tables",
            "mounts": "grep /var/tmp/shaketable /proc/mounts || :",
            "files": "ls -A /var/tmp/shaketable 2>/dev/null || :",
        }
        return {what: out for what, look in seen.items() if (out := self.run(look, node).stdout)}


@contextmanager
def lab(folder: Path, count: int = 3) -> Iterator[Lab]:
    """Have a lab; nothing of it is left afterwards."""
    folder.chmod(0o755)
    for name in ("key", "host_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
        )
    public = (folder / "host_key.pub").read_text().split()[:2]
    at = [f"{base}{number}" for base in ("10.77.0.", "fd77::") for number in range(1, count + 1)]
    (folder / "known_hosts").write_text("".join(f"{each} {' '.join(public)}\n" for each in at))
    with (
        (folder / "lab.log").open("w") as log,
        subprocess.Popen(
            [*UNSHARE, sys.executable, __file__, str(folder), str(count)],
            stdin=subprocess.PIPE, stdout=log, stderr=log,
        ) as outer,
    ):  # fmt: skip
        try:
            yield Lab(folder, *_up(folder, outer))
        finally:
            outer.kill()  # and with it its first process, and so all of the lab


def _up(folder: Path, outer: subprocess.Popen[bytes]) -> tuple[int, dict[str, int]]:
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s and outer.poll() is None:
        with suppress(OSError, ValueError):
            hosts = json.loads((folder / "up.json").read_text())
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text()
            return int(children.split()[0]), hosts
        time.sleep(0.05)
    raise AssertionError((folder / "lab.log").read_text())


def main(folder: Path, count: int) -> None:
    """Build the lab, and be it until the end."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    sshd = shutil.which("sshd")
    _run("ip link set lo up; ip link add br0 type bridge; ip link set br0 up")
    _run("ip addr add 10.77.0.254/24 dev br0; ip addr add fd77::fe/64 dev br0 nodad")
    hosts = {}
    for number in range(count):
        node, last = f"n{number}", number + 1
        (folder / node).mkdir()
        values = {"folder": folder, "node": node, "number": number, "last": last, "sshd": sshd}
        (folder / f"{node}.conf").write_text(SSHD.format(**values))
        outer = subprocess.Popen([*UNSHARE, "sh", "-c", HOST.format(**values)])
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        while not (found := children.read_text().split()):
            time.sleep(0.01)
        hosts[node] = int(found[0])
        _run(f"ip link add v{number} type veth peer name e{number}")
        _run(f"ip link set v{number} master br0; ip link set v{number} up")
        _run(f"ip link set e{number} netns {hosts[node]}")
    for last in range(1, count + 1):
        _await_sshd(folder, f"root@10.77.0.{last}")
    (folder / "up.new").write_text(json.dumps(hosts))
    (folder / "up.new").rename(folder / "up.json")
    while not select.select([sys.stdin], [], [], 0.1)[0]:  # until the test has ended, or was ended
        with suppress(ChildProcessError):  # the first process of a namespace inherits its orphans
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _await_sshd(folder: Path, destination: str) -> None:
    options = ["-i", f"{folder}/key", "-o", f"UserKnownHostsFile={folder}/known_hosts"]
    end_s = time.monotonic() + READY_S
    while subprocess.run(["ssh", *options, destination, "true"], check=False).returncode:
        assert time.monotonic() < end_s
        time.sleep(0.1)


def _run(script: str) -> None:
    for line in script.split("; "):
        subprocess.run(line.split(), check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

"""A group that somebody else started, shaken by commands: not started, not ended, put back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shaketable.harness.runtime.processes.ports import find_free
from tests.support.shaketable_runs import shaketable

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "kvs"
ANSWERS_S = 20.0
FILE = """
[targets.kvs]
nodes = [{nodes}]
client = "client.py"
ready = {{ command = ["bash", "ask.sh", "{{client_host}}", "{{client_port}}"] }}

[targets.kvs.commands]
kill = ["sh", "-c", "kill -KILL $(cat {{id}}.pid)"]
start = ["sh", "{{id}}.sh"]
pause = ["sh", "-c", "kill -STOP $(cat {{id}}.pid)"]
resume = ["sh", "-c", "kill -CONT $(cat {{id}}.pid)"]
"""
ASK = """
exec 3<>/dev/tcp/$1/$2 && echo GET nothing >&3 && read -r -t 0.5 answer <&3
"""
START = """
grep -q "^State:.[^Z]" /proc/$(cat {id}.pid)/status && exit 0
python3 {server} --id {id} --client 127.0.0.1:{client} --peer 127.0.0.1:{peer} --data {id} \
    --members {members} &
echo $! > {id}.pid
"""


class Group:
    """Three servers, started by a script of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = find_free(6)
        self.names = ("n0", "n1", "n2")
        self.at = dict(zip(self.names, ports[:3], strict=True))
        peers = dict(zip(self.names, ports[3:], strict=True))
        members = ",".join(f"{name}=127.0.0.1:{peers[name]}" for name in self.names)
        for name in self.names:
            (folder / name).mkdir()
            server = EXAMPLE / "server.py"
            script = START.format(
                id=name, server=server, client=self.at[name], peer=peers[name], members=members
            )
            (folder / f"{name}.sh").write_text(script)
        nodes = ", ".join(f'"127.0.0.1:{port}"' for port in self.at.values())
        (folder / "shaketable.toml").write_text(FILE.format(nodes=nodes))
        (folder / "ask.sh").write_text(ASK)
        shutil.copy(EXAMPLE / "client.py", folder)

    def start(self) -> None:
        for name in self.names:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run(["sh", f"{name}.sh"], cwd=self.folder, check=True, **quiet)
        assert all(self.answers(name) for name in self.names)

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    def state(self, name: str) -> str:
        return Path(f"/proc/{self.pid(name)}/stat").read_text().rpartition(") ")[2][0]

    def answers(self, name: str) -> bool:
        end_s = time.monotonic() + ANSWERS_S
        while time.monotonic() < end_s:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self.at[name]), 1) as asked,
            ):
                asked.settimeout(5)
                asked.sendall(b"GET nothing\n")
                return asked.recv(10) == b"nil\n"
            time.sleep(0.1)
        return False

    def end(self) -> None:
        for name in self.names:
            with suppress(OSError, ValueError):
                os.kill(self.pid(name), signal.SIGKILL)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path)
    try:
        group.start()
        yield group
    finally:
        group.end()


RUN = ("run", "--target", "kvs", "--engine", "local", "--time-limit", "10", "--steady", "2")


def test_a_running_group_is_shaken_and_goes_on(group: Group) -> None:
    for _ in range(2):  # the second run must not take the first one's values for its own
        done = shaketable(*RUN, "--seed", "3", cwd=group.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        results = json.loads((group.folder / "store" / "latest" / "results.json").read_text())
        assert results["valid"] is True
        for fault in ("kill", "pause"):
            assert results["faults"]["by_name"][fault]["took_effect"] > 0, results["faults"]
    assert all(group.answers(name) and group.state(name) != "T" for name in group.names)


def test_a_killed_harness_is_healed(group: Group) -> None:
    argv = [*RUN[:-4], "--time-limit", "60", "--steady", "1", "--faults", "pause"]
    argv += ["--fault-duration-min", "30", "--fault-duration-max", "40"]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "shaketable", *argv],
        cwd=group.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    ) as run:  # fmt: skip
        end_s = time.monotonic() + 90
        while "T" not in map(group.state, group.names) and time.monotonic() < end_s:
            assert run.poll() is None
            time.sleep(0.1)
        run.kill()
    assert "T" in map(group.state, group.names)
    healed = shaketable("heal", cwd=group.folder)
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert "undid" in healed.stdout
    assert all(group.answers(name) and group.state(name) != "T" for name in group.names)


def test_a_group_that_does_not_answer_is_one_line(group: Group) -> None:
    group.end()
    done = shaketable(*RUN, cwd=group.folder)
    assert done.returncode == 255
    assert "the group is not ready after 30 s: n0 does not answer" in done.stderr
    assert "Traceback" not in done.stderr

"""`shaketable up`: a group to play with that says where it is, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio

from shaketable.harness import cli
from shaketable.system.client import Producer, PullConsumer

pytestmark = pytest.mark.e2e
SECONDS_MAX = 90


class Up:
    """The running command; what it prints stands in a file."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.out = folder / "out.txt"
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shaketable", "up", *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def said(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something."""
        end = time.monotonic() + SECONDS_MAX
        while (found := re.search(pattern, self.out.read_text())) is None:
            assert time.monotonic() < end, self.out.read_text()
            assert self.process.poll() is None, self.out.read_text()
            time.sleep(0.1)
        return found

    def servers(self) -> list[int]:
        """The pids of its servers that live."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                command = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if int(parent) == self.process.pid and b"shaketable.system.node" in command:
                found.append(int(path.name))
        return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Up]]:
    started: list[Up] = []

    def run(*arguments: str) -> Up:
        started.append(Up(tmp_path, *arguments))
        return started[-1]

    yield run
    for up in started:
        if up.process.poll() is None:
            up.process.kill()
            up.process.wait()


def test_clients_connect_to_what_it_prints_and_ctrl_c_stops_everything(start, tmp_path) -> None:
    folder = tmp_path / "kept"
    up = start("--groups", "2", "--folder", str(folder))
    up.said("Ctrl-C stops everything")
    name_server = up.said(r'Producer\("([0-9.:]+)"\)')[1]
    assert len(up.servers()) == 7

    async def use() -> None:
        async with (
            Producer(name_server, timeout_s=20.0, rng=Random(1)) as producer,
            PullConsumer(name_server, group="g") as consumer,
        ):
            sent = {(await producer.send("Hello", b"%d" % n)).queue.broker_name for n in range(40)}
            assert sent == {"broker-a", "broker-b"}  # the groups share the topic
            found = 0
            for queue in await consumer.queues("Hello"):
                found += await consumer.max_offset(queue)
            assert found == 40

    trio.run(use)
    leader = up.said(r"(broker-a-n\d) +[0-9.:]+  leader")[1]
    for pid in up.servers():
        if leader.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    up.said(rf"{leader} \(incarnation 1\) was ended by SIGKILL")
    up.said(r"broker-a: broker-a-n\d leads")
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(60) == 0
    assert up.out.read_text().endswith("stopped; nothing is left running\n")
    assert up.servers() == []
    assert any((folder / "broker-a-n0" / "store").iterdir())


def test_a_master_and_its_slaves_start_and_stop(start, tmp_path) -> None:
    folder = tmp_path / "kept"
    up = start("--mode", "sync-double-write", "--nodes", "3", "--folder", str(folder))
    up.said("Ctrl-C stops everything")
    assert up.said(r"broker-a-master +[0-9.:]+  master")
    name_server = up.said(r'Producer\("([0-9.:]+)"\)')[1]
    assert len(up.servers()) == 4

    async def use() -> None:
        async with Producer(name_server, timeout_s=20.0, rng=Random(1)) as producer:
            while (await producer.send("Hello", b"twice")).status != "SEND_OK":
                await trio.sleep(0.05)  # no slave is there yet

    trio.run(use)
    logs = {
        path.parts[-4]: path.read_bytes()  # a slave that came late may have none yet
        for path in folder.glob(f"*/store/commitlog/{0:020d}")
    }
    master = logs.pop("broker-a-master")
    assert b"twice" in master
    assert master in logs.values(), "one of them was waited for"
    (pid,) = [
        pid
        for pid in up.servers()
        if b"broker-a-master" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(pid, signal.SIGKILL)
    up.said("broker-a: no master")
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(60) == 0
    assert up.servers() == []


def test_multi_master_is_several_masters(start) -> None:
    up = start("--mode", "multi-master")
    assert up.said(r"broker-a-master +[0-9.:]+  master")
    assert up.said(r"broker-b-master +[0-9.:]+  master")
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(60) == 0


def test_its_own_folder_is_removed(start) -> None:
    up = start("--nodes", "1")
    folder = Path(up.said(r"files and logs: (\S+)")[1])
    assert folder.is_dir()
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(60) == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--nodes", "2"], "--nodes 2: with --mode dledger expected 1, 3, 5, 7"),
        (["--mode", "multi-master", "--nodes", "2"], "with --mode multi-master expected 1"),
        (["--groups", "0"], "--groups 0: expected 1 to 26"),
        (["--name-servers", "9"], "--name-servers 9: expected 1 to 5"),
        (["--mode", "paxos"], "dledger"),
    ],
)
def test_bad_usage_is_one_line(capsys, arguments, says) -> None:
    assert cli.run(["up", *arguments]) == 254
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_folder_that_holds_something_is_refused(capsys, tmp_path) -> None:
    (tmp_path / "mine").write_text("precious")
    assert cli.run(["up", "--folder", str(tmp_path)]) == 254
    assert "holds something already" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "precious"

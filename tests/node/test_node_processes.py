"""Real nodes: they serve, survive garbage, and stop with one line when they must."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
import trio

from shaketable.harness.runtime.processes.ports import find_free
from shaketable.system.client import BrokerGroupClient, OutcomeUnknownError, RefusedError
from shaketable.system.node import __main__ as program
from shaketable.system.node import process as node_process
from shaketable.system.node.connections import wire
from shaketable.system.node.disks.real_disk import DiskThreads, RealDisk
from shaketable.system.node.flusher import Flusher
from shaketable.system.node.machine import Machine, SystemClock
from shaketable.system.raft.protocol import PushRequest, SaveState
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import DiskFailed
from shaketable.system.store.log_writer import LogWriter

Result = TypeVar("Result")
STOP_WAIT_S = 60


class Nodes:
    """A group of node processes without a harness around it."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.names = [f"n{i}" for i in range(size)]
        ports = find_free(2 * size)
        self.clients = dict(zip(self.names, ports[:size], strict=True))
        self.peers = dict(zip(self.names, ports[size:], strict=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def conf(self, name: str, **more: str) -> Path:
        listed = ";".join(f"{n}-127.0.0.1:{p}" for n, p in self.peers.items())
        lines = {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "g",
            "dLegerSelfId": name,
            "dLegerPeers": listed,
            "listenPort": str(self.clients[name]),
            "storePathRootDir": str(self.folder / name),
            "mappedFileSizeCommitLog": "65536",
            "mappedFileSizeIndex": "8192",
            **more,
        }
        path = self.folder / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path

    def start(
        self, name: str, files: tuple[int, int] | None = None, **more: str
    ) -> subprocess.Popen[bytes]:
        """Start a node; `files` are soft and hard limit of the files it may open."""
        limited: list[str] = []
        if files is not None:
            soft, hard = files
            limited = ["bash", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', ""]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    *limited,
                    *(sys.executable, "-m", "shaketable.system.node"),
                    *("-c", str(self.conf(name, **more))),
                ],
                stderr=log,
                stdout=log,
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def run(self, use: Callable[[BrokerGroupClient], Awaitable[Result]]) -> Result:
        async def main() -> Result:
            addresses = {n: ("127.0.0.1", p) for n, p in self.clients.items()}
            client = BrokerGroupClient(addresses, timeout_s=15.0, rng=Random(1))
            try:
                return await use(client)
            finally:
                client.close()

        return trio.run(main)

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(STOP_WAIT_S)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path, 3)
    try:
        yield nodes
    finally:
        nodes.stop()


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path, 1)
    try:
        yield nodes
    finally:
        nodes.stop()


async def _append(client: BrokerGroupClient, body: bytes) -> int:
    return (await client.send("t", 0, body)).queue_offset


async def _append_surely(client: BrokerGroupClient, body: bytes) -> int:
    """Append until it is acknowledged; return how many tries before that may have had effect.

    A leader that the machine starves steps down by itself.
    """
    for unknown in itertools.count():
        with contextlib.suppress(OutcomeUnknownError):
            await _append(client, body)
            return unknown
    raise AssertionError("it counts for ever")


async def _append_all(client: BrokerGroupClient, bodies: list[bytes]) -> int:
    return sum([await _append_surely(client, body) for body in bodies])


async def _bodies(client: BrokerGroupClient) -> list[bytes]:
    out: list[bytes] = []
    while True:
        with contextlib.suppress(OutcomeUnknownError):  # a read without effect: again
            found = (await client.pull("t", 0, len(out))).messages
            if not found:
                return out
            out += [message.body for message in found]


def assert_all_there(found: list[bytes], sent: list[bytes], unknown: int) -> None:
    """Everything sent stands there in its order; twice only what was tried twice."""
    assert list(dict.fromkeys(found)) == sent
    assert len(found) - len(sent) <= unknown


@pytest.mark.e2e
def test_a_group_serves_and_keeps_everything_when_its_leader_is_killed(group: Nodes) -> None:
    for name in group.names:
        group.start(name, shaketableDisk="volatile")
    sent = [b"%d" % n for n in range(200)]

    async def story(client: BrokerGroupClient) -> tuple[list[bytes], int]:
        unknown = await _append_all(client, sent[:100])
        leader = client.answered_by
        assert leader is not None
        group.processes[leader].kill()
        group.processes[leader].wait(STOP_WAIT_S)
        unknown += await _append_all(client, sent[100:])
        assert client.answered_by != leader
        group.start(leader, shaketableDisk="volatile")
        return await _bodies(client), unknown

    found, unknown = group.run(story)
    assert_all_there(found, sent, unknown)


@pytest.mark.e2e
def test_all_is_there_after_everybody_died_at_once(group: Nodes) -> None:
    for name in group.names:
        group.start(name, shaketableDisk="volatile")
    sent = [b"%d" % n for n in range(50)]

    unknown = group.run(lambda client: _append_all(client, sent))
    for process in group.processes.values():
        process.kill()
        process.wait(STOP_WAIT_S)
    for name in group.names:
        group.start(name, shaketableDisk="volatile")
    assert_all_there(group.run(_bodies), sent, unknown)


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\xff" * 64,
    b"\x00\x00\x00\x02abcd",
    b"\x00\x00\x00\x10\x00\x00\x00\x0c{broken json",
    b"\x7f\xff\xff\xff\x00\x00\x00\x00",
]


def is_closed_by_peer(sock: socket.socket) -> bool:
    try:
        return sock.recv(100) == b""
    except ConnectionResetError:  # it closed with bytes of ours unread
        return True


@pytest.mark.e2e
def test_garbage_on_a_port_ends_that_connection_only(single: Nodes) -> None:
    process = single.start("n0")
    assert single.run(lambda client: _append(client, b"before")) == 0
    for port in (single.clients["n0"], single.peers["n0"]):
        for data in GARBAGE:
            with socket.create_connection(("127.0.0.1", port), 5) as sock:
                sock.sendall(data)
                assert is_closed_by_peer(sock), "the node closes the connection"
    assert single.run(lambda client: _append(client, b"after")) == 1
    assert process.poll() is None
    lines = [line for line in single.log("n0").splitlines() if "bad_bytes" in line]
    assert len(lines) == 2 * len(GARBAGE)
    assert "Traceback" not in single.log("n0")


@pytest.mark.e2e
def test_a_stray_message_does_not_use_up_the_terms(single: Nodes) -> None:
    """The member that took that term could ask for no later one."""
    process = single.start("n0")
    assert single.run(lambda client: _append(client, b"before")) == 0
    stray = wire.encode(PushRequest(2**63 - 1, "n9", -1, -1, -1, 0), "g")
    with socket.create_connection(("127.0.0.1", single.peers["n0"]), 5) as sock:
        sock.sendall(stray)
        assert is_closed_by_peer(sock)
    assert single.run(lambda client: _append(client, b"after")) == 1
    assert process.poll() is None
    assert "event=bad_bytes" in single.log("n0")


@pytest.mark.e2e
@pytest.mark.parametrize("files", [(100, 4000), (200, 200)], ids=["raised", "kept_free"])
def test_clients_do_not_take_the_files_that_the_store_needs(
    single: Nodes, files: tuple[int, int]
) -> None:
    """A file that cannot be opened for want of a number is no failed disk's."""
    process = single.start("n0", files)
    assert single.run(lambda client: _append(client, b"before")) == 0

    async def append_until_files_are_opened(client: BrokerGroupClient) -> None:
        folder = single.folder / "n0" / "dledger-n0" / "data"
        while len(list(folder.iterdir())) < 3:
            await _append_surely(client, bytes(20_000))

    with contextlib.ExitStack() as idle:
        for _ in range(220):
            address = ("127.0.0.1", single.clients["n0"])
            idle.enter_context(socket.create_connection(address, 5))
        if files[1] > 220:
            single.run(append_until_files_are_opened)
        while files[1] < 220 and "event=too_many_connections" not in single.log("n0"):
            time.sleep(0.05)
    single.run(append_until_files_are_opened)
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_WAIT_S) == 0
    assert "Too many open files" not in single.log("n0")


@pytest.mark.e2e
@pytest.mark.parametrize("which", ["clients", "peers"])
def test_a_port_in_use_is_said_in_one_line(single: Nodes, which: str) -> None:
    port = getattr(single, which)["n0"]
    with socket.socket() as holder:
        # As the search for free ports does: an old connection's TIME_WAIT is no user of it.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        holder.listen()
        assert single.start("n0").wait(STOP_WAIT_S) == node_process.EXIT_USAGE
    last = single.log("n0").splitlines()[-1]
    assert f"cannot listen on 127.0.0.1:{port}" in last
    assert "Traceback" not in single.log("n0")


MEETS_A_BUG = """
import sys
from shaketable.system.node import __main__ as program

async def meets_a_bug(*_):
    raise {error}

program._run = meets_a_bug
sys.exit(program.main(sys.argv[1:]))
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("error", "status", "last"),
    [
        ("KeyError('queue')", node_process.EXIT_INVARIANT, "<string>:6 raises KeyError: 'queue'"),
        ("MemoryError", node_process.EXIT_OTHER, "MemoryError"),
    ],
)
def test_an_error_that_nobody_foresaw_is_a_broken_rule(
    single: Nodes, error: str, status: int, last: str
) -> None:
    code = MEETS_A_BUG.format(error=error)
    done = subprocess.run(
        [sys.executable, "-c", code, "-c", str(single.conf("n0"))],
        capture_output=True, text=True, timeout=STOP_WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert "Traceback" in done.stderr
    lines = done.stderr.splitlines()
    assert any(line.endswith(last) for line in lines)
    assert ("event=stopped" in lines[-1]) == (status == node_process.EXIT_INVARIANT)


def test_the_help_names_every_exit_status() -> None:
    named = {int(number) for number in re.findall(r"\b\d+\b", program.__doc__ or "")}
    statuses = {value for name, value in vars(node_process).items() if name.startswith("EXIT_")}
    assert named == {0, *statuses}


@pytest.mark.e2e
def test_two_nodes_cannot_share_a_store_folder(single: Nodes) -> None:
    first = single.start("n0")
    single.run(lambda client: _append(client, b"a"))
    assert single.start("n0").wait(STOP_WAIT_S) == node_process.EXIT_USAGE
    single.processes["first"] = first
    last = single.log("n0").splitlines()[-1]
    assert f"{single.folder / 'n0'} is in use by another process" in last
    assert "Traceback" not in single.log("n0")
    assert single.run(lambda client: _append(client, b"b")) == 1


@pytest.mark.e2e
def test_a_node_with_damaged_synced_data_does_not_start(single: Nodes) -> None:
    process = single.start("n0")
    for number in range(20):
        single.run(lambda client, number=number: _append(client, b"%d" % number))
    process.terminate()
    assert process.wait(STOP_WAIT_S) == 0
    data = single.folder / "n0" / "dledger-n0" / "data" / f"{0:020}"
    content = bytearray(data.read_bytes())
    content[700] ^= 4
    data.write_bytes(content)
    assert single.start("n0").wait(STOP_WAIT_S) == node_process.EXIT_DAMAGED
    last = single.log("n0").splitlines()[-1]
    assert "event=stopped" in last
    assert str(data) in last
    assert "Traceback" not in single.log("n0")


@pytest.mark.e2e
def test_a_paused_leader_steps_down_when_it_wakes(group: Nodes) -> None:
    for name in group.names:
        group.start(name)

    async def story(client: BrokerGroupClient) -> tuple[str | None, str | None, str]:
        await _append_surely(client, b"a")
        old = client.answered_by
        assert old is not None
        group.processes[old].send_signal(signal.SIGSTOP)
        others = {n: ("127.0.0.1", p) for n, p in group.clients.items() if n != old}
        second = BrokerGroupClient(others, timeout_s=15.0, rng=Random(2))
        await _append_surely(second, b"b")
        new = second.answered_by
        group.processes[old].send_signal(signal.SIGCONT)
        while (await client.metadata(old)).term < (await second.metadata(str(new))).term:
            await trio.sleep(0.05)
        role = (await client.metadata(old)).role
        second.close()
        return old, new, role

    old, new, role = group.run(story)
    assert (old != new, role) == (True, "follower")


def test_a_failed_fsync_stops_the_node(tmp_path: Path) -> None:
    """What cannot be made durable is never said to be, and the error gets out."""

    class FailingLog:
        committed_index = -1

        def save_state(self, term: int, voted_for: str | None) -> None:
            raise DiskFailed("fsync of currterm failed: EIO")

    said: list[int] = []

    async def main() -> None:
        log: CommitLog = FailingLog()  # type: ignore[assignment]
        machine = Machine(RealDisk(), SystemClock(), Random, DiskThreads())
        flusher = Flusher(
            LogWriter(log), machine, said.append, pytest.fail, lambda: -1, trio.lowlevel.checkpoint
        )
        flusher.add([SaveState(1, "n0")], 1)
        with trio.fail_after(5):
            await flusher.run()

    with pytest.raises(DiskFailed):
        trio.run(main)
    assert said == []


@pytest.mark.e2e
def test_sigterm_ends_a_node_with_0_and_a_checkpoint(single: Nodes) -> None:
    process = single.start("n0")
    single.run(lambda client: _append(client, b"a"))
    process.terminate()
    assert process.wait(STOP_WAIT_S) == 0
    assert (single.folder / "n0" / "dledger-n0" / "checkpoint").exists()
    assert not (single.folder / "n0" / "abort").exists()


@pytest.mark.e2e
def test_a_killed_node_leaves_the_abort_marker_and_starts_again(single: Nodes) -> None:
    process = single.start("n0")
    single.run(lambda client: _append(client, b"a"))
    process.kill()
    process.wait(STOP_WAIT_S)
    assert (single.folder / "n0" / "abort").exists()
    single.start("n0")
    assert single.run(lambda client: _append(client, b"b")) == 1
    assert "aborted=True" in single.log("n0")


def test_an_unreachable_group_is_a_definite_refusal() -> None:
    (port,) = find_free(1)

    async def main() -> None:
        client = BrokerGroupClient({"n0": ("127.0.0.1", port)}, timeout_s=0.3, rng=Random(1))
        with pytest.raises(RefusedError, match="n0 cannot be reached"):
            await client.send("t", 0, b"a")

    trio.run(main)


@pytest.mark.parametrize(
    ("answer", "said"),
    [(b"", "closed before the answer"), (b"\xff" * 16, "closed before the answer")],
    ids=["closes", "garbage"],
)
def test_a_server_that_breaks_off_leaves_the_outcome_unknown(answer: bytes, said: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(65536)
            sock.sendall(answer)

    server = threading.Thread(target=serve)
    server.start()

    async def main() -> None:
        address = listener.getsockname()[:2]
        client = BrokerGroupClient({"n0": address}, timeout_s=5.0, rng=Random(1))
        with pytest.raises(OutcomeUnknownError, match=said):
            await client.send("t", 0, b"a")
        client.close()

    trio.run(main)
    server.join(5)
    listener.close()


@pytest.mark.e2e
def test_a_node_that_does_not_answer_leaves_the_outcome_unknown(single: Nodes) -> None:
    process = single.start("n0")
    single.run(lambda client: _append(client, b"a"))
    os.kill(process.pid, signal.SIGSTOP)
    started = time.monotonic()

    async def main() -> None:
        address = ("127.0.0.1", single.clients["n0"])
        client = BrokerGroupClient({"n0": address}, timeout_s=0.5, rng=Random(1))
        with pytest.raises(OutcomeUnknownError, match="no answer within"):
            await client.send("t", 0, b"b")
        client.close()

    trio.run(main)
    assert time.monotonic() - started < 30

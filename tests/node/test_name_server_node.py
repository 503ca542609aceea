"""The name server's shell: bytes of all kinds, brokers that fall silent, and its process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from shaketable.harness.runtime.processes.ports import find_free
from shaketable.system.nameserver.registry import Registration
from shaketable.system.node import name_server
from shaketable.system.node.machine import SystemClock
from shaketable.system.node.name_server import NameServerNode
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import (
    Command,
    FrameBuffer,
    SerializeType,
    decode_command,
    encode_command,
)
from shaketable.system.remoting.name_server_requests import (
    RegisterBrokerHeader,
    TopicConfig,
    decode_route,
)
from shaketable.system.store.disk import Disk, DiskFailed, DiskFull, replace_file

ROOT = Path(__file__).parent.parent.parent
HOST = "127.0.0.1"
STORY_TIMEOUT_S = 60.0
END_TIMEOUT_S = 20.0


class FastClock(SystemClock):
    """A thousand milliseconds pass in one."""

    def now_ms(self) -> float:
        return super().now_ms() * 1000

    def move_on_at(self, due_ms: float):
        return trio.move_on_after(max(0.0, due_ms - self.now_ms()) / 1_000_000)


class Peer:
    """One connection that asks and reads answers."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = FrameBuffer()

    async def send(self, *commands: Command) -> None:
        await self.stream.send_all(b"".join(map(encode_command, commands)))

    async def answers(self, count: int) -> list[Command]:
        """Read so many answers; fewer mean that the connection was closed."""
        found: list[Command] = []
        while len(found) < count:
            data = await self.stream.receive_some(65_536)
            if not data:
                break
            self._buffer.writable()[: len(data)] = data
            self._buffer.received(len(data))
            for frame in self._buffer.frames():
                command = decode_command(frame)
                command.body = bytes(command.body)
                found.append(command)
        return found


def serve(
    story: Callable[[NameServerNode, Callable[[], Awaitable[Peer]]], Awaitable[None]],
    clock: SystemClock | None = None,
    **settings: Any,
) -> None:
    (port,) = find_free(1)
    node = NameServerNode(HOST, port, clock or SystemClock(), **settings)
    peers: list[Peer] = []

    async def connect() -> Peer:
        while True:
            try:
                peers.append(Peer(await trio.open_tcp_stream(HOST, port)))
            except OSError:
                await trio.sleep(0.01)  # it does not listen yet
            else:
                return peers[-1]

    async def main() -> None:
        try:
            with trio.fail_after(STORY_TIMEOUT_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(node.run)
                    await story(node, connect)
                    nursery.cancel_scope.cancel()
        finally:
            for peer in peers:
                peer.stream.socket.close()

    trio.run(main)


def ask_route(topic: str, opaque: int, serialize_type: int = SerializeType.JSON) -> Command:
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    return Command(code, opaque, ext={"topic": topic}, serialize_type=serialize_type)


def registration(timeout_ms: int | None = None) -> Command:
    header = RegisterBrokerHeader("b", "h:1", "c", 0, heartbeat_timeout_millis=timeout_ms)
    return Command(RequestCode.REGISTER_BROKER, 1, ext=header.to_ext())


def test_answers_come_in_order_and_as_they_were_asked_for() -> None:
    async def story(node: NameServerNode, connect: Callable[[], Awaitable[Peer]]) -> None:
        topics = {"t": TopicConfig("t"), "u": TopicConfig("u")}
        node.server.registry.register(Registration("c", "b", "h:1", 0, topics=topics), 99, 0.0)
        peer = await connect()
        oneway = ask_route("t", 2)
        oneway.flag = 2
        await peer.send(
            ask_route("t", 1),
            oneway,
            ask_route("nowhere", 3),
            ask_route("u", 4, SerializeType.ROCKETMQ),
        )
        first, second, third = await peer.answers(3)
        assert [first.opaque, second.opaque, third.opaque] == [1, 3, 4]
        assert second.code == ResponseCode.TOPIC_NOT_EXIST
        assert third.serialize_type == SerializeType.ROCKETMQ
        for answer in (first, third):
            assert decode_route(answer.body).broker_datas[0].broker_addrs == {0: "h:1"}

    serve(story)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        b"\0\0\0\x08\0\0\0\x04{}{}",
        b"\0\0\0\x06\0\0\0\x02[]",
    ],
)
def test_what_is_no_request_ends_its_connection_and_no_other(garbage: bytes) -> None:
    async def story(_: NameServerNode, connect: Callable[[], Awaitable[Peer]]) -> None:
        good, bad = await connect(), await connect()
        await bad.send(registration())
        assert [answer.code for answer in await bad.answers(1)] == [ResponseCode.SUCCESS]
        await bad.stream.send_all(garbage)
        assert await bad.answers(1) == []
        await good.send(Command(RequestCode.GET_BROKER_CLUSTER_INFO, 5))
        (answer,) = await good.answers(1)
        assert b'"brokerAddrTable":{}' in bytes(answer.body)

    serve(story)


def test_a_broker_that_falls_silent_is_forgotten_and_cut_off() -> None:
    async def story(node: NameServerNode, connect: Callable[[], Awaitable[Peer]]) -> None:
        peer = await connect()
        await peer.send(registration(timeout_ms=60_000))
        (answer,) = await peer.answers(1)
        assert answer.code == ResponseCode.SUCCESS
        assert await peer.answers(1) == []
        assert node.server.registry.cluster_info().broker_addr_table == {}

    serve(story, FastClock())


def test_connections_are_bounded() -> None:
    async def story(_: NameServerNode, connect: Callable[[], Awaitable[Peer]]) -> None:
        first = await connect()
        await first.send(ask_route("t", 1))
        assert len(await first.answers(1)) == 1
        second = await connect()
        assert await second.answers(1) == []
        await first.send(ask_route("t", 2))
        assert len(await first.answers(1)) == 1

    serve(story, connections_max=1)


def test_the_process_says_in_one_line_why_it_ends() -> None:
    (port,) = find_free(1)
    command = [sys.executable, "-m", "shaketable.system.node.name_server", "--port", str(port)]
    first = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert first.stderr is not None
        assert f"event=serving address={HOST}:{port}" in first.stderr.readline()
        second = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=END_TIMEOUT_S, check=False
        )
        assert second.returncode == 2
        (line,) = second.stderr.splitlines()
        assert f"cannot listen on {HOST}:{port} for brokers and clients" in line
        first.send_signal(signal.SIGTERM)
        assert first.wait(END_TIMEOUT_S) == 0
        assert "Traceback" not in first.stderr.read()
    finally:
        first.kill()
        first.wait(END_TIMEOUT_S)
        first.stderr.close()


@pytest.mark.parametrize("port", ["x", "70000", "-1", "²"])
def test_odd_ports_are_named(port: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shaketable.system.node.name_server", f"--port={port}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=END_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 2
    assert "is no port, 0..65535" in done.stderr


PUT = {"namespace": "ORDER_TOPIC_CONFIG", "key": "t", "value": "b:4"}


def refuse_writes(monkeypatch: pytest.MonkeyPatch, count_max: int) -> list[str]:
    """Refuse the first attempts to write a file; return the thread of each attempt."""
    threads: list[str] = []

    def replace(disk: Disk, target: str, data: bytes) -> None:
        threads.append(threading.current_thread().name)
        if len(threads) <= count_max:
            raise DiskFailed("cannot write: Input/output error")
        replace_file(disk, target, data)

    monkeypatch.setattr(name_server, "replace_file", replace)
    return threads


async def put(connect: Callable[[], Awaitable[Peer]]) -> None:
    peer = await connect()
    await peer.send(Command(RequestCode.PUT_KV_CONFIG, 1, ext=PUT))
    assert [answer.code for answer in await peer.answers(1)] == [ResponseCode.SUCCESS]


def test_what_operators_set_is_kept_once_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kvConfig.json"
    tries = count(1)

    def full_at_first(disk: Disk, target: str, data: bytes) -> None:
        if next(tries) <= 3:
            raise DiskFull("cannot write: No space left on device")
        replace_file(disk, target, data)

    monkeypatch.setattr(name_server, "replace_file", full_at_first)

    async def story(_: NameServerNode, connect: Callable[[], Awaitable[Peer]]) -> None:
        await put(connect)
        while not path.exists():
            await trio.sleep(0.01)

    caplog.set_level("INFO")
    serve(story, FastClock(), kv_path=path)
    again = NameServerNode(HOST, 0, SystemClock(), kv_path=path)
    assert again.server.kv.get("ORDER_TOPIC_CONFIG", "t") == "b:4"
    events = [record.message.split()[0] for record in caplog.records if "kv_" in record.message]
    assert events == ["event=kv_config_not_kept", "event=kv_config_kept"]


def test_a_bad_disk_is_tried_ever_less_often_and_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = refuse_writes(monkeypatch, 1 << 30)
    pauses: list[float] = []

    class Paused(SystemClock):
        """A clock that shows how long anybody waits, and on which all waits but the scan end."""

        def move_on_at(self, due_ms: float):
            pause_ms = round(due_ms - self.now_ms(), -3)
            if pause_ms == name_server.SCAN_INTERVAL_MS:
                return trio.move_on_after(60.0)
            pauses.append(pause_ms)
            return trio.move_on_after(0.001)

    async def story(_: NameServerNode, connect: Callable[[], Awaitable[Peer]]) -> None:
        await put(connect)
        while len(threads) < 10:
            await trio.sleep(0.01)

    serve(story, Paused(), kv_path=tmp_path / "kvConfig.json")
    longer = [pause_ms for pause_ms in pauses if pause_ms > name_server.KV_RETRY_MIN_MS]
    assert longer[:7] == [2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]
    on_loop = threading.current_thread().name
    assert threads[0] == on_loop
    assert on_loop not in threads[1:10]


@pytest.mark.parametrize(
    ("refused", "last_event"), [(1, "event=kv_config_kept"), (2, "event=kv_config_lost")]
)
def test_a_clean_stop_tries_once_more_to_keep_what_operators_set(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refused: int,
    last_event: str,
) -> None:
    path = tmp_path / "kvConfig.json"
    threads = refuse_writes(monkeypatch, refused)
    monkeypatch.setattr(name_server, "KV_RETRY_MIN_MS", 1e9)
    caplog.set_level("INFO")
    serve(lambda _, connect: put(connect), kv_path=path)
    assert len(threads) == 2
    assert path.exists() == (refused == 1)
    events = [record.message.split()[0] for record in caplog.records if "kv_" in record.message]
    assert events == ["event=kv_config_not_kept", last_event]


def test_what_is_set_while_the_disk_refuses_is_kept_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is tried at once, however long the pause is by now."""
    path = tmp_path / "kvConfig.json"
    refuse_writes(monkeypatch, 1)
    monkeypatch.setattr(name_server, "KV_RETRY_MIN_MS", 1e9)

    async def story(_: NameServerNode, connect: Callable[[], Awaitable[Peer]]) -> None:
        await put(connect)
        assert not path.exists()
        peer = await connect()
        await peer.send(Command(RequestCode.PUT_KV_CONFIG, 2, ext=PUT | {"key": "u"}))
        await peer.answers(1)
        while not path.exists():
            await trio.sleep(0.01)
        again = NameServerNode(HOST, 0, SystemClock(), kv_path=path)
        assert [again.server.kv.get("ORDER_TOPIC_CONFIG", key) for key in "tu"] == ["b:4"] * 2

    serve(story, kv_path=path)


def test_what_operators_set_is_kept_and_a_bad_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    clock = SystemClock()
    node = NameServerNode(HOST, 0, clock, kv_path=path)
    node.server.kv.put("ORDER_TOPIC_CONFIG", "t", "b:4")
    node._save_kv_config()
    again = NameServerNode(HOST, 0, clock, kv_path=path)
    assert again.server.kv.get("ORDER_TOPIC_CONFIG", "t") == "b:4"
    path.write_text("[]")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "shaketable.system.node.name_server",
            "--port",
            "0",
            "--kv-config",
            str(path),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=END_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "kvConfig.json" in line

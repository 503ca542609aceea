"""What clients of the targets rocketmq ask, what the answers mean, and how its brokers start."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from shaketable.harness.contracts.plugins import Address
from shaketable.harness.described.client import Node
from shaketable.harness.targets.on_demand import PLUGINS, TargetOnDemand
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import (
    RESPONSE_FLAG,
    Command,
    FrameBuffer,
    decode_command,
    encode_command,
)

TIMEOUT_S = 30.0
[TARGET] = [each for each in PLUGINS if each.name == "rocketmq"]
FOLDER = TARGET.file.parent


def module_of(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"rocketmq_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass asks for its module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def client() -> ModuleType:
    return module_of("client")


class Answering:
    """A broker that answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str, dict[str, str]]] = []
        self.asked: list[tuple[int, dict[str, str], bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.node = Node("n0", Address("127.0.0.1", self._listener.getsockname()[1]), 5.0, {})
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        buffer = FrameBuffer()
        with connection:
            while size := connection.recv_into(buffer.writable()):
                buffer.received(size)
                for frame in buffer.frames():
                    connection.sendall(self._answer(decode_command(frame)))

    def _answer(self, request: Command) -> bytes:
        self.asked.append((request.code, dict(request.ext), bytes(request.body)))
        code, remark, ext = self.answers.pop(0)
        answer = Command(code, ext=ext, remark=remark, flag=RESPONSE_FLAG, opaque=request.opaque)
        return encode_command(answer)

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@pytest.fixture
def broker() -> Iterator[Answering]:
    with closing(Answering()) as answering:
        yield answering


def asked(client: ModuleType, node: Node, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        with trio.fail_after(TIMEOUT_S):
            session = await client.open(node)
            try:
                return await ask(session)
            finally:
                await client.close(session)

    return trio.run(run)


@pytest.mark.parametrize(
    ("code", "remark", "is_definite"),
    [
        (ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control", True),
        (ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]broker busy", True),
        (ResponseCode.SYSTEM_BUSY, "[PC_SYNCHRONIZED]broker busy, start flow control", False),
        (ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now", True),
        (ResponseCode.TOPIC_NOT_EXIST, "topic[a-0] not exist, apply first please!", True),
        (ResponseCode.MESSAGE_ILLEGAL, "the message is illegal", True),
        (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough", False),
        (ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR", False),
        (ResponseCode.FLUSH_DISK_TIMEOUT, "", False),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, "", False),
        (999, "", False),
    ],
)
def test_what_a_refused_send_means(
    client: ModuleType, broker: Answering, code: int, remark: str, is_definite: bool
) -> None:
    broker.answers = [(code, remark, {})]
    with pytest.raises(Exception) as failed:  # noqa: PT011 - its type is looked at
        asked(client, broker.node, lambda session: client.append(session, "a/0", 7))
    assert isinstance(failed.value, client.DEFINITE) is is_definite
    [(request, ext, body)] = broker.asked
    assert (request, ext["b"], ext["e"], body) == (RequestCode.SEND_MESSAGE_V2, "a-0", "0", b"7")


def test_a_topic_that_the_leader_does_not_know_is_made_and_read_again(
    client: ModuleType, broker: Answering
) -> None:
    """Else the log would be read as empty, whose messages the leader has."""
    at = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "3"}
    broker.answers = [
        (ResponseCode.TOPIC_NOT_EXIST, "", {}),
        (ResponseCode.SUCCESS, "", {}),
        (ResponseCode.SUCCESS, "", at),
    ]
    assert asked(client, broker.node, lambda session: client.end(session, "a/0")) == 3
    pulled, made, again = broker.asked
    assert pulled == again
    assert made[0] == RequestCode.UPDATE_AND_CREATE_TOPIC
    assert (made[1]["topic"], made[1]["readQueueNums"], made[1]["writeQueueNums"]) == (
        "a-0", "1", "1",
    )  # fmt: skip


@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED])
def test_an_offset_that_a_queue_does_not_have_is_none(
    client: ModuleType, broker: Answering, code: int
) -> None:
    broker.answers = [(code, "", {})]
    assert asked(client, broker.node, lambda session: client.read_at(session, "a/0", 4)) is None


def test_a_slave_refuses_reads_and_what_it_has_is_not_asked_otherwise(
    client: ModuleType, broker: Answering
) -> None:
    broker.answers = [(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy", {})]
    with pytest.raises(client.RefusedError):
        asked(client, broker.node, lambda session: client.end(session, "a/0"))
    assert [code for code, _, _ in broker.asked] == [RequestCode.PULL_MESSAGE]


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def installed() -> TargetOnDemand:
    why = TARGET.why_not_installed()
    if why is not None:
        pytest.skip(why)
    return TARGET


@pytest.fixture
def node(installed: TargetOnDemand, tmp_path: Path) -> Iterator[Node]:
    """A group of one, which leads once it has started."""
    port, peer = free_port(), free_port()
    argv = [
        sys.executable, str(FOLDER / "broker.py"), str(installed.installed / "jars"),
        "async", "128",
        "brokerIP1=127.0.0.1", "bindAddress=127.0.0.1", f"listenPort={port}",
        f"storePathRootDir={tmp_path / 'data'}", "dLegerSelfId=n0",
        f"dLegerPeers=n0-127.0.0.1:{peer}",
    ]  # fmt: skip
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            until = iter(process.stdout)
            assert any("role=LEADER currStoreRole=SYNC_MASTER" in line for line in until)
            rest = threading.Thread(target=process.stdout.read)  # else its pipe is full one day
            rest.start()
            yield Node("n0", Address("127.0.0.1", port), TIMEOUT_S, {})
        finally:
            process.kill()
    rest.join()


def test_a_log_is_a_topic_of_one_queue(client: ModuleType, node: Node) -> None:
    async def ask(session: Any) -> list[Any]:
        before = [await client.end(session, "a/0"), await client.read_at(session, "a/0", 0)]
        offsets = [await client.append(session, "a/0", value) for value in (7, 8)]
        other = await client.append(session, "a/1", 9)  # the send makes its topic
        while await client.end(session, "a/0") < 2:  # a queue follows its log
            await trio.sleep(0.05)
        after = [await client.read_at(session, "a/0", offset) for offset in (0, 1, 2)]
        return [before, offsets, other, after]

    assert asked(client, node, ask) == [[0, None], [0, 1], 0, ["7", "8", None]]


def started(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(FOLDER / "broker.py"), "/jars", *arguments]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


def test_a_broker_is_configured_and_started(tmp_path: Path, java: Path) -> None:
    done = started(tmp_path, "sync", "96", "listenPort=1234", "dLegerSelfId=n1")
    assert done.returncode == 0, done.stderr
    arguments = done.stdout.splitlines()
    assert "-Xmx96m" in arguments
    assert arguments[-5:] == [
        "-cp", "/jars/*", "org.apache.rocketmq.broker.BrokerStartup", "-c", "broker.conf",
    ]  # fmt: skip
    lines = (tmp_path / "broker.conf").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    assert settings["flushDiskType"] == "SYNC_FLUSH"
    assert (settings["listenPort"], settings["dLegerSelfId"]) == ("1234", "n1")
    assert settings["enableDLegerCommitLog"] == "true"
    assert "namesrvAddr" not in settings


BESIDE = """#!/bin/sh
echo "$@" >> java.log
case "$*" in
*BrokerStartup*) while ! grep -q Namesrv java.log; do sleep 0.01; done; touch both; exec sleep 60 ;;
*) echo $$ > name-server.pid; exec sleep 60 ;;
esac
"""
"""A java that notes what it is to run."""


def test_in_controller_mode_a_name_server_with_a_controller_is_beside_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "java").write_text(BESIDE)
    (tmp_path / "java").chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    controllers = "n0-127.0.0.1:10;n1-127.0.0.1:11"
    own = ("listenPort=20", "controllerDLegerSelfId=n1", f"controllerDLegerPeers={controllers}")
    broker_own = (
        f"controllerAddr={controllers}",
        "listenPort=1234",
        f"storePathRootDir={tmp_path}",
    )
    given = ("async", "96", *broker_own, "--", "true", *own)
    argv = [sys.executable, str(FOLDER / "broker.py"), "/jars", *given]
    with subprocess.Popen(argv, cwd=tmp_path) as broker_process:
        try:
            until((tmp_path / "both").exists)
            name_server = int((tmp_path / "name-server.pid").read_text())
        finally:
            broker_process.kill()
    until(lambda: not Path(f"/proc/{name_server}").exists())
    jvms = (tmp_path / "java.log").read_text()
    assert "org.apache.rocketmq.namesrv.NamesrvStartup -c namesrv.conf" in jvms
    assert "org.apache.rocketmq.broker.BrokerStartup -c broker.conf" in jvms
    broker, beside = (
        dict(line.split("=", 1) for line in (tmp_path / name).read_text().splitlines())
        for name in ("broker.conf", "namesrv.conf")
    )
    assert broker["controllerAddr"] == "127.0.0.1:10;127.0.0.1:11"
    assert (broker["listenPort"], beside["listenPort"]) == ("1234", "20")
    assert broker["enableControllerMode"] == beside["enableControllerInNamesrv"] == "true"
    assert "enableDLegerCommitLog" not in broker
    assert beside["controllerDLegerPeers"] == controllers


def until(is_so: Callable[[], bool]) -> None:
    by_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < by_s
        time.sleep(0.01)


@pytest.mark.parametrize(("options", "is_definite"), [({"min_in_sync": 2}, True), ({}, False)])
def test_in_controller_mode_replicas_in_sync_are_counted_before_a_message_is_stored(
    client: ModuleType, broker: Answering, options: dict[str, int], is_definite: bool
) -> None:
    node = Node("n0", Address("127.0.0.1", broker.node.port), 5.0, options)
    broker.answers = [(ResponseCode.SYSTEM_ERROR, client.NOT_IN_SYNC, {})]
    with pytest.raises(Exception) as failed:  # noqa: PT011 - its type is looked at
        asked(client, node, lambda session: client.append(session, "a/0", 7))
    assert isinstance(failed.value, client.DEFINITE) is is_definite


def test_java_home_comes_first(tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    done = started(tmp_path, "async", "96")
    assert done.returncode
    assert done.stderr == f"no java in {tmp_path}/home/bin (JAVA_HOME)\n"

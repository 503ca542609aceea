"""What clients of the target rabbitmq do, asked of one node, and how its nodes start."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shaketable.checkers.anomalies.log_rules import why_not_promised
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.described.client import Node
from shaketable.harness.discovery import target_with
from shaketable.harness.installing import LIBRARY
from shaketable.harness.targets.on_demand import PLUGINS, TargetOnDemand
from tests.support.checker_histories import context, struck
from tests.support.further_targets import skip_further

TIMEOUT_S = 60.0
[TARGET] = [each for each in PLUGINS if each.name == "rabbitmq"]
FOLDER = TARGET.file.parent
OPTIONS = {"queue_type": "quorum", "confirms": "on"}
Ask = Callable[[Any], Awaitable[Any]]


@pytest.fixture(scope="module")
def target() -> TargetOnDemand:
    why = TARGET.why_not_installed()
    if why is not None:
        skip_further(TARGET.name)
    return TARGET


@pytest.fixture
def client(target: TargetOnDemand, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(target.installed / LIBRARY))
    spec = importlib.util.spec_from_file_location("rabbitmq_client", FOLDER / "client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass asks for its module
    spec.loader.exec_module(module)
    return module


def command(installed: Path, client_port: int, peer_port: int, data: Path) -> list[str]:
    own = f"127.0.0.1 {client_port} 127.0.0.1 {peer_port} n0=127.0.0.1:{peer_port}"
    settings = "net_tick_s=30 cluster_partition_handling=ignore"
    program = [sys.executable, str(FOLDER / "broker.py"), str(installed), "n0"]
    return [*program, *own.split(), str(data), *settings.split()]


@pytest.fixture(scope="module")
def port(target: TargetOnDemand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a node that is a cluster of its own."""
    folder = tmp_path_factory.mktemp("n0")
    with ExitStack() as taken:
        listeners = [
            taken.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(2)
        ]
        ports = [listener.getsockname()[1] for listener in listeners]
    argv = command(target.installed, *ports, folder / "data")
    with subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            until = list(iter(process.stdout.readline, "in a cluster of 1\n"))
            assert process.poll() is None, "".join(until)
            rest = threading.Thread(target=process.stdout.read)  # else its pipe is full one day
            rest.start()
            yield ports[0]
        finally:
            process.kill()
    rest.join()


def asked(client: ModuleType, port: int, ask: Ask, **options: str) -> Any:
    node = Node("n0", Address("127.0.0.1", port), TIMEOUT_S, {**OPTIONS, **options})

    async def run() -> Any:
        session = await client.open(node)
        try:
            return await ask(session)
        finally:
            await client.close(session)
            await asyncio.sleep(0.1)  # its loop ends with this test: the close is to be sent

    return asyncio.run(run())


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_what_is_enqueued_is_dequeued_once(client: ModuleType, port: int, queue_type: str) -> None:
    async def ask(session: Any) -> list[Any]:
        key = f"{queue_type}/0"
        said = [await client.dequeue(session, key)]
        for value in (7, 8):
            await client.enqueue(session, key, value)
        return [*said, *[await client.dequeue(session, key) for _ in range(3)]]

    assert asked(client, port, ask, queue_type=queue_type) == [None, "7", "8", None]


def test_what_was_delivered_and_not_acknowledged_comes_back(client: ModuleType, port: int) -> None:
    """So a dequeue that got no answer has taken nothing."""

    async def leave(session: Any) -> None:
        await client.enqueue(session, "back/0", 7)
        channel = session.channel
        got = await session.asked(
            lambda: channel.basic_get("back/0", lambda *given: session.answer(given))
        )
        assert got[-1] == b"7"

    async def look(session: Any) -> Any:
        while (value := await client.dequeue(session, "back/0")) is None:
            await asyncio.sleep(0.05)
        return value

    asked(client, port, leave)
    assert asked(client, port, look) == "7"


def test_a_message_that_no_queue_takes_was_not_enqueued(client: ModuleType, port: int) -> None:
    async def ask(session: Any) -> None:
        session.declared.add("nowhere/0")  # as if it were there
        await client.enqueue(session, "nowhere/0", 7)

    with pytest.raises(client.RefusedError, match="returned the message"):
        asked(client, port, ask)
    assert client.RefusedError in client.DEFINITE


def test_a_queue_that_is_gone_gives_nothing(client: ModuleType, port: int) -> None:
    async def ask(session: Any) -> None:
        session.declared.add("gone/0")
        await client.dequeue(session, "gone/0")

    with pytest.raises(client.RefusedError, match=r"ChannelClosedByBroker: \(404"):
        asked(client, port, ask)


def test_a_message_that_is_not_confirmed_may_be_there(client: ModuleType, port: int) -> None:
    async def ask(session: Any) -> None:
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await session.asked(
            lambda: session.channel.queue_declare(
                "full/0", durable=True, arguments=full, callback=session.answer
            )
        )
        session.declared.add("full/0")
        await client.enqueue(session, "full/0", 7)
        await client.enqueue(session, "full/0", 8)

    with pytest.raises(client.NackedError):
        asked(client, port, ask)
    assert not issubclass(client.NackedError, client.DEFINITE)


def test_without_confirms_a_message_is_only_sent(client: ModuleType, port: int) -> None:
    async def ask(session: Any) -> Any:
        await client.enqueue(session, "sent/0", 7)
        assert session.waiting.done(), "it waits for nothing more"
        while (value := await client.dequeue(session, "sent/0")) is None:
            await asyncio.sleep(0.05)
        return value

    assert asked(client, port, ask, confirms="off") == "7"


def test_a_session_that_does_not_open_in_time_is_closed_later(
    client: ModuleType, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pika fails if it is closed while it opens. This node accepts it and says nothing."""
    monkeypatch.setattr(client, "GIVEN_UP_TIMEOUT_S", 1.0)
    made: list[Any] = []
    session_type = client.Session

    def make(node: Node) -> Any:
        made.append(session_type(node))
        return made[-1]

    monkeypatch.setattr(client, "Session", make)

    async def run(port: int) -> None:
        with pytest.raises(TimeoutError):
            await client.open(Node("n0", Address("127.0.0.1", port), 0.5, OPTIONS))
        while not made[0].connection.is_closed:
            await asyncio.sleep(0.05)

    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        asyncio.run(run(mute.getsockname()[1]))
    assert made[0].is_given_up
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_node_that_is_gone_is_a_session_that_does_not_open(client: ModuleType) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with pytest.raises(Exception):  # noqa: B017, PT011 - `described.client` makes it a definite error
        asked(client, port, lambda session: client.dequeue(session, "a/0"))


@pytest.mark.parametrize(
    ("kind", "confirms", "is_broken"),
    [
        ("lost-element", "on", True),
        ("lost-element", "off", False),
        ("unexpected-element", "on", True),
        ("duplicated-element", "on", False),  # it is delivered at least once
    ],
)
def test_what_breaks_a_promise(kind: str, confirms: str, is_broken: bool) -> None:
    promises = target_with("rabbitmq", (f"confirms={confirms}",)).promises
    about = context(promises=promises, **struck("kill", "partition", "pause", "power"))
    assert (why_not_promised(kind, about) is None) is is_broken


def test_a_node_is_configured_and_started(tmp_path: Path) -> None:
    """Erlang is a script that prints what it is called with."""
    installed = tmp_path / "installed"
    program = installed / "usr/lib/erlang/erts-1/bin/erlexec"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$RABBITMQ_MNESIA_BASE" "$ROOTDIR" "$@"\n')
    program.chmod(0o755)
    (installed / "usr/lib/rabbitmq/lib/rabbitmq_server-1").mkdir(parents=True)
    done = subprocess.run(
        command(installed, 1234, 2345, tmp_path / "data"),
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data, root, *arguments = done.stdout.splitlines()
    assert (data, root) == (str(tmp_path / "data"), str(installed / "usr/lib/erlang"))
    pairs = dict(itertools.pairwise(arguments))
    assert pairs["-erl_epmd_port"] == "2345"
    assert pairs["-peers"] == "n0=127.0.0.1:2345"
    assert pairs["inet_dist_use_interface"] == "{127,0,0,1}"
    assert "net_ticktime => 30}" in pairs["-eval"]
    assert arguments[-1] == "sync_when_joined"
    lines = (tmp_path / "rabbitmq.conf").read_text().splitlines()
    settings = dict(line.split(" = ", 1) for line in lines)
    assert settings["listeners.tcp.1"] == "127.0.0.1:1234"
    assert settings["cluster_formation.classic_config.nodes.1"] == "n0@localhost"
    assert settings["cluster_partition_handling"] == "ignore"
    assert "net_tick_s" not in settings
    (tmp_path / "data" / "n0").mkdir(parents=True)
    again = subprocess.run(
        command(installed, 1234, 2345, tmp_path / "data"),
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.stdout.splitlines()[-1] == "say_when_joined"


def test_what_is_not_installed_whole_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, 1234, 2345, tmp_path / "data"),
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode
    assert done.stderr.splitlines() == [
        f"no {tmp_path}/usr/lib/erlang/erts-*/bin: install rabbitmq again"
    ]

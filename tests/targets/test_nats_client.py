"""What clients of the target nats do, asked of one NATS server."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shaketable.harness.contracts.plugins import Address
from shaketable.harness.described.client import Node
from shaketable.harness.installing import LIBRARY
from shaketable.harness.targets.on_demand import PLUGINS, TargetOnDemand

STARTS_WITHIN_S = 60.0


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> TargetOnDemand:
    [found] = [each for each in PLUGINS if each.name == "nats"]
    why = found.why_not_installed()
    if why is not None:
        pytest.skip(why)
    monkeypatch.syspath_prepend(str(found.installed / LIBRARY))
    return found


@pytest.fixture
def client(target: TargetOnDemand) -> ModuleType:
    spec = importlib.util.spec_from_file_location("nats_client", target.file.parent / "client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass asks for its module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def node(target: TargetOnDemand, tmp_path: Path) -> Iterator[Node]:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    program = target.installed / "usr/sbin/nats-server"
    argv = [program, "--addr=127.0.0.1", f"--port={port}", "--jetstream", f"--store_dir={tmp_path}"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "Server is ready" in line:
                break
        options = {"reads": "leader", "replicas": 1}
        yield Node("n0", Address("127.0.0.1", port), STARTS_WITHIN_S, options)
        process.kill()


def asked(client: ModuleType, node: Node, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        session = await client.open(node)
        try:
            return await ask(session)
        finally:
            await client.close(session)

    return asyncio.run(run())


async def led(client: ModuleType, ask: Callable[[], Awaitable[Any]]) -> None:
    """Wait until what a first request makes has a leader: until then it is refused."""
    async with asyncio.timeout(10):
        while True:
            try:
                await ask()
            except client.RefusedError:
                await asyncio.sleep(0.05)
            else:
                return


def test_a_log_is_a_stream(client: ModuleType, node: Node) -> None:
    async def ask(session: Any) -> list[Any]:
        before = [await client.end(session, "a/0"), await client.read_at(session, "a/0", 0)]
        offsets = [await client.append(session, "a/0", value) for value in (7, 8)]
        other = await client.append(session, "a/1", 9)
        after = [await client.read_at(session, "a/0", offset) for offset in (0, 1, 2)]
        return [before, offsets, other, after, await client.end(session, "a/0")]

    assert asked(client, node, ask) == [[0, None], [0, 1], 0, ["7", "8", None], 2]


def test_a_register_is_a_key_of_a_bucket(client: ModuleType, node: Node) -> None:
    async def ask(session: Any) -> list[Any]:
        said = [await client.read(session, "a/0")]
        said += [await client.cas(session, "a/0", 3, 4), await client.cas(session, "a/0", None, 4)]
        said += [await client.read(session, "a/0"), await client.cas(session, "a/0", 4, 5)]
        await client.write(session, "a/0", 6)
        return [*said, await client.cas(session, "a/0", 5, 7), await client.read(session, "a/0")]

    assert asked(client, node, ask) == [None, False, True, "4", True, False, "6"]


def test_increments_that_come_at_once_all_count(client: ModuleType, node: Node) -> None:
    async def ask(session: Any) -> Any:
        others = [await client.open(node) for _ in range(4)]
        await led(client, lambda: client.count(session, "c"))
        await asyncio.gather(*(client.increment(other, "c", 2) for other in others))
        for other in others:
            await client.close(other)
        return await client.count(session, "c")

    assert asked(client, node, ask) == "8"


def test_a_stream_that_no_server_leads_has_stored_nothing(client: ModuleType, node: Node) -> None:
    async def ask(session: Any) -> None:
        session.streams.add("a-0")  # as if it were there
        await client.append(session, "a/0", 7)

    with pytest.raises(client.RefusedError):
        asked(client, node, ask)
    assert client.RefusedError in client.DEFINITE


def test_a_server_that_is_gone_is_a_session_that_does_not_open(client: ModuleType) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    gone = Node("n0", Address("127.0.0.1", port), 1.0, {"reads": "leader", "replicas": 1})
    with pytest.raises(Exception):  # noqa: B017, PT011 - `described.client` makes it a definite error
        asked(client, gone, lambda session: client.end(session, "a/0"))

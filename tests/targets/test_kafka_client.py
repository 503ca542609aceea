"""What clients of the target kafka ask, what the answers mean, and how its brokers start."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shaketable.harness.contracts.plugins import Address
from shaketable.harness.described.client import Node
from shaketable.harness.installing import LIBRARY
from shaketable.harness.targets.on_demand import PLUGINS, TargetOnDemand
from tests.support.further_targets import skip_further

TIMEOUT_S = 30.0
[TARGET] = [each for each in PLUGINS if each.name == "kafka"]
FOLDER = TARGET.file.parent


@pytest.fixture(scope="module")
def client() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kafka_client", FOLDER / "client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass asks for its module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("code", "offset", "is_definite"),
    [
        (3, -1, True),  # UNKNOWN_TOPIC_OR_PARTITION
        (6, -1, True),  # NOT_LEADER_OR_FOLLOWER
        (6, 41, False),  # of a leader that was replaced while it waited for its followers
        (3, 41, False),
        (19, -1, True),  # NOT_ENOUGH_REPLICAS
        (20, 41, False),  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
        (20, -1, False),
        (7, 41, False),  # REQUEST_TIMED_OUT
        (7, -1, False),
        (56, -1, False),  # KAFKA_STORAGE_ERROR: it may have been written
        (-1, -1, False),  # UNKNOWN_SERVER_ERROR
        (10, -1, True),  # MESSAGE_TOO_LARGE
        (999, -1, False),
    ],
)
def test_what_a_refused_append_means(
    client: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    offset: int,
    is_definite: bool,
) -> None:
    monkeypatch.setattr(client, "_name", str)  # the library's, which may not be installed
    error = client.error_of_append(code, offset)
    assert isinstance(error, client.DEFINITE) is is_definite


class Answering:
    """A session's connection that answers Produce and CreateTopics as it is told."""

    def __init__(self, *answers: tuple[int, int]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def produced(self, _session: object, key: str, value: int) -> tuple[int, int]:
        self.asked.append(f"produce {key} {value}")
        return self.answers.pop(0)

    async def make_topic(self, _session: object, key: str) -> None:
        self.asked.append(f"make {key}")


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([(0, 7)], ["produce a/0 5"]),
        ([(3, -1), (0, 7)], ["produce a/0 5", "make a/0", "produce a/0 5"]),
    ],
)
def test_a_topic_is_made_only_if_the_broker_does_not_know_it(
    client: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[tuple[int, int]],
    asked: list[str],
) -> None:
    broker = Answering(*answers)
    monkeypatch.setattr(client, "_produced", broker.produced)
    monkeypatch.setattr(client, "_make_topic", broker.make_topic)
    session = client.Session(None, -1, 3, 1000)
    assert asyncio.run(client.append(session, "a/0", 5)) == 7
    assert broker.asked == asked


def test_a_message_that_may_be_in_the_log_is_not_sent_again(
    client: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was removed from the broker after it had appended the message."""
    broker = Answering((3, 7))
    monkeypatch.setattr(client, "_produced", broker.produced)
    monkeypatch.setattr(client, "_name", str)
    session = client.Session(None, -1, 3, 1000)
    with pytest.raises(client.FailedError):
        asyncio.run(client.append(session, "a/0", 5))
    assert broker.asked == ["produce a/0 5"]


@pytest.mark.parametrize(("offset", "is_known"), [(7, True), (-1, False)])
def test_a_duplicate_without_its_offset_is_indefinite(
    client: ModuleType, offset: int, is_known: bool
) -> None:
    """The library takes it for a success, and passes on what stands for no offset."""

    class Producer:
        async def send_and_wait(self, topic: str, value: bytes, partition: int) -> Any:
            assert (topic, value, partition) == ("a-0", b"5", 0)
            return SimpleNamespace(offset=offset)

    session = client.Session(None, -1, 3, 1000, Producer(), {"a/0"})
    if is_known:
        assert asyncio.run(client.append(session, "a/0", 5)) == offset
        return
    with pytest.raises(client.FailedError) as failed:
        asyncio.run(client.append(session, "a/0", 5))
    assert not isinstance(failed.value, client.DEFINITE)


def test_a_fetch_is_of_the_last_version_that_followers_refuse(
    client: ModuleType, installed: TargetOnDemand
) -> None:
    class Connection:
        async def send(self, request: Any) -> Any:
            sent = request.prepare({1: (4, 17)})
            assert (sent.API_KEY, sent.API_VERSION) == (1, 10)
            raise ConnectionError("it is sent")

    session = client.Session(Connection(), -1, 3, 1000)
    with pytest.raises(ConnectionError, match="it is sent"):
        asyncio.run(client.read_at(session, "a/0", 5))


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def installed() -> Iterator[TargetOnDemand]:
    why = TARGET.why_not_installed()
    if why is not None:
        skip_further(TARGET.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TARGET.installed / LIBRARY))
        yield TARGET


@pytest.fixture(scope="module")
def node(installed: TargetOnDemand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker alone, with storage that was formatted."""
    folder = tmp_path_factory.mktemp("kafka")
    port, peer, quorum = free_port(), free_port(), free_port()
    jars = str(installed.installed / "jars")
    program = [sys.executable, str(FOLDER / "broker.py")]
    settings = [
        "node.id=0", f"log.dirs={folder / 'data'}",
        f"controller.quorum.voters=0@127.0.0.1:{quorum}",
        f"listeners=CLIENTS://127.0.0.1:{port},PEERS://127.0.0.1:{peer}"
        f",QUORUM://127.0.0.1:{quorum}",
        "min.insync.replicas=1", "unclean.leader.election.enable=false",
        "log.flush.interval.messages=1",
    ]  # fmt: skip
    subprocess.run([*program, "format", jars, "128", *settings], cwd=folder, check=True)
    argv = [*program, "run", jars, "256"]
    with subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("Kafka Server started" in line for line in process.stdout)
            rest = threading.Thread(target=process.stdout.read)  # else its pipe is full one day
            rest.start()
            options = {"acks": "all", "replicas": 1, "idempotence": "off"}
            yield Node("n0", Address("127.0.0.1", port), TIMEOUT_S, options)
        finally:
            process.kill()
    rest.join()


def asked(client: ModuleType, node: Node, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        session = await client.open(node)
        try:
            return await ask(session)
        finally:
            await client.close(session)

    return asyncio.run(run())


async def when_led(client: ModuleType, do: Callable[[], Awaitable[Any]]) -> Any:
    """Do it again while the broker does not yet lead the topic that was just made."""
    while True:
        try:
            return await do()
        except client.RefusedError:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("idempotence", ["off", "on"])
def test_a_log_is_a_topic_of_one_partition(
    client: ModuleType, node: Node, idempotence: str
) -> None:
    async def ask(session: Any) -> list[Any]:
        key = f"{idempotence}/0"
        before = [await when_led(client, lambda: client.end(session, key))]
        before.append(await client.read_at(session, key, 0))
        offsets = [await client.append(session, key, value) for value in (7, 8)]
        other = await when_led(client, lambda: client.append(session, f"{idempotence}/1", 9))
        after = [await client.read_at(session, key, offset) for offset in (0, 1, 2, 3)]
        return [before, offsets, other, after, await client.end(session, key)]

    chosen = Node("n0", Address(node.host, node.port), TIMEOUT_S, {
        **node.options, "idempotence": idempotence,
    })  # fmt: skip
    expected = [[0, None], [0, 1], 0, ["7", "8", None, None], 2]
    assert asked(client, chosen, ask) == expected


def test_a_topic_that_lacks_brokers_is_not_made(client: ModuleType, node: Node) -> None:
    lacking = Node("n0", Address(node.host, node.port), TIMEOUT_S, {**node.options, "replicas": 2})
    with pytest.raises(client.RefusedError, match="the topic was not made"):
        asked(client, lacking, lambda session: client.append(session, "b/0", 7))


def test_idempotence_without_acks_of_all_is_refused(client: ModuleType, node: Node) -> None:
    options = {**node.options, "acks": "1", "idempotence": "on"}
    wrong = Node("n0", Address(node.host, node.port), TIMEOUT_S, options)
    with pytest.raises(client.RefusedError, match="idempotence=on needs acks=all"):
        asked(client, wrong, lambda session: client.end(session, "a/0"))


def test_a_broker_that_is_gone_is_a_session_that_does_not_open(
    client: ModuleType, installed: TargetOnDemand
) -> None:
    options = {"acks": "all", "replicas": 1, "idempotence": "off"}
    gone = Node("n0", Address("127.0.0.1", free_port()), 1.0, options)
    with pytest.raises(OSError, match=r"refused|failed"):
        asked(client, gone, lambda session: client.end(session, "a/0"))


def started(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(FOLDER / "broker.py"), *arguments]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("flush", "written"), [("never", None), ("1", "1")])
def test_a_broker_is_configured_formatted_and_started(
    tmp_path: Path, java: Path, flush: str, written: str | None
) -> None:
    given = ("node.id=1", "log.dirs=data", f"log.flush.interval.messages={flush}")
    done = started(tmp_path, "format", "/jars", "96", *given)
    assert done.returncode == 0, done.stderr
    arguments = done.stdout.splitlines()
    assert "-Xmx96m" in arguments
    assert arguments[-8:-4] == ["-cp", "/jars/*", "kafka.tools.StorageTool", "format"]
    assert arguments[-2:] == ["--config", "server.properties"]
    lines = (tmp_path / "server.properties").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    assert (settings["node.id"], settings["process.roles"]) == ("1", "broker,controller")
    assert settings.get("log.flush.interval.messages") == written
    done = started(tmp_path, "run", "/jars", "96")
    assert done.stdout.splitlines()[-2:] == ["kafka.Kafka", "server.properties"]


def test_java_home_comes_first(tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    done = started(tmp_path, "run", "/jars", "96")
    assert done.returncode
    assert done.stderr == f"no java in {tmp_path}/home/bin (JAVA_HOME)\n"

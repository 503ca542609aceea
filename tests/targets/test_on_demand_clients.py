"""What clients of targets that are installed on demand ask, and what the answers mean."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType
from typing import Any

import pytest

from shaketable.harness.contracts.plugins import Address
from shaketable.harness.described.client import Node
from shaketable.harness.targets.on_demand import PLUGINS


def client_of(target: str) -> ModuleType:
    [found] = [each for each in PLUGINS if each.name == target]
    spec = importlib.util.spec_from_file_location(
        f"client_of_{target}", found.file.parent / "client.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Answering(HTTPServer):
    """A server that answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, Any]] = []

    def node(self, **options: object) -> Node:
        return Node("n0", Address("127.0.0.1", self.server_port), 5.0, options)


class Handler(BaseHTTPRequestHandler):
    server: Answering
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        code, said = self.server.answers.pop(0)
        text = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering() as answering:
        thread = threading.Thread(target=answering.serve_forever)
        thread.start()
        yield answering
        answering.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("target", "said", "is_definite"),
    [
        ("pysyncobj", "MISSING_LEADER", True),
        ("pysyncobj", "QUEUE_FULL", True),
        ("pysyncobj", "DISCARDED", False),
        ("pysyncobj", "NOT_LEADER", False),
        ("pysyncobj", "no answer", False),
        ("etcd", {"error": "etcdserver: no leader"}, True),
        ("etcd", {"error": "etcdserver: too many requests"}, True),
        ("etcd", {"error": "etcdserver: request timed out"}, False),
        ("etcd", {"error": "etcdserver: leader changed"}, False),
        ("etcd", {}, False),
    ],
)
def test_what_an_error_means(
    target: str, said: object, is_definite: bool, server: Answering
) -> None:
    client = client_of(target)
    server.answers = [(503, said)]
    session = client.open(server.node(reads="linearizable"))
    with pytest.raises(Exception) as failed:  # noqa: PT011 - its type is looked at
        client.write(session, "k", 7)
    client.close(session)
    assert isinstance(failed.value, client.DEFINITE) is is_definite


def test_pysyncobj_is_asked_by_method(server: Answering) -> None:
    client = client_of("pysyncobj")
    server.answers = [(200, None), (200, 7), (200, False), (200, [1, 2])]
    session = client.open(server.node())
    assert client.write(session, "k", 7) is None
    assert client.read(session, "k") == 7
    assert client.cas(session, "k", None, 8) is False
    assert client.elements(session, "k") == [1, 2]
    client.close(session)
    assert server.asked == [
        ("/write", ["k", 7]),
        ("/read", ["k"]),
        ("/cas", ["k", None, 8]),
        ("/elements", ["k"]),
    ]


def test_an_increment_of_etcd_is_tried_again_if_another_came_before(server: Answering) -> None:
    client = client_of("etcd")
    kept = {"kvs": [{"value": "NQ==", "mod_revision": "12"}]}
    server.answers = [(200, {}), (200, {}), (200, kept), (200, {"succeeded": True})]
    session = client.open(server.node(reads="serializable"))
    client.increment(session, "k", 2)
    client.close(session)
    (_, first), (_, absent), _, (path, same) = server.asked
    assert first == {"key": "aw==", "serializable": True}
    assert absent["compare"] == [{"key": "aw==", "target": "MOD", "mod_revision": "0"}]
    assert path == "/v3/kv/txn"
    assert same["compare"] == [{"key": "aw==", "target": "MOD", "mod_revision": "12"}]
    assert same["success"] == [{"request_put": {"key": "aw==", "value": "Nw=="}}]


def test_an_increment_that_never_comes_first_has_changed_nothing(server: Answering) -> None:
    client = client_of("etcd")
    server.answers = [(200, {})] * (2 * client.ATTEMPTS_MAX)
    session = client.open(server.node(reads="linearizable"))
    with pytest.raises(client.RefusedError):
        client.increment(session, "k", 2)
    client.close(session)
    assert not server.answers


STEPS = [["r", "k", None], ["append", "k", 3], ["r", "k", None], ["append", "other", 4]]


def test_a_transaction_of_etcd_writes_if_nothing_that_it_read_has_changed(
    server: Answering,
) -> None:
    client = client_of("etcd")
    kept = {"kvs": [{"value": "MSAy", "mod_revision": "12"}]}
    read = {"responses": [{"response_range": kept}, {"response_range": {}}]}
    server.answers = [(200, read), (200, {}), (200, read), (200, {"succeeded": True})]
    session = client.open(server.node(reads="linearizable"))
    assert client.transact(session, STEPS) == [
        ["r", "k", ["1", "2"]], ["append", "k", 3], ["r", "k", ["1", "2", "3"]],
        ["append", "other", 4],
    ]  # fmt: skip
    client.close(session)
    (path, asked), (_, written), _, _ = server.asked
    assert path == "/v3/kv/txn"
    assert asked["success"] == [
        {"request_range": {"key": "aw==", "serializable": False}},
        {"request_range": {"key": "b3RoZXI=", "serializable": False}},
    ]
    assert written["compare"] == [
        {"key": "aw==", "target": "MOD", "mod_revision": "12"},
        {"key": "b3RoZXI=", "target": "MOD", "mod_revision": "0"},
    ]
    assert written["success"] == [
        {"request_put": {"key": "aw==", "value": "MSAyIDM="}},
        {"request_put": {"key": "b3RoZXI=", "value": "NA=="}},
    ]


@pytest.mark.parametrize(
    ("answers", "is_definite"),
    [
        ([(503, {"error": "etcdserver: request timed out"})], True),
        ([(200, {"responses": [{"response_range": {}}] * 2})] * 1
         + [(503, {"error": "etcdserver: request timed out"})], False),
        ([(200, {"responses": [{"response_range": {}}] * 2}), (200, {})] * 32, True),
    ],
    ids=["as it reads", "as it writes", "others always come before"],
)  # fmt: skip
def test_a_transaction_of_etcd_is_of_unknown_outcome_only_if_it_may_have_written(
    answers: list[Any], is_definite: bool, server: Answering
) -> None:
    client = client_of("etcd")
    server.answers = answers
    session = client.open(server.node(reads="linearizable"))
    with pytest.raises(Exception) as failed:  # noqa: PT011 - its type is looked at
        client.transact(session, STEPS)
    client.close(session)
    assert isinstance(failed.value, client.DEFINITE) is is_definite
    assert not server.answers


def test_elements_of_a_set_of_etcd_are_its_keys(server: Answering) -> None:
    client = client_of("etcd")
    server.answers = [(200, {"kvs": [{"value": "MQ=="}, {"value": "Mg=="}]}), (200, {})]
    session = client.open(server.node(reads="linearizable"))
    assert client.elements(session, "k") == ["1", "2"]
    assert client.elements(session, "k") == []
    client.close(session)
    assert server.asked[0][1] == {"key": "ay8=", "range_end": "azA=", "serializable": False}

"""What clients of the target galera ask of a server, what its errors mean, and how nodes start."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pymysql
import pytest
from pymysql.err import InternalError, OperationalError

from shaketable.harness.campaigns.campaign import Campaign, loads, repeat_command
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.described.client import Node
from shaketable.harness.discovery import target_with
from shaketable.harness.runtime.availability import why_unsupported
from shaketable.harness.targets.on_demand import PLUGINS

[TARGET] = [each for each in PLUGINS if each.name == "galera"]
FOLDER = TARGET.file.parent
OPTIONS = {"reads": "plain", "isolation": "REPEATABLE READ", "sync_wait": 7}
DEADLOCK = OperationalError(1213, "Deadlock found when trying to get lock")
LOST = OperationalError(2013, "Lost connection to server during query")
INSERT_LIST = (
    "INSERT INTO lists VALUES (%s, %s)"
    " ON DUPLICATE KEY UPDATE elements = CONCAT(elements, ' ', VALUES(elements))"
)


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"galera_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


class Server:
    """A connection that notes statements, and answers them: rows, a count, or an error."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[object, ...]]] = []
        self.answers: dict[str, Any] = {}
        self.is_closed = False
        self.given: dict[str, Any] = {}

    def connect(self, **given: Any) -> Server:
        self.given = given
        return self

    def cursor(self) -> Server:
        return self

    def __enter__(self) -> Server:
        self.rows: Sequence[tuple[Any, ...]] = ()
        return self

    def __exit__(self, *_error: object) -> None: ...

    def execute(self, statement: str, values: tuple[object, ...]) -> int:
        self.asked.append((statement, values))
        answer = next((a for s, a in self.answers.items() if statement.startswith(s)), 1)
        if isinstance(answer, Exception):
            raise answer
        self.rows = answer if isinstance(answer, list) else ()
        return answer if isinstance(answer, int) else len(self.rows)

    def fetchall(self) -> Sequence[tuple[Any, ...]]:
        return self.rows

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(pymysql, "connect", made.connect)
    return made


@pytest.fixture
def client() -> ModuleType:
    return module("client")


def opened(client: ModuleType, server: Server, **options: Any) -> Any:
    session = client.open(Node("n1", Address("127.0.0.1", 3306), 2.0, {**OPTIONS, **options}))
    server.asked.clear()
    return session


def test_a_session_has_the_level_and_waits_as_the_options_say(
    client: ModuleType, server: Server
) -> None:
    client.open(
        Node("n1", Address("10.0.0.1", 3307), 2.0, {**OPTIONS, "isolation": "SERIALIZABLE"})
    )
    assert [statement for statement, _ in server.asked] == [
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET SESSION wsrep_sync_wait = 7",
    ]
    assert (server.given["host"], server.given["port"]) == ("10.0.0.1", 3307)
    assert server.given["read_timeout"] == server.given["connect_timeout"] == 2.0
    assert server.given["ssl_disabled"]


def test_a_session_that_cannot_be_set_up_is_closed(client: ModuleType, server: Server) -> None:
    server.answers = {"SET SESSION wsrep": OperationalError(1047, "WSREP has not yet prepared")}
    with pytest.raises(client.RefusedError, match="1047"):
        client.open(Node("n1", Address("127.0.0.1", 3306), 2.0, OPTIONS))
    assert server.is_closed


OBJECTS: list[tuple[Callable[[Any, Any], Any], str, Any, Any]] = [
    (lambda c, s: c.read(s, "k"), "SELECT value FROM registers", [(7,)], 7),
    (lambda c, s: c.read(s, "k"), "SELECT value FROM registers", [], None),
    (lambda c, s: c.write(s, "k", 3), "INSERT INTO registers", 1, None),
    (lambda c, s: c.cas(s, "k", 2, 3), "UPDATE registers", 1, True),
    (lambda c, s: c.cas(s, "k", 2, 3), "UPDATE registers", 0, False),
    (lambda c, s: c.cas(s, "k", None, 3), "INSERT IGNORE INTO registers", 1, True),
    (lambda c, s: c.cas(s, "k", None, 3), "INSERT IGNORE INTO registers", 0, False),
    (lambda c, s: c.add(s, "k", 3), "INSERT INTO sets", 1, None),
    (lambda c, s: c.elements(s, "k"), "SELECT value FROM sets", [(1,), (2,)], [1, 2]),
    (lambda c, s: c.increment(s, "k", 1), "INSERT INTO counters", 1, None),
    (lambda c, s: c.count(s, "k"), "SELECT value FROM counters", [(4,)], 4),
    (lambda c, s: c.count(s, "k"), "SELECT value FROM counters", [], None),
]


@pytest.mark.parametrize(("ask", "statement", "answer", "result"), OBJECTS)
def test_an_operation_is_one_statement(
    client: ModuleType, server: Server, ask: Any, statement: str, answer: Any, result: Any
) -> None:
    session = opened(client, server)
    server.answers = {statement: answer}
    assert ask(client, session) == result
    [(said, values)] = server.asked
    assert said.startswith(statement)
    assert "k" in values


@pytest.mark.parametrize(
    ("error", "is_definite"),
    [
        (DEADLOCK, True),
        (OperationalError(1205, "Lock wait timeout exceeded"), True),
        (OperationalError(1020, "Record has changed since last read"), True),
        (InternalError(1047, "WSREP has not yet prepared node for application use"), True),
        (LOST, False),
        (OperationalError(1180, "Got error 5 during COMMIT"), False),
        (InternalError(), False),
    ],
)
def test_what_an_error_of_a_write_means(
    client: ModuleType, server: Server, error: Exception, is_definite: bool
) -> None:
    session = opened(client, server)
    server.answers = {"INSERT": error}
    with pytest.raises(Exception) as failed:  # noqa: PT011 - its type is looked at
        client.write(session, "k", 1)
    assert isinstance(failed.value, client.DEFINITE) is is_definite


STEPS = [["r", "k", None], ["append", "k", 3], ["r", "other", None]]


@pytest.mark.parametrize("reads", ["plain", "for-update"])
def test_a_transaction_is_its_steps_between_start_and_commit(
    client: ModuleType, server: Server, reads: str
) -> None:
    session = opened(client, server, reads=reads)
    server.answers = {"SELECT": [("1 2",)]}
    done = client.transact(session, STEPS)
    assert done == [["r", "k", ["1", "2"]], ["append", "k", 3], ["r", "other", ["1", "2"]]]
    locks = " FOR UPDATE" if reads == "for-update" else ""
    select = f"SELECT elements FROM lists WHERE name = %s{locks}"
    assert server.asked == [
        ("START TRANSACTION", ()), (select, ("k",)), (INSERT_LIST, ("k", 3)),
        (select, ("other",)), ("COMMIT", ()),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "error", "is_definite"),
    [
        ("START", LOST, True),
        ("SELECT", LOST, True),
        ("INSERT", DEADLOCK, True),
        ("COMMIT", DEADLOCK, True),
        ("COMMIT", LOST, False),
    ],
)
def test_a_transaction_is_of_unknown_outcome_only_if_its_commit_was_sent(
    client: ModuleType, server: Server, statement: str, error: Exception, is_definite: bool
) -> None:
    session = opened(client, server)
    server.answers = {"SELECT": [("1",)], statement: error}
    with pytest.raises(Exception) as failed:  # noqa: PT011 - its type is looked at
        client.transact(session, STEPS)
    assert isinstance(failed.value, client.DEFINITE) is is_definite


# How a node starts.

MEMBERS = "n0=127.0.0.1:4001,n1=127.0.0.1:4002"


@pytest.fixture
def started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[list[str], list[list[str]]]]]:
    """Start a node in its folder; return its command, and those that were run before it."""
    made, ran = module("server"), list[list[str]]()
    (tmp_path / "n/data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "n")
    (tmp_path / "usr/share/mysql").mkdir(parents=True)
    (tmp_path / made.SYSTEM_TABLES).write_text("CREATE TABLE user (name INT);")
    slept_s: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept_s), sleep=slept_s.append)
    monkeypatch.setattr(made, "time", clock)
    environment = dict(os.environ)
    commands: list[list[str]] = []

    def start(
        node: str, said: str = "", code: int = 0, task: str = "run"
    ) -> tuple[list[str], list[list[str]]]:
        def run(argv: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
            ran.append([*argv, given.get("input", "")])
            return subprocess.CompletedProcess(argv, code, "", said)

        monkeypatch.setattr(
            made, "subprocess", SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL)
        )
        monkeypatch.setattr(made.os, "execv", lambda _program, argv: commands.append(argv))
        data = str(tmp_path / "n/data")
        if task == "setup":
            made.main("setup", str(tmp_path), node, MEMBERS, data)
            return [], ran
        own = ["127.0.0.1", "3306", "127.0.0.1", "4001"]
        setting = "innodb_flush_log_at_trx_commit=2"
        made.main("run", str(tmp_path), node, *own, MEMBERS, data, setting)
        return commands[-1], ran

    yield start
    os.environ.clear()
    os.environ.update(environment)


def test_the_first_node_forms_the_group_once(started: Any, tmp_path: Path) -> None:
    command, ran = started("n0")
    assert command[0] == str(tmp_path / "usr/sbin/mariadbd")
    assert "--wsrep-new-cluster" in command
    assert "--wsrep-cluster-address=gcomm://127.0.0.1:4001,127.0.0.1:4002" in command
    assert "--innodb_flush_log_at_trx_commit=2" in command
    assert not ran
    command, ran = started("n0")
    assert "--wsrep-new-cluster" not in command, "it has lost its data: it joins the others"
    assert not ran
    command, _ = started("n1")
    assert "--wsrep-new-cluster" not in command


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("[Note] WSREP: Recovered position: 59b04607-ec3c-11f1-80c6-6afeddfb7e8b:8\n", ":8"),
        ("[Note] WSREP: Recovered position: 00000000-0000-0000-0000-000000000000:-1\n", None),
        ("[Note] WSREP: disabled, skipping position recovery\n", None),
    ],
)
def test_a_node_joins_with_what_innodb_has_committed(
    started: Any, tmp_path: Path, said: str, expected: str | None
) -> None:
    (tmp_path / "n/data/ibdata1").touch()
    command, [asked] = started("n1", said)
    assert "--wsrep-recover" in asked
    assert "--wsrep-on=ON" in asked, "else the server says nothing of it"
    positions = [each for each in command if each.startswith("--wsrep-start-position=")]
    assert [each.endswith(expected or "?") for each in positions] == [True] * bool(expected)


@pytest.mark.parametrize(("node", "asked"), [("n0", ["4002"] * 3), ("n1", ["4001"] * 3)])
def test_a_node_without_data_starts_once_another_one_listens(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str, asked: list[str]
) -> None:
    tried: list[str] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        tried.append(str(address[1]))
        if len(tried) < 3:
            raise ConnectionRefusedError(111, "Connection refused")
        return socket.socket()

    (tmp_path / "n/formed").touch()
    monkeypatch.setattr(socket, "create_connection", connect)
    command, _ = started(node)
    assert tried == asked
    assert "--wsrep-new-cluster" not in command
    (tmp_path / "n/data/ibdata1").touch()
    started(node)
    assert tried == asked, "what it has joins at once"


def test_only_the_first_node_makes_data(started: Any) -> None:
    _, ran = started("n1", task="setup")
    assert not ran
    _, [asked] = started("n0", task="setup")
    assert "--bootstrap" in asked
    assert "CREATE TABLE user" in asked[-1]
    assert "CREATE TABLE kv.lists" in asked[-1]
    with pytest.raises(SystemExit, match=r"^the first data cannot be made: \['no space'\]$"):
        started("n0", "no space", 1, "setup")


def test_a_state_transfer_looks_up_no_names(started: Any, tmp_path: Path) -> None:
    started("n1")
    assert os.environ["PATH"].startswith(f"{tmp_path}/n/bin:{tmp_path}/usr/bin:")
    wrapper = tmp_path / "n/bin/rsync"
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/rsync").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "usr/bin/rsync").chmod(0o755)
    said = subprocess.check_output([wrapper, "--daemon", "--no-detach"], text=True)
    assert said.startswith("--daemon --dparam=reverse lookup=no --dparam=forward lookup=no --no-de")
    assert ("--dparam=uid=0" in said) == (os.geteuid() == 0)
    assert subprocess.check_output([wrapper, "-a", "from", "to"], text=True) == "-a from to\n"


# What it promises, and what is usual for it.


@pytest.mark.parametrize(
    ("option", "level", "linearizable"),
    [
        ((), "snapshot-isolation", {"read", "write", "cas", "add"}),
        (("snapshot_isolation=OFF",), "read-committed", {"read", "write", "cas", "add"}),
        (("isolation=READ COMMITTED",), "read-committed", {"read", "write", "cas", "add"}),
        (("sync_wait=0",), "snapshot-isolation", set()),
    ],
)
def test_options_take_from_its_promises(
    option: tuple[str, ...], level: str, linearizable: set[str]
) -> None:
    promises = target_with("galera", option).promises
    assert promises.isolation == level
    assert promises.linearizable == linearizable


@pytest.mark.parametrize("flush", ["0", "1", "2"])
def test_power_is_survived_if_each_commit_is_synced(flush: str) -> None:
    promises = target_with("galera", (f"flush_log_at_commit={flush}",)).promises
    assert ("power" in promises.durable_under) == (flush == "1")
    assert ("kill" in promises.durable_under) == (flush != "0")


def test_its_links_are_cut_in_namespaces_alone() -> None:
    why = why_unsupported("process", Capability.CUT, TARGET, {})
    assert why is not None
    assert why.endswith("--world netns has such links")
    assert why_unsupported("netns", Capability.CUT, TARGET, {}) is None
    assert why_unsupported("process", Capability.KILL, TARGET, {}) is None


def test_its_campaigns_have_a_pace_of_their_own_unless_they_give_one(tmp_path: Path) -> None:
    usual, given = (
        loads('target = "galera"', "c"),
        loads("", "c", {"target": "galera", "steady": 3}),
    )
    assert (usual.nemesis_interval_s, usual.op_timeout_s) == (7.0, 2.0)
    assert (given.nemesis_interval_s, given.steady_s) == (7.0, 3.0)
    own = loads('target = "galera"\nnemesis_interval = 0.8', "c")
    assert own.nemesis_interval_s == Campaign().nemesis_interval_s
    assert "--nemesis-interval" not in repeat_command(usual, tmp_path)
    assert "--nemesis-interval 0.8" in repeat_command(own, tmp_path)
    assert loads("", "c").nemesis_interval_s == Campaign().nemesis_interval_s

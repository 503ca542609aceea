"""What operators may leave with a name server is bounded, and its answers fit a frame."""

from __future__ import annotations

import msgspec
import pytest

from shaketable.system.nameserver import name_server
from shaketable.system.nameserver.name_server import (
    ORDER_NAMESPACE,
    DamagedKvConfig,
    KvConfig,
    NameServer,
)
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, CommandError, encode_command
from shaketable.system.remoting.name_server_requests import RegisterBrokerHeader


def fill(kv: KvConfig, value: str) -> None:
    for number in range(400):
        kv.put(ORDER_NAMESPACE, f"{value[0]}{number}", value)


def test_brokers_can_register_whatever_operators_left() -> None:
    """The orders of topics come with each answer: were they longer than a frame, none would."""
    server = NameServer()
    for value in ("b" * name_server.VALUE_BYTES_MAX, "\x00" * name_server.VALUE_BYTES_MAX):
        with pytest.raises(CommandError, match="delete some"):
            fill(server.kv, value)
    header = RegisterBrokerHeader("b", "h:1", "c", 0)
    answer = server.handle(1, Command(RequestCode.REGISTER_BROKER, 1, ext=header.to_ext()), 0.0)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    assert len(encode_command(answer)) > name_server.BYTES_MAX // 2
    key = next(iter(msgspec.json.decode(answer.body)["table"]))
    server.kv.put(ORDER_NAMESPACE, key, "b:1")
    server.kv.put(ORDER_NAMESPACE, key, "b:2")
    server.kv.put(ORDER_NAMESPACE, "now", "there is room")


def test_what_is_counted_is_what_is_kept() -> None:
    kv = KvConfig()
    empty = len(kv.encode())
    for value in ("a", "\x00", 'b"' * 9):
        kv.put("n", "k", value)
        kv.put("m", "é", value)
    again = KvConfig()
    again.load(kv.encode())
    assert again._bytes == kv._bytes >= len(kv.encode()) - empty - 100
    for one in (kv, again):
        one.delete("n", "k")
        one.delete("n", "k")
        one.delete("m", "é")
        assert one._bytes == 0


def test_namespaces_that_hold_nothing_are_forgotten_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(name_server, "VALUES_MAX", 10)
    kv = KvConfig()
    kv.put("kept", "k", "v")
    for number in range(1000):
        kv.put(f"n{number}", "k", "v")
        kv.delete(f"n{number}", "k")
    assert kv.table("n999") == b'{"table":{}}', "as RocketMQ answers"
    assert len(kv.encode()) < 1000
    assert kv.get("kept", "k") == "v"


@pytest.mark.parametrize("data", [b"[]", b'{"configTable":{"\xff":{}}}', b'{"configTable":5}', b""])
def test_a_file_that_is_none_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedKvConfig):
        KvConfig().load(data)

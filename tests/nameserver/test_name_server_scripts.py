"""Text scripts for a name server, in tests/nameserver/scripts/*.txt.

Requests go in and responses come out as they stand on the wire. `pytest --rewrite` writes what
is printed now; the diff is the review. Commands:
register CONNECTION ADDRESS NAME ID [topics=t:READ:WRITE:PERM,...] [KEY=VALUE...] |
unregister ADDRESS NAME | close CONNECTION | elapse MS | scan | beat ADDRESS |
query ADDRESS NAME KEY=VALUE... | route TOPIC | brokers | topics | topics_of CLUSTER |
delete TOPIC | wipe NAME | add NAME | ask CODE | put NAMESPACE KEY VALUE | get NAMESPACE KEY |
remove NAMESPACE KEY | values NAMESPACE.
Keys: state, counter, cluster, timeout, acting.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from text_scripts import check_script

from shaketable.system.nameserver.name_server import NameServer
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command, FrameBuffer, decode_command, encode_command
from shaketable.system.remoting.name_server_requests import (
    BrokerData,
    DataVersion,
    RegisterBrokerHeader,
    TopicConfig,
    body_crc32,
    decode_cluster_info,
    decode_data_version,
    decode_route,
    encode_data_version,
    encode_register_body,
)
from shaketable.system.remoting.name_server_requests import decode_topic_list as topic_list

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


def on_the_wire(command: Command) -> Command:
    """What the other side makes of a command."""
    data = encode_command(command)
    buffer = FrameBuffer()
    buffer.writable()[: len(data)] = data
    buffer.received(len(data))
    (frame,) = buffer.frames()
    return decode_command(frame)


def topic(text: str) -> TopicConfig:
    name, *numbers = text.split(":")
    return TopicConfig(name, *map(int, numbers))


def said(data: BrokerData) -> str:
    addresses = " ".join(f"{number}={address}" for number, address in data.broker_addrs.items())
    acting = " acting" if data.enable_acting_master else ""
    return f"{data.cluster}/{data.broker_name} {addresses}{acting}"


class Interpreter:
    def __init__(self, server: NameServer | None = None) -> None:
        self.server = server or NameServer(order_message_enable=True)
        self.now_ms = 0.0

    def run(self, line: str) -> str:
        name, *words = line.split()
        plain = [word for word in words if "=" not in word]
        keys = dict(word.split("=", 1) for word in words if "=" in word)
        return "\n".join(getattr(self, f"do_{name}")(*plain, **keys) or ["ok"])

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", connection: int = 99
    ) -> Command:
        request = on_the_wire(Command(code, 7, ext=ext or {}, body=body))
        answer = self.server.handle(connection, request, self.now_ms)
        assert answer is not None
        response = on_the_wire(answer)
        assert response.is_response
        assert response.opaque == 7
        return response

    def do_register(
        self, connection: str, address: str, name: str, number: str, **keys: str
    ) -> list[str]:
        text = keys.get("topics", "t:4:4:6,u:2:2:6")
        topics = [topic(part) for part in text.split(",") if part]
        version = DataVersion(int(keys.get("state", 0)), 0, int(keys.get("counter", 0)))
        body = encode_register_body(topics, version)
        header = RegisterBrokerHeader(
            name,
            address,
            keys.get("cluster", "c"),
            int(number),
            ha_server_addr=f"ha-of-{address}",
            heartbeat_timeout_millis=int(keys["timeout"]) if "timeout" in keys else None,
            enable_acting_master=keys["acting"] == "true" if "acting" in keys else None,
            body_crc32=body_crc32(body),
        )
        response = self.ask(
            RequestCode.REGISTER_BROKER, header.to_ext(), body, int(connection.removeprefix("c"))
        )
        return self._outcome(response, [f"{key} {at}" for key, at in response.ext.items()])

    def do_unregister(self, address: str, name: str) -> list[str]:
        ext = {"brokerName": name, "brokerAddr": address, "clusterName": "c", "brokerId": "0"}
        return self._outcome(self.ask(RequestCode.UNREGISTER_BROKER, ext))

    def do_close(self, connection: str) -> list[str]:
        return [
            f"forgot {at}"
            for at in self.server.connection_closed(int(connection.removeprefix("c")))
        ]

    def do_elapse(self, ms: str) -> None:
        self.now_ms += float(ms)

    def do_scan(self) -> list[str]:
        return [f"close c{number}" for number in self.server.scan(self.now_ms)]

    def do_beat(self, address: str) -> list[str]:
        return self._outcome(self.ask(RequestCode.BROKER_HEARTBEAT, {"brokerAddr": address}))

    def do_query(self, address: str, name: str, state: str, counter: str) -> list[str]:
        ext = {"brokerName": name, "brokerAddr": address, "clusterName": "c", "brokerId": "0"}
        body = encode_data_version(DataVersion(int(state), 0, int(counter)))
        response = self.ask(RequestCode.QUERY_DATA_VERSION, ext, body)
        known = decode_data_version(response.body) if response.body else None
        has = f"has state={known.state_version} counter={known.counter}" if known else "has none"
        return [f"changed {response.ext['changed']}", has]

    def do_route(self, name: str) -> list[str]:
        response = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        if response.code:
            return self._outcome(response)
        route = decode_route(response.body)
        queues = [
            f"{q.broker_name} read={q.read_queue_nums} write={q.write_queue_nums} perm={q.perm}"
            for q in route.queue_datas
        ]
        order = [f"order {route.order_topic_conf}"] if route.order_topic_conf else []
        return [said(data) for data in route.broker_datas] + queues + order

    def do_brokers(self) -> list[str]:
        info = decode_cluster_info(self.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
        found = [said(data) for data in info.broker_addr_table.values()]
        return (found or ["none"]) + [
            f"{name}: {' '.join(names)}" for name, names in info.cluster_addr_table.items()
        ]

    def do_topics(self) -> list[str]:
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        return [" ".join(topic_list(self.ask(code).body)) or "none"]

    def do_topics_of(self, cluster: str) -> list[str]:
        response = self.ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": cluster})
        return [" ".join(topic_list(response.body)) or "none"]

    def do_put(self, namespace: str, key: str, value: str) -> list[str]:
        ext = {"namespace": namespace, "key": key, "value": value}
        return self._outcome(self.ask(RequestCode.PUT_KV_CONFIG, ext))

    def do_get(self, namespace: str, key: str) -> list[str]:
        response = self.ask(RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key})
        return self._outcome(response, [response.ext.get("value", "")])

    def do_remove(self, namespace: str, key: str) -> list[str]:
        ext = {"namespace": namespace, "key": key}
        return self._outcome(self.ask(RequestCode.DELETE_KV_CONFIG, ext))

    def do_values(self, namespace: str) -> list[str]:
        response = self.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
        return self._outcome(response, [bytes(response.body).decode()])

    def do_wipe(self, name: str) -> list[str]:
        response = self.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": name})
        return self._outcome(response, [f"{key} {n}" for key, n in response.ext.items()])

    def do_add(self, name: str) -> list[str]:
        response = self.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": name})
        return self._outcome(response, [f"{key} {n}" for key, n in response.ext.items()])

    def do_delete(self, name: str) -> list[str]:
        return self._outcome(self.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": name}))

    def do_ask(self, code: str, **ext: str) -> list[str]:
        return self._outcome(self.ask(int(code), ext))

    def _outcome(self, response: Command, lines: list[str] | None = None) -> list[str]:
        if response.code:
            return [f"code {response.code}: {response.remark}"]
        return lines or []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    check_script(path, Interpreter().run, is_rewritten=request.config.getoption("--rewrite"))


def test_the_scripts_are_there() -> None:
    assert len(SCRIPTS) >= 6

"""A name server under whatever may come in: its tables agree, and no request breaks it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shaketable.system.nameserver.name_server import NameServer
from shaketable.system.nameserver.registry import (
    BROKERS_MAX,
    QUEUE_DATAS_MAX,
    Registration,
    RegistrationRefused,
    RouteRegistry,
    _BrokerGroup,
)
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, encode_command
from shaketable.system.remoting.name_server_requests import (
    DataVersion,
    TopicConfig,
    encode_register_body,
)

NAMES = st.sampled_from(["a", "b"])
ADDRESSES = st.sampled_from(["h:1", "h:2", "h:3"])
CONNECTIONS = st.integers(1, 3)
TOPICS = st.lists(st.sampled_from("tuv"), max_size=3, unique=True).map(
    lambda names: {name: TopicConfig(name) for name in names}
)
REGISTRATIONS = st.builds(
    Registration,
    cluster=st.sampled_from(["c", "d"]),
    broker_name=NAMES,
    address=ADDRESSES,
    broker_id=st.integers(0, 2),
    version=st.builds(DataVersion, st.integers(0, 1), st.just(0), st.integers(0, 1)),
    topics=TOPICS,
    timeout_ms=st.sampled_from([5000.0, 120_000.0]),
    acts_as_master=st.sampled_from([None, False, True]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), REGISTRATIONS, CONNECTIONS),
        st.tuples(st.just("unregister"), NAMES, ADDRESSES),
        st.tuples(st.just("connection_closed"), CONNECTIONS),
        st.tuples(st.just("heartbeat"), ADDRESSES),
        st.tuples(st.just("elapse"), st.sampled_from([4000.0, 100_000.0])),
        st.tuples(st.just("delete_topic"), st.sampled_from("tuv")),
    ),
    max_size=25,
)


def assert_tables_agree(registry: RouteRegistry) -> None:
    """Each live address has one id of one name; no topic names a broker that is not there."""
    places = [
        (address, name)
        for name, brokers in registry._brokers.items()
        for address in brokers.addresses.values()
    ]
    assert sorted(places) == sorted((at, live.broker_name) for at, live in registry._live.items())
    assert all(brokers.addresses for brokers in registry._brokers.values())
    for queues in registry._queues.values():
        assert queues
        assert registry._brokers.keys() >= queues.keys()
    assert registry._queue_datas == sum(map(len, registry._queues.values()))


def assert_serves(registry: RouteRegistry) -> None:
    info = registry.cluster_info()
    assert sorted(sum(info.cluster_addr_table.values(), ())) == sorted(info.broker_addr_table)
    for topic in registry.topics():
        route = registry.route(topic)
        assert route is not None
        names = [data.broker_name for data in route.broker_datas]
        assert names == [data.broker_name for data in route.queue_datas]


def play(registry: RouteRegistry, steps: list[tuple]) -> None:
    now_ms = 0.0
    for what, *words in steps:
        if what == "register":
            with suppress(RegistrationRefused):
                registration, connection = words
                registry.register(registration, connection, now_ms)
                known = registry._brokers[registration.broker_name]
                assert known.addresses[registration.broker_id] == registration.address
        elif what == "elapse":
            now_ms += words[0]
            for connection in registry.expire(now_ms):
                registry.connection_closed(connection)
                assert connection not in {live.connection for live in registry._live.values()}
        elif what == "heartbeat":
            registry.heartbeat(words[0], now_ms)
        else:
            getattr(registry, what)(*words)
        assert_tables_agree(registry)
        assert_serves(registry)


@given(STEPS)
@settings(max_examples=400)
def test_the_tables_agree(steps: list[tuple]) -> None:
    play(RouteRegistry(), steps)


class KeepsBothIds(RouteRegistry):
    """Planted bug: one address is listed as master and as slave (DLEDGER.md E35)."""

    def _assign_address(self, new: Registration) -> _BrokerGroup:
        brokers = self._brokers.setdefault(new.broker_name, _BrokerGroup(new.cluster))
        brokers.addresses[new.broker_id] = new.address
        return brokers


class KeepsTopicsOfTheDead(RouteRegistry):
    """Planted bug: a broker that is gone leaves its topics behind."""

    def _forget_queues(self, broker_name: str) -> None:
        del broker_name


@pytest.mark.parametrize("registry", [KeepsBothIds, KeepsTopicsOfTheDead])
def test_planted_bugs_are_caught(registry: type[RouteRegistry]) -> None:
    @given(STEPS)
    @settings(max_examples=400, database=None)
    def look(steps: list[tuple]) -> None:
        play(registry(), steps)

    with pytest.raises((AssertionError, KeyError)):
        look()


CODES = st.sampled_from([*RequestCode]) | st.integers(-(2**15), 2**15 - 1)
KEYS = [
    "brokerName",
    "brokerAddr",
    "clusterName",
    "brokerId",
    "compressed",
    "topic",
    "heartbeatTimeoutMillis",
    "enableActingMaster",
]
TEXTS = st.text(max_size=6) | st.sampled_from(["h:1", "0", "true", "null", "9" * 30])
GOOD_BODY = encode_register_body([TopicConfig("t")], DataVersion())


@given(
    CODES,
    st.dictionaries(st.sampled_from(KEYS), TEXTS),
    st.binary(max_size=30) | st.just(GOOD_BODY),
    st.integers(0, 3),
    st.integers(0, 500),
)
@example(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "\n" * 6}, b"", 0, 409)
@settings(max_examples=500)
def test_every_request_has_one_answer_in_one_line(
    code: int, ext: dict[str, str], body: bytes, flag: int, version: int
) -> None:
    server = NameServer()
    request = Command(code, 5, flag, ext=ext, body=body, version=version)
    response = server.handle(1, request, 0.0)
    assert (response is None) is bool(flag)
    if response is not None:
        encode_command(response)
        assert response.opaque == 5
        assert "\n" not in (response.remark or "")
    assert_tables_agree(server.registry)


def registration(number: int, topics: int) -> Registration:
    named = {f"t{number}-{k}": TopicConfig("t") for k in range(topics)}
    return Registration("c", f"b{number}", f"h:{number}", 0, topics=named)


def test_brokers_and_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = RouteRegistry()
    for number in range(BROKERS_MAX):
        registry.register(registration(number, 0), number, 0.0)
    with pytest.raises(RegistrationRefused, match="use another name server"):
        registry.register(registration(BROKERS_MAX, 0), 1, 0.0)
    registry.register(registration(7, 0), 7, 0.0)  # it is there already

    monkeypatch.setattr("shaketable.system.nameserver.registry.QUEUE_DATAS_MAX", 10)
    assert QUEUE_DATAS_MAX > 10
    registry.register(registration(1, 6), 1, 0.0)
    registry.register(registration(1, 10), 1, 0.0)
    with pytest.raises(RegistrationRefused, match="more than 10 topics"):
        registry.register(registration(2, 2), 2, 0.0)
    registry.connection_closed(1)
    registry.register(registration(2, 2), 2, 0.0)
    assert_tables_agree(registry)


def test_old_clients_get_the_legacy_dialect() -> None:
    server = NameServer()
    server.registry.register(registration(1, 2), 1, 0.0)

    def route(version: int, **ext: str) -> bytes:
        request = Command(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "t1-0", **ext}, version=version
        )
        response = server.handle(9, request, 0.0)
        assert response is not None
        assert response.code == ResponseCode.SUCCESS
        return bytes(response.body)

    assert b'{0:"h:1"}' in route(62)
    assert b'{"0":"h:1"}' in route(62, acceptStandardJsonOnly="true")
    assert b'{"0":"h:1"}' in route(479)

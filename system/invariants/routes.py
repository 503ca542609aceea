"""Invariants of a name server's routes, checked after each request of a broker.

A `RouteShadow` knows which brokers have registered and which have gone since; the routes must name
exactly the present ones. Clients usually detect a wrong route themselves, seconds later: whether
one asks just then is luck. Source: RocketMQ's RouteInfoManager; DLEDGER.md A.3 and D.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shaketable.system.invariants.violated import Violated
from shaketable.system.nameserver.registry import (
    HEARTBEAT_TIMEOUT_MAX_MS,
    HEARTBEAT_TIMEOUT_MIN_MS,
    Connection,
    Registered,
    Registration,
    RegistrationRefused,
    RouteRegistry,
)
from shaketable.system.remoting.name_server_requests import MASTER_ID

Report = Callable[[Violated], None]
TOPICS_CHECKED_MAX = 16
"""Topics whose routes are looked at after each request: the next ones by name."""


@dataclass(slots=True)
class _Known:
    """A registered broker that has not gone."""

    broker_name: str
    broker_id: int
    state_version: int
    connection: Connection
    heard_ms: float
    timeout_ms: float


class RouteShadow:
    """The brokers that one name server's routes should name. Methods raise Violated."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._topics: dict[str, set[str]] = {}
        """The topics of each broker name, which its master has registered."""
        self._checked = 0

    def registered(self, new: Registration, connection: Connection, now_ms: float) -> None:
        """A broker registered: no other holds its id any more, unless with a newer state."""
        for address, known in list(self._known.items()):
            if (known.broker_name, known.broker_id) != (
                new.broker_name,
                new.broker_id,
            ):
                continue
            if address != new.address and known.state_version > new.version.state_version:
                raise Violated(
                    "older-state-is-refused",
                    f"{new.address} takes id {new.broker_id} of {new.broker_name} with state"
                    f" {new.version.state_version} from {address}, which has"
                    f" {known.state_version}",
                )
            del self._known[address]
        timeout_ms = min(max(new.timeout_ms, HEARTBEAT_TIMEOUT_MIN_MS), HEARTBEAT_TIMEOUT_MAX_MS)
        state_version = new.version.state_version
        self._known[new.address] = _Known(
            new.broker_name,
            new.broker_id,
            state_version,
            connection,
            now_ms,
            timeout_ms,
        )
        self._drop_gone()
        ids = [known.broker_id for known in self._known.values()
               if known.broker_name == new.broker_name]  # fmt: skip
        acts = new.acts_as_master is not None and new.broker_id == min(ids)
        if new.broker_id == MASTER_ID or acts:
            self._topics.setdefault(new.broker_name, set()).update(new.topics)

    def refused(self, address: str, registry: RouteRegistry) -> None:
        """A registration was refused: the broker's earlier one may be dropped, or not."""
        if address not in _routed(registry):
            self._known.pop(address, None)
            self._drop_gone()

    def unregistered(self, broker_name: str, address: str) -> None:
        """A broker unregistered."""
        if (known := self._known.get(address)) and known.broker_name == broker_name:
            del self._known[address]
            self._drop_gone()

    def deleted(self, topic: str) -> None:
        """A topic was deleted."""
        for topics in self._topics.values():
            topics.discard(topic)

    def heartbeat(self, address: str, now_ms: float) -> None:
        """A broker sent a heartbeat."""
        if known := self._known.get(address):
            known.heard_ms = now_ms

    def connection_closed(self, connection: Connection) -> None:
        """A connection closed: brokers that last registered over it are gone."""
        self._keep(lambda known: known.connection != connection)

    def expired(self, now_ms: float) -> None:
        """The name server dropped brokers whose heartbeats stopped."""
        self._keep(lambda known: known.heard_ms + known.timeout_ms >= now_ms)

    def check(self, registry: RouteRegistry) -> None:
        """Compare with what clients are answered: the cluster's brokers, and topics' routes."""
        self._check_brokers(registry)
        by_name: dict[str, dict[int, str]] = {}
        for address, known in self._known.items():
            by_name.setdefault(known.broker_name, {})[known.broker_id] = address
        topics = sorted(set().union(*self._topics.values(), registry.topics()))
        for number in range(min(TOPICS_CHECKED_MAX, len(topics))):
            self._check_route(registry, topics[(self._checked + number) % len(topics)], by_name)
        self._checked += TOPICS_CHECKED_MAX

    def _check_route(
        self, registry: RouteRegistry, topic: str, by_name: Mapping[str, Mapping[int, str]]
    ) -> None:
        route = registry.route(topic)
        found = {} if route is None else {
            data.broker_name: data.broker_addrs for data in route.broker_datas
        }  # fmt: skip
        expected = {name: by_name[name] for name, topics in self._topics.items() if topic in topics}
        for name in sorted(found.keys() | expected.keys()):
            if found.get(name) != expected.get(name):
                raise Violated(
                    "routes-name-who-is-there",
                    f"the route of topic {topic} has {_addresses_text(found.get(name, {}))} for"
                    f" {name}, where {_addresses_text(expected.get(name, {}))} registered with it"
                    " and have not gone",
                )
        queues = set() if route is None else {data.broker_name for data in route.queue_datas}
        if queues != found.keys():
            text = f"the route of topic {topic} has queues of {sorted(queues)}, not {sorted(found)}"
            raise Violated("routes-name-who-is-there", text)

    def _check_brokers(self, registry: RouteRegistry) -> None:
        routed = _routed(registry)
        for address in sorted(routed.keys() - self._known.keys()):
            raise Violated(
                "routes-name-who-is-there",
                f"{address} has gone, and is {_place_text(routed[address])}",
            )
        for address, known in self._known.items():
            expected = known.broker_name, known.broker_id
            if (place := routed.get(address)) != expected:
                raise Violated(
                    "routes-name-who-is-there",
                    f"{address} registered as {_place_text(expected)}, and is {_place_text(place)}",
                )

    def _keep(self, is_there: Callable[[_Known], bool]) -> None:
        self._known = {
            address: broker for address, broker in self._known.items() if is_there(broker)
        }
        self._drop_gone()

    def _drop_gone(self) -> None:
        """Forget the topics of broker names without a broker."""
        names = {known.broker_name for known in self._known.values()}
        self._topics = {name: topics for name, topics in self._topics.items() if name in names}


def watched(base: type[RouteRegistry], report: Report) -> type[RouteRegistry]:
    """Return the registry class with each call checked; `report` gets the first violation."""

    class Watched(base):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            super().__init__()
            self._shadow = RouteShadow()
            self._is_valid = True

        def register(
            self, registration: Registration, connection: Connection, now_ms: float
        ) -> Registered:
            try:
                answer: Registered = super().register(registration, connection, now_ms)
            except RegistrationRefused:
                self._check_call(lambda shadow: shadow.refused(registration.address, self))
                raise
            self._check_call(lambda shadow: shadow.registered(registration, connection, now_ms))
            return answer

        def unregister(self, broker_name: str, address: str) -> None:
            super().unregister(broker_name, address)
            self._check_call(lambda shadow: shadow.unregistered(broker_name, address))

        def heartbeat(self, address: str, now_ms: float) -> None:
            super().heartbeat(address, now_ms)
            self._check_call(lambda shadow: shadow.heartbeat(address, now_ms))

        def connection_closed(self, connection: Connection) -> list[str]:
            forgotten: list[str] = super().connection_closed(connection)
            self._check_call(lambda shadow: shadow.connection_closed(connection))
            return forgotten

        def expire(self, now_ms: float) -> list[Connection]:
            late: list[Connection] = super().expire(now_ms)
            self._check_call(lambda shadow: shadow.expired(now_ms))
            return late

        def delete_topic(self, topic: str) -> None:
            super().delete_topic(topic)
            self._check_call(lambda shadow: _check_deleted(self, topic, shadow))

        def _check_call(self, at: Callable[[RouteShadow], None]) -> None:
            if not self._is_valid:
                return
            try:
                at(self._shadow)
                self._shadow.check(self)
            except Violated as found:
                self._is_valid = False
                report(found)

    return Watched


def _check_deleted(registry: RouteRegistry, topic: str, shadow: RouteShadow) -> None:
    if topic in registry.topics():
        raise Violated("deleted-is-not-routed", f"topic {topic} was deleted, and has a route")
    shadow.deleted(topic)


def _routed(registry: RouteRegistry) -> dict[str, tuple[str, int]]:
    """Return the broker name and id of each address in the routes."""
    table = registry.cluster_info().broker_addr_table
    return {
        address: (name, number)
        for name, data in table.items()
        for number, address in data.broker_addrs.items()
    }


def _addresses_text(addresses: Mapping[int, str]) -> str:
    texts = (f"{address} with id {number}" for number, address in sorted(addresses.items()))
    return ", ".join(texts) or "none"


def _place_text(place: tuple[str, int] | None) -> str:
    return "in no route" if place is None else f"in the routes as {place[0]} with id {place[1]}"

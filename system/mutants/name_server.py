"""Planted bugs in a name server's routes."""

from __future__ import annotations

from shaketable.system.mutants import GROUP, REPLICATED, Hunt, Mutant
from shaketable.system.nameserver.registry import (
    Connection,
    Registered,
    Registration,
    RouteRegistry,
)
from shaketable.system.remoting.name_server_requests import DataVersion, TopicRoute


class DeadBrokerKept(RouteRegistry):
    """Never removes a broker."""

    def connection_closed(self, connection: Connection) -> list[str]:
        """Remove none of the connection's brokers."""
        del connection
        return []

    def expire(self, now_ms: float) -> list[Connection]:
        """Remove no silent broker."""
        del now_ms
        return []


DEAD_BROKER_KEPT = Mutant(
    "dead-broker-kept",
    registry=DeadBrokerKept,
    about="""
    A broker that is gone stays in the routes until it is heard of again.

    Clients are sent to a broker that is gone, also when another member leads since.

    Source: https://github.com/apache/rocketmq/issues/2728 (clients go on with the route of a broker
    that is down).
    """,
)


class DeletedTopicStays(RouteRegistry):
    """Never deletes a topic."""

    def delete_topic(self, topic: str) -> None:
        """Do nothing."""


DELETED_TOPIC_STAYS = Mutant(
    "deleted-topic-stays",
    registry=DeletedTopicStays,
    hunt=Hunt("queue-offsets", ("kill", "partition")),
    about="""
    A topic that operators delete stays in the routes as long as its brokers are there.

    Source: https://github.com/apache/rocketmq/issues/288 (the route of a deleted topic is updated
    by a restart of the name server alone).
    """,
)


class LateCloseForgetsNewcomer(RouteRegistry):
    """Removes every broker that ever registered over a closed connection."""

    def __init__(self) -> None:
        super().__init__()
        self._of_connection: dict[Connection, set[str]] = {}

    def register(
        self, registration: Registration, connection: Connection, now_ms: float
    ) -> Registered:
        """Register a broker, and remember its connection."""
        answer = super().register(registration, connection, now_ms)
        self._of_connection.setdefault(connection, set()).add(registration.address)
        return answer

    def connection_closed(self, connection: Connection) -> list[str]:
        """Remove all brokers that ever registered over the connection."""
        addresses = sorted(self._of_connection.pop(connection, ()))
        return self._forget_all([each for each in addresses if each in self._live])


LATE_CLOSE_FORGETS_NEWCOMER = Mutant(
    "late-close-forgets-newcomer",
    registry=LateCloseForgetsNewcomer,
    hunt=Hunt("queue", ("kill", "name-server-links")),
    about="""
    A connection that closes late takes the broker along that has registered over another one since.

    A broker that came back is in no route until it registers the next time.

    Source: https://github.com/apache/rocketmq/issues/11043 (what was decided of the old connection
    is carried out on the new registration).
    """,
)


class OlderStateAccepted(RouteRegistry):
    """Accepts a registration with an older state version."""

    def _check_state_version(self, new: Registration, holder: str | None) -> None:
        return


OLDER_STATE_ACCEPTED = Mutant(
    "older-state-accepted",
    registry=OlderStateAccepted,
    targets=GROUP,
    hunt=Hunt("queue", ("transfer", "members", "name-server-links")),
    about="""
    The last to register as master is the master, also with an older term.

    A leader that was cut off, and replaced without knowing it, takes the route back.

    Source: https://github.com/apache/rocketmq/issues/6316 (of two masters the name server should
    choose the one with the larger epoch).
    """,
)


class RoutesKept(RouteRegistry):
    """Keeps each topic's route until a broker changes its topics."""

    def __init__(self) -> None:
        super().__init__()
        self._routes: dict[str, TopicRoute | None] = {}
        self._seen: dict[str, DataVersion] = {}

    def register(
        self, registration: Registration, connection: Connection, now_ms: float
    ) -> Registered:
        """Register a broker; forget the routes if its topics have another version."""
        new = registration
        if self._seen.get(new.broker_name) != new.version:
            self._routes.clear()
        self._seen[new.broker_name] = new.version
        return super().register(new, connection, now_ms)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and forget its route."""
        self._routes.pop(topic, None)
        super().delete_topic(topic)

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route as it was first asked for."""
        if topic not in self._routes:
            self._routes[topic] = super().route(topic)
        return self._routes[topic]


ROUTES_KEPT = Mutant(
    "routes-kept",
    registry=RoutesKept,
    targets=(*GROUP, *REPLICATED),
    about="""
    A topic's route is kept until its topics change, whichever of its brokers come and go.

    Clients are sent to a broker that is gone, and not to the one that has come instead, while the
    list of the cluster's brokers is right.

    Source: our own, after RocketMQ's RouteInfoManager.pickupTopicRouteData, which reads the table
    of broker addresses at each request.
    """,
)


class UnregisterById(RouteRegistry):
    """Unregisters by broker id instead of address."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: dict[str, int] = {}

    def register(
        self, registration: Registration, connection: Connection, now_ms: float
    ) -> Registered:
        """Register a broker, and remember its id."""
        self._ids[registration.address] = registration.broker_id
        return super().register(registration, connection, now_ms)

    def unregister(self, broker_name: str, address: str) -> None:
        """Remove the current holder of the address's id."""
        brokers = self._brokers.get(broker_name)
        holder = brokers.addresses.get(self._ids.get(address, -1)) if brokers else None
        super().unregister(broker_name, holder or address)


UNREGISTER_BY_ID = Mutant(
    "unregister-by-id",
    registry=UnregisterById,
    targets=(*GROUP, *REPLICATED),
    hunt=Hunt("queue", ("transfer", "members", "name-server-links")),
    about="""
    A broker that unregisters removes the broker that has its id of that name now.

    The old master's late word takes the new master out of the routes.

    Source: https://github.com/apache/rocketmq/issues/5374 (the address should be compared, not the
    brokerId).
    """,
)


PLUGINS = (
    DEAD_BROKER_KEPT,
    DELETED_TOPIC_STAYS,
    LATE_CLOSE_FORGETS_NEWCOMER,
    OLDER_STATE_ACCEPTED,
    ROUTES_KEPT,
    UNREGISTER_BY_ID,
)

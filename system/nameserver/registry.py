"""Route tables of a name server: which brokers are alive and which topics they have.

The tables change only by requests of brokers: a name server asks no broker and no other name
server. A broker is removed when it unregisters, when its connection closes, or when its heartbeats
stop for longer than its timeout.
Source: RocketMQ's RouteInfoManager; DLEDGER.md A.3 and D.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from shaketable.system.remoting.name_server_requests import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicRoute,
)

Connection = int
"""Identifies a broker's connection; assigned by the shell."""

HEARTBEAT_TIMEOUT_MS = 120_000.0
"""How long a broker stays registered without a heartbeat, if it sets no timeout of its own."""
HEARTBEAT_TIMEOUT_MIN_MS = 1_000.0
HEARTBEAT_TIMEOUT_MAX_MS = 3_600_000.0
BROKERS_MAX = 1_000
QUEUE_DATAS_MAX = 500_000
"""Topics, each counted once per broker name that has it."""
_READ, _WRITE = 4, 2


class RegistrationRefused(Exception):  # noqa: N818 - an answer
    """The registration is refused and no other broker is affected. The message is one line."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker's registration. `address` is "host:port" for clients.

    `acts_as_master` is RocketMQ 5's enableActingMaster; None from older brokers and from ours.
    """

    cluster: str
    broker_name: str
    address: str
    broker_id: int
    ha_address: str = ""
    version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    timeout_ms: float = HEARTBEAT_TIMEOUT_MS
    acts_as_master: bool | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """The response to a registration: for a slave, the addresses of its live master."""

    master_address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class _LiveBroker:
    """A registered broker address."""

    broker_name: str
    connection: Connection
    heard_ms: float
    timeout_ms: float
    version: DataVersion
    ha_address: str


@dataclass(slots=True)
class _BrokerGroup:
    """The brokers that share one name, by broker id."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acts_as_master: bool = False


class RouteRegistry:
    """The route tables of one name server. Times are milliseconds of any monotonic clock."""

    def __init__(self) -> None:
        self._brokers: dict[str, _BrokerGroup] = {}
        self._live: dict[str, _LiveBroker] = {}
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._queue_datas = 0

    # ---- requests of brokers ----------------------------------------------------------

    def register(
        self, registration: Registration, connection: Connection, now_ms: float
    ) -> Registered:
        """Register a broker, or update its registration. Raises RegistrationRefused."""
        new = registration
        before = self._live.get(new.address)
        if before is not None and before.broker_name != new.broker_name:
            self._forget(new.address)  # the process at this address has another name now
            before = None
        known = self._brokers.get(new.broker_name)
        self._check_limits(new, is_new=before is None)
        holder = known.addresses.get(new.broker_id) if known is not None else None
        self._check_state_version(new, holder)
        if holder is None and len(new.topics) == 1:
            # A registered broker may send a single changed topic. From an unknown one it would be
            # taken for the broker's whole topic table.
            raise RegistrationRefused(
                f"{new.broker_name} with id {new.broker_id} is not known here and sent one "
                f"topic alone; register all topics first"
            )
        brokers = self._assign_address(new)
        is_changed = holder != new.address or before is None or before.version != new.version
        if new.broker_id == MASTER_ID:
            self._update_topics(new, is_changed, keep_perm=~0)
        elif new.acts_as_master is not None and new.broker_id == min(brokers.addresses):
            keep_perm = ~_WRITE if new.acts_as_master else ~0
            self._update_topics(new, is_changed, keep_perm)
        self._live[new.address] = _LiveBroker(
            new.broker_name,
            connection,
            now_ms,
            min(max(new.timeout_ms, HEARTBEAT_TIMEOUT_MIN_MS), HEARTBEAT_TIMEOUT_MAX_MS),
            new.version,
            new.ha_address,
        )
        return self._master_for(new, brokers)

    def unregister(self, broker_name: str, address: str) -> None:
        """Remove a broker that shuts down; ignore an unknown one."""
        live = self._live.get(address)
        if live is not None and live.broker_name == broker_name:
            self._forget(address)

    def heartbeat(self, address: str, now_ms: float) -> None:
        """Renew the registration of a broker; ignore an unknown one."""
        if (live := self._live.get(address)) is not None:
            live.heard_ms = now_ms

    def version_of(self, address: str) -> DataVersion | None:
        """Return the version of the topics that a broker registered, None if it is unknown."""
        live = self._live.get(address)
        return None if live is None else live.version

    def delete_topic(self, topic: str) -> None:
        """Remove a topic, until a broker registers it again with a newer version."""
        self._queue_datas -= len(self._queues.pop(topic, ()))

    def set_writable(self, broker_name: str, *, is_writable: bool) -> int:
        """Set or clear the write permission of a broker name; return the number of topics changed.

        Lasts until such a broker registers its topics again.
        """
        count = 0
        for queues in self._queues.values():
            if (data := queues.get(broker_name)) is not None:
                perm = data.perm | _READ | _WRITE if is_writable else data.perm & ~_WRITE
                queues[broker_name] = msgspec.structs.replace(data, perm=perm)
                count += 1
        return count

    # ---- failure detection ------------------------------------------------------------

    def connection_closed(self, connection: Connection) -> list[str]:
        """Remove the brokers that registered over a closed connection; return their addresses."""
        return self._forget_all(
            [address for address, live in self._live.items() if live.connection == connection]
        )

    def expire(self, now_ms: float) -> list[Connection]:
        """Remove brokers whose heartbeats stopped; return their connections, to be closed."""
        expired = {
            address: live.connection
            for address, live in self._live.items()
            if live.heard_ms + live.timeout_ms < now_ms
        }
        self._forget_all(list(expired))
        return sorted(set(expired.values()))

    # ---- queries of clients -----------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """Return the brokers and queues of a topic, None if no live broker has it."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        names = sorted(queues)
        return TopicRoute(
            tuple(self._broker_data(name) for name in names), tuple(queues[name] for name in names)
        )

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers by name, and the broker names of each cluster."""
        table = {name: self._broker_data(name) for name in sorted(self._brokers)}
        clusters: dict[str, tuple[str, ...]] = {}
        for name, data in table.items():
            clusters[data.cluster] = (*clusters.get(data.cluster, ()), name)
        return ClusterInfo(table, clusters)

    def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of those on brokers of one cluster."""
        return sorted(
            topic
            for topic, queues in self._queues.items()
            if cluster is None or any(self._brokers[name].cluster == cluster for name in queues)
        )

    # ---- helpers ----------------------------------------------------------------------

    def _check_limits(self, new: Registration, *, is_new: bool) -> None:
        if is_new and len(self._live) >= BROKERS_MAX:
            raise RegistrationRefused(f"more than {BROKERS_MAX} brokers; use another name server")
        if self._queue_datas + len(new.topics) <= QUEUE_DATAS_MAX:
            return
        name = new.broker_name
        added = sum(name not in self._queues.get(topic, ()) for topic in new.topics)
        if self._queue_datas + added > QUEUE_DATAS_MAX:
            raise RegistrationRefused(
                f"more than {QUEUE_DATAS_MAX} topics of brokers; delete some, or use another "
                f"name server"
            )

    def _check_state_version(self, new: Registration, holder: str | None) -> None:
        """Refuse a broker id that a live broker holds with a newer state version.

        The state version is the Raft term, so a deposed leader that still believes it leads cannot
        take the id from its successor. The refused address is also removed: by claiming this id
        it gave up the one that it was registered with.
        """
        live = self._live.get(holder) if holder is not None and holder != new.address else None
        if live is None or live.version.state_version <= new.version.state_version:
            return
        self._forget(new.address)
        raise RegistrationRefused(
            f"{holder} has id {new.broker_id} of {new.broker_name} since state version "
            f"{live.version.state_version}, newer than {new.version.state_version}; "
            f"register with another id"
        )

    def _assign_address(self, new: Registration) -> _BrokerGroup:
        """Assign the address to its id, and to no other id (a slave may have become master)."""
        brokers = self._brokers.setdefault(new.broker_name, _BrokerGroup(new.cluster))
        brokers.cluster = new.cluster
        brokers.acts_as_master = bool(new.acts_as_master)
        replaced = brokers.addresses.get(new.broker_id)
        brokers.addresses = {
            number: address
            for number, address in brokers.addresses.items()
            if address != new.address
        }
        brokers.addresses[new.broker_id] = new.address
        if replaced is not None and replaced != new.address:
            self._live.pop(replaced, None)  # without an id until it registers again
        return brokers

    def _update_topics(self, new: Registration, is_changed: bool, keep_perm: int) -> None:
        for topic, config in new.topics.items():
            queues = self._queues.setdefault(topic, {})
            self._queue_datas += new.broker_name not in queues
            if is_changed or new.broker_name not in queues:
                queues[new.broker_name] = QueueData(
                    new.broker_name,
                    config.read_queue_nums,
                    config.write_queue_nums,
                    config.perm & keep_perm,
                    config.topic_sys_flag,
                )

    def _master_for(self, new: Registration, brokers: _BrokerGroup) -> Registered:
        address = brokers.addresses.get(MASTER_ID)
        if new.broker_id == MASTER_ID or address is None:
            return Registered()
        return Registered(address, self._live[address].ha_address)

    def _broker_data(self, name: str) -> BrokerData:
        brokers = self._brokers[name]
        addresses = dict(sorted(brokers.addresses.items()))
        return BrokerData(brokers.cluster, name, addresses, brokers.acts_as_master)

    def _forget_all(self, addresses: list[str]) -> list[str]:
        for address in addresses:
            self._forget(address)
        return addresses

    def _forget(self, address: str) -> None:
        live = self._live.pop(address, None)
        if live is None:
            return
        name = live.broker_name
        brokers = self._brokers[name]
        brokers.addresses = {
            number: other for number, other in brokers.addresses.items() if other != address
        }
        if not brokers.addresses:
            del self._brokers[name]
            self._forget_queues(name)
        elif brokers.acts_as_master and MASTER_ID not in brokers.addresses:
            self.set_writable(name, is_writable=False)

    def _forget_queues(self, broker_name: str) -> None:
        for topic, queues in list(self._queues.items()):
            if queues.pop(broker_name, None) is not None:
                self._queue_datas -= 1
                if not queues:
                    del self._queues[topic]

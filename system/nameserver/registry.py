"""Which brokers live and which topics they have: what a name server knows.

Brokers tell it; it asks nobody and no other name server. A broker is forgotten when it says
so, when its connection closes, or when it was not heard of for too long.
Source: RocketMQ's RouteInfoManager; DLEDGER.md A.3 and D.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from shaketable.system.remoting.register_bodies import DataVersion, TopicConfig
from shaketable.system.remoting.route_bodies import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
)

Connection = int
"""Names a broker's connection; the shell's business."""

HEARTBEAT_TIMEOUT_MS = 120_000.0
"""How long a broker that names no time of its own lives without being heard of."""
HEARTBEAT_TIMEOUT_MIN_MS = 1_000.0
HEARTBEAT_TIMEOUT_MAX_MS = 3_600_000.0
BROKERS_MAX = 1_000
QUEUE_DATAS_MAX = 500_000
"""Topics, each counted once for every broker name that has it."""
_READ, _WRITE = 4, 2


class RegistrationRefused(Exception):  # noqa: N818 - an answer
    """The broker is not registered, and nothing changed for others: one line that says why."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself. `address` is "host:port" for clients.

    `acts_as_master` is RocketMQ 5's enableActingMaster, None from older brokers and from ours.
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
    """The answer to a registration: for a slave, where its live master is."""

    master_address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class _Live:
    """A broker's address that was heard of."""

    broker_name: str
    connection: Connection
    heard_ms: float
    timeout_ms: float
    version: DataVersion
    ha_address: str


@dataclass(slots=True)
class _Brokers:
    """The brokers of one name."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acts_as_master: bool = False


class RouteRegistry:
    """The tables of one name server. Times are milliseconds of any monotonic clock."""

    def __init__(self) -> None:
        self._brokers: dict[str, _Brokers] = {}
        self._live: dict[str, _Live] = {}
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._queue_datas = 0

    # ---- what brokers say -------------------------------------------------------------

    def register(
        self, registration: Registration, connection: Connection, now_ms: float
    ) -> Registered:
        """Take a broker in, or note what changed of it. Raises RegistrationRefused."""
        said = registration
        before = self._live.get(said.address)
        if before is not None and before.broker_name != said.broker_name:
            self._forget(said.address)  # the process there goes by another name now
            before = None
        known = self._brokers.get(said.broker_name)
        self._refuse_lack_of_room(said, is_new=before is None)
        holder = known.addresses.get(said.broker_id) if known is not None else None
        self._refuse_older_state(said, holder)
        if holder is None and len(said.topics) == 1:
            # Brokers that are known may send one topic alone, and it must not look like all.
            raise RegistrationRefused(
                f"{said.broker_name} with id {said.broker_id} is not known here and sent one "
                f"topic alone; register all topics first"
            )
        brokers = self._enter(said)
        is_changed = holder != said.address or before is None or before.version != said.version
        if said.broker_id == MASTER_ID:
            self._take_topics(said, is_changed, keep_perm=~0)
        elif said.acts_as_master is not None and said.broker_id == min(brokers.addresses):
            keep_perm = ~_WRITE if said.acts_as_master else ~0
            self._take_topics(said, is_changed, keep_perm)
        self._live[said.address] = _Live(
            said.broker_name,
            connection,
            now_ms,
            min(max(said.timeout_ms, HEARTBEAT_TIMEOUT_MIN_MS), HEARTBEAT_TIMEOUT_MAX_MS),
            said.version,
            said.ha_address,
        )
        return self._master_for(said, brokers)

    def unregister(self, broker_name: str, address: str) -> None:
        """Forget a broker that goes. Of one that is not known no note is taken."""
        live = self._live.get(address)
        if live is not None and live.broker_name == broker_name:
            self._forget(address)

    def heard(self, address: str, now_ms: float) -> None:
        """A broker that registered before says that it lives."""
        if (live := self._live.get(address)) is not None:
            live.heard_ms = now_ms

    def version_of(self, address: str) -> DataVersion | None:
        """Return how new the topics are that a broker told of; None if it is not known."""
        live = self._live.get(address)
        return None if live is None else live.version

    def delete_topic(self, topic: str) -> None:
        """Forget a topic, until a broker tells of it again with a newer version."""
        self._queue_datas -= len(self._queues.pop(topic, ()))

    def set_writable(self, broker_name: str, *, is_writable: bool) -> int:
        """Let clients send to the brokers of a name, or no more; return of how many topics.

        It holds until such a broker tells of its topics anew.
        """
        count = 0
        for queues in self._queues.values():
            if (data := queues.get(broker_name)) is not None:
                perm = data.perm | _READ | _WRITE if is_writable else data.perm & ~_WRITE
                queues[broker_name] = msgspec.structs.replace(data, perm=perm)
                count += 1
        return count

    # ---- what happens to them ---------------------------------------------------------

    def gone(self, connection: Connection) -> list[str]:
        """A connection closed: forget whoever registered over it; return their addresses."""
        return self._forget_all(
            [address for address, live in self._live.items() if live.connection == connection]
        )

    def expire(self, now_ms: float) -> list[Connection]:
        """Forget who was not heard of in time; return their connections, to be closed."""
        late = {
            address: live.connection
            for address, live in self._live.items()
            if live.heard_ms + live.timeout_ms < now_ms
        }
        self._forget_all(list(late))
        return sorted(set(late.values()))

    # ---- what clients ask -------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """Return where a topic's queues are; None if no live broker has told of it."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        names = sorted(queues)
        return TopicRoute(
            tuple(self._broker_data(name) for name in names), tuple(queues[name] for name in names)
        )

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers, by name and by cluster."""
        table = {name: self._broker_data(name) for name in sorted(self._brokers)}
        clusters: dict[str, tuple[str, ...]] = {}
        for name, data in table.items():
            clusters[data.cluster] = (*clusters.get(data.cluster, ()), name)
        return ClusterInfo(table, clusters)

    def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of those that brokers of a cluster have."""
        return sorted(
            topic
            for topic, queues in self._queues.items()
            if cluster is None or any(self._brokers[name].cluster == cluster for name in queues)
        )

    # ---- steps ------------------------------------------------------------------------

    def _refuse_lack_of_room(self, said: Registration, *, is_new: bool) -> None:
        if is_new and len(self._live) >= BROKERS_MAX:
            raise RegistrationRefused(f"more than {BROKERS_MAX} brokers; use another name server")
        if self._queue_datas + len(said.topics) <= QUEUE_DATAS_MAX:
            return
        name = said.broker_name
        new = sum(name not in self._queues.get(topic, ()) for topic in said.topics)
        if self._queue_datas + new > QUEUE_DATAS_MAX:
            raise RegistrationRefused(
                f"more than {QUEUE_DATAS_MAX} topics of brokers; delete some, or use another "
                f"name server"
            )

    def _refuse_older_state(self, said: Registration, holder: str | None) -> None:
        """Let nobody take a living broker's id who speaks of an older state, as of a past term.

        What the newcomer was before is forgotten: it says itself that it is that no more.
        """
        live = self._live.get(holder) if holder is not None and holder != said.address else None
        if live is None or live.version.state_version <= said.version.state_version:
            return
        self._forget(said.address)
        raise RegistrationRefused(
            f"{holder} has id {said.broker_id} of {said.broker_name} since state version "
            f"{live.version.state_version}, newer than {said.version.state_version}; "
            f"register with another id"
        )

    def _enter(self, said: Registration) -> _Brokers:
        """Put the address under its id, and under no other (a slave that became master)."""
        brokers = self._brokers.setdefault(said.broker_name, _Brokers(said.cluster))
        brokers.cluster = said.cluster
        brokers.acts_as_master = bool(said.acts_as_master)
        replaced = brokers.addresses.get(said.broker_id)
        brokers.addresses = {
            number: address
            for number, address in brokers.addresses.items()
            if address != said.address
        }
        brokers.addresses[said.broker_id] = said.address
        if replaced is not None and replaced != said.address:
            self._live.pop(replaced, None)  # it has no id now; it comes back when it registers
        return brokers

    def _take_topics(self, said: Registration, is_changed: bool, keep_perm: int) -> None:
        for topic, config in said.topics.items():
            queues = self._queues.setdefault(topic, {})
            self._queue_datas += said.broker_name not in queues
            if is_changed or said.broker_name not in queues:
                queues[said.broker_name] = QueueData(
                    said.broker_name,
                    config.read_queue_nums,
                    config.write_queue_nums,
                    config.perm & keep_perm,
                    config.topic_sys_flag,
                )

    def _master_for(self, said: Registration, brokers: _Brokers) -> Registered:
        address = brokers.addresses.get(MASTER_ID)
        if said.broker_id == MASTER_ID or address is None:
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

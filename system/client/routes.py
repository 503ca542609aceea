"""Topic routes, and the allocation of queues to the consumers of a group. Pure.

Source: RocketMQ's TopicRouteData and TopicPublishInfo, AllocateMessageQueueAveragely,
MQClientInstance.findBrokerAddressInSubscribe; DLEDGER.md D.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from shaketable.system.remoting.name_server_requests import MASTER_ID, TopicRoute

PERM_READ = 4
PERM_WRITE = 2


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on the brokers of one name."""

    topic: str
    broker_name: str
    queue_id: int


class Route:
    """A topic's route, for producers and consumers.

    Attributes:
        writable: the write queues of brokers that have a master, in order.
        readable: the read queues, in order.
    """

    def __init__(self, topic: str, route: TopicRoute) -> None:
        """Take a route from a name server."""
        self._route = route
        self._addresses = {data.broker_name: data.broker_addrs for data in route.broker_datas}
        self.writable = tuple(
            MessageQueue(topic, data.broker_name, number)
            for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
            if data.perm & PERM_WRITE and self.master(data.broker_name) is not None
            for number in range(data.write_queue_nums)
        )
        self.readable = tuple(
            MessageQueue(topic, data.broker_name, number)
            for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
            if data.perm & PERM_READ and data.broker_name in self._addresses
            for number in range(data.read_queue_nums)
        )

    def master(self, broker_name: str) -> str | None:
        """Return "host:port" of the master of that broker name, None if there is none."""
        return self._addresses.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return "host:port" of the broker to read from: the one with that id, else any."""
        addresses = self._addresses.get(broker_name, {})
        if broker_id in addresses:
            return addresses[broker_id]
        return addresses[min(addresses)] if addresses else None

    def for_new_topic(self, topic: str, queues_max: int) -> Route:
        """Return the route of a new topic that a first send creates, from this default route."""
        limited = tuple(
            msgspec.structs.replace(
                data,
                read_queue_nums=min(data.read_queue_nums, queues_max),
                write_queue_nums=min(data.write_queue_nums, queues_max),
            )
            for data in self._route.queue_datas
        )
        return Route(topic, msgspec.structs.replace(self._route, queue_datas=limited))

    def brokers(self) -> tuple[str, ...]:
        """Return "host:port" of all brokers that have the topic."""
        return tuple(
            sorted({address for each in self._addresses.values() for address in each.values()})
        )


def allocate(
    queues: Iterable[MessageQueue], consumers: Iterable[str], me: str
) -> tuple[MessageQueue, ...]:
    """Return the queues of consumer `me`: contiguous ranges, the first ones longer by one.

    Deterministic: consumers that see the same queues and consumers compute the same allocation,
    so they need no coordinator (RocketMQ's AllocateMessageQueueAveragely).
    """
    in_order, ids = sorted(queues), sorted(set(consumers))
    if me not in ids:
        return ()
    size, longer = divmod(len(in_order), len(ids))
    place = ids.index(me)
    start = place * size + min(place, longer)
    return tuple(in_order[start : start + size + (place < longer)])


def parse_address(address: str) -> tuple[str, int]:
    """Parse "host:port". Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is no address: it takes host:port, as 127.0.0.1:9876")
    return host, int(port)


def parse_addresses(text: str | Sequence[str]) -> tuple[str, ...]:
    """Parse a list of addresses, or RocketMQ's "a:1;b:2". Raises ValueError."""
    given = text.split(";") if isinstance(text, str) else text
    addresses = tuple(each.strip() for each in given if each.strip())
    if not addresses:
        raise ValueError("no name server was given: it takes host:port;host:port")
    for address in addresses:
        parse_address(address)
    return addresses

"""What must hold of a master and its slaves once faults and clients have stopped.

All of it is checked once, `SETTLE_MS` after the last fault: by then a slave has caught up.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.delays.delay_levels import DELIVERY_GROUP, LEVELS_MAX, SCHEDULE_TOPIC
from shaketable.system.broker.groups.group_offsets import offset_key
from shaketable.system.native.core import NativeCore
from shaketable.system.node.node import Node
from shaketable.system.sim.master_slave_world.setup import MASTER, NO_EXPIRY_MS, SETTLE_MS, Setup
from shaketable.system.sim.rules.native_invariants import MasterSlaveShadow
from shaketable.system.sim.rules.violation import Violated
from shaketable.system.sim.trio_world.clocks import WALL_MS_AT_START
from shaketable.system.sim.trio_world.host import Host
from shaketable.system.sim.trio_world.world import TrioWorld
from shaketable.system.store.native.batch import iter_native_dispatches

EXPIRED_AFTER_MS = 10_000
"""How long an expired file may stay: a node checks each second, only what is checkpointed."""
Queue = tuple[bytes, int]
Offsets = dict[str, dict[int, int]]
_DELIVERY_KEY = offset_key(DELIVERY_GROUP, SCHEDULE_TOPIC.decode())


def check_settled(world: TrioWorld, setup: Setup) -> None:
    """Check that slaves equal their master, and queues match the logs. Raises Violated."""
    nodes = {name: _running(host) for name, host in world.members.items()}
    shadows = world.broker_invariants.shadows
    master = nodes[MASTER]
    wall_ms = WALL_MS_AT_START + int(world.clock.now_ms)
    for name, node in nodes.items():
        _check_queues(name, node.broker, shadows[name])
        if setup.reserved_ms < NO_EXPIRY_MS:
            _check_expired(name, shadows[name], wall_ms, setup.reserved_ms)
        if name != MASTER:
            _check_log(name, shadows[name], shadows[MASTER])
            _check_tables(name, node.broker, master.broker)
            _check_known_master(name, node, world.members[MASTER])
    _check_delivered(master.broker)
    connected = _core(master).status().get("slaveCount")
    if connected != str(setup.slaves):
        raise Violated("slaves-are-counted", f"it tells of {connected} of {setup.slaves}", MASTER)


class SettledState:
    """A settled master's state: log, topics, offsets and progress of deliveries."""

    def __init__(self, end: int, topics: object, offsets: Offsets) -> None:
        self._end = end
        self._topics = topics
        self._offsets = offsets

    @classmethod
    def of(cls, world: TrioWorld) -> SettledState:
        """Return the state of a running master."""
        node = _running(world.members[MASTER])
        tables = node.broker.tables
        return cls(node.commit_log.end.position, tables.topics.state(), tables.offsets.state())

    def check_kept(self, world: TrioWorld) -> None:
        """Check that every remaining broker has it all after a power loss. Raises Violated."""
        for name, host in world.present.items():
            broker = _running(host).broker
            for what, actual, expected in (
                ("log", world.broker_invariants.shadows[name].end, self._end),
                ("topics", broker.tables.topics.state(), self._topics),
                ("offsets", broker.tables.offsets.state(), self._offsets_at(broker)),
            ):
                if actual != expected:
                    raise Violated(
                        "what-was-there-is-kept", f"{what}: {actual}, not {expected}", name
                    )
            _check_queues(name, broker, world.broker_invariants.shadows[name])

    def _offsets_at(self, broker: Broker) -> Offsets:
        """Return the offsets that a broker must have.

        A master moves delivery progress back to the end of a queue that restarts at 0
        (`delay_delivery`).
        """
        if not broker.core.is_ready or _DELIVERY_KEY not in self._offsets:
            return self._offsets
        done = {
            level: min(offset, broker.queues.max_offset((SCHEDULE_TOPIC, level)))
            for level, offset in self._offsets[_DELIVERY_KEY].items()
        }
        return {**self._offsets, _DELIVERY_KEY: done}


def _running(host: Host) -> Node:
    if host.node is None:
        raise Violated("everybody-runs", "still down at the end", host.name)
    return host.node


def _core(node: Node) -> NativeCore:
    core = node.broker.core
    assert isinstance(core, NativeCore), "this is no member of a group"
    return core


def _check_log(name: str, slave: MasterSlaveShadow, master: MasterSlaveShadow) -> None:
    """A slave has its master's log; where both hold bytes they are equal."""
    if slave.end != master.end:
        raise Violated(
            "everybody-catches-up",
            f"its log ends at {slave.end}, its master's at {master.end},"
            f" {SETTLE_MS} ms after the last fault",
            name,
        )
    start = max(slave.start, master.start)
    if slave.bytes_at(start, slave.end) != master.bytes_at(start, slave.end):
        raise Violated("slave-copies-master", f"they differ behind {start}", name)


def _check_delivered(broker: Broker) -> None:
    """The master has delivered every delayed message: each has been due for long."""
    topic = SCHEDULE_TOPIC.decode()
    for level in range(LEVELS_MAX):
        end = broker.queues.max_offset((SCHEDULE_TOPIC, level))
        done = broker.tables.offsets.get(DELIVERY_GROUP, topic, level) or 0
        if done < end:
            raise Violated(
                "delayed-is-delivered", f"{done} of {end} messages of level {level + 1}", MASTER
            )


def _check_queues(name: str, broker: Broker, shadow: MasterSlaveShadow) -> None:
    """Each queue is what the log holds of it, from the first kept message to the last."""
    if broker.applied_index != shadow.end - 1:
        raise Violated(
            "everybody-catches-up",
            f"its queues stand at {broker.applied_index + 1}, its log at {shadow.end}",
            name,
        )
    found: dict[Queue, list[tuple[int, int, int]]] = {}
    for queue, offset, position, size in _messages(shadow):
        found.setdefault(queue, []).append((offset, position, size))
    for queue, messages in found.items():
        start, end = broker.queues.min_offset(queue), broker.queues.max_offset(queue)
        first, last = messages[0][0], messages[-1][0]
        if (start, end) != (first, last + 1):
            raise Violated(
                "queues-are-the-log",
                f"{queue} is {start}..{end}, the log holds {first}..{last + 1} of it",
                name,
            )
        places = broker.queues.find(queue, start, end - start, 1 << 30)
        if places != [(position, size) for _, position, size in messages]:
            raise Violated("queues-are-the-log", f"{queue} leads to other places", name)


def _messages(shadow: MasterSlaveShadow) -> Iterator[tuple[Queue, int, int, int]]:
    """Yield (queue, offset, position, size) of all messages in a broker's log."""
    for start, data in _files(shadow):
        for queue, offset, position, size, *_ in iter_native_dispatches(data, start):
            yield queue, offset, position, size


def _files(shadow: MasterSlaveShadow) -> Iterator[tuple[int, bytes]]:
    """Yield start and bytes of each file of a log, as far as it is written."""
    at, file_bytes = shadow.start, shadow.file_bytes
    while at < shadow.end:
        end = min(at - at % file_bytes + file_bytes, shadow.end)
        yield at, shadow.bytes_at(at, end)
        at = end


def _check_expired(name: str, shadow: MasterSlaveShadow, wall_ms: int, reserved_ms: int) -> None:
    """A full file is removed when expired: its age is that of the first message after it."""
    files = list(_files(shadow))
    for (start, _), (_, end) in pairwise(files):
        dispatch = next(iter_native_dispatches(end, 0), None)
        if dispatch is None:
            continue
        age_ms = wall_ms - dispatch[5]
        if age_ms > reserved_ms + EXPIRED_AFTER_MS:
            raise Violated(
                "expired-is-gone",
                f"the file at {start} is kept for {age_ms} ms, {reserved_ms} were asked for",
                name,
            )


def _check_tables(name: str, slave: Broker, master: Broker) -> None:
    """A slave has its master's topics, group offsets and progress of deliveries."""
    for what, actual, expected in (
        ("topics", slave.tables.topics.state(), master.tables.topics.state()),
        ("offsets", slave.tables.offsets.state(), master.tables.offsets.state()),
    ):
        if actual != expected:
            raise Violated("slave-has-tables", f"{what}: {actual} and not {expected}", name)
    for queue_id, changes in master.tables.versions.items():
        counted = slave.tables.versions[queue_id]
        if counted < changes:
            why = f"it counts {counted} changes, its master {changes}"
            raise Violated("slave-has-tables", why, name)


def _check_known_master(name: str, node: Node, master: Host) -> None:
    """A slave sends clients to the right master."""
    expected = f"{master.address}:{master.config.listen_port}"
    if node.broker.core.leader != expected:
        raise Violated(
            "slave-knows-master", f"it names {node.broker.core.leader}, that is {expected}", name
        )

"""A master and its slaves in the whole-node world, with a name server and an operator."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.delay_levels import DELIVERY_GROUP, LEVELS_MAX, SCHEDULE_TOPIC
from shaketable.system.broker.groups.group_offsets import KEYS_MAX, offset_key
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.broker.topic_tables.topics import TOPICS_MAX
from shaketable.system.invariants.violated import Violated
from shaketable.system.master_slave.config_files import (
    DELAYS,
    GROUPS,
    OFFSETS,
    TOPICS,
    encode_tables,
    load_tables,
)
from shaketable.system.master_slave.core import MasterSlaveCore
from shaketable.system.master_slave.ha import MasterConnection
from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.node.node import Node
from shaketable.system.raft.protocol import LogEnd
from shaketable.system.remoting.command import CommandError
from shaketable.system.remoting.fastjson import loads
from shaketable.system.sim.broken_starts.broken_folders import check_recovery
from shaketable.system.sim.disk import SimDisk
from shaketable.system.sim.master_slave_world.clients import ForeignSlaves, MasterSlaveClients
from shaketable.system.sim.master_slave_world.setup import (
    MASTER,
    NAME_SERVER,
    NAME_SERVER_ADDRESS,
    NAME_SERVER_PORT,
    NO_EXPIRY_MS,
    SETTLE_MS,
    FileDamage,
    Setup,
    configs_of,
    draw_setup,
)
from shaketable.system.sim.rules.client_history import Operation
from shaketable.system.sim.rules.master_slave_invariants import MasterSlaveShadow
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.run_trace import Counts, Trace
from shaketable.system.sim.schedules.faults import damage_broker_file
from shaketable.system.sim.schedules.random_streams import RandomStream
from shaketable.system.sim.schedules.schedule import Schedule, Settings
from shaketable.system.sim.trio_world.clocks import WALL_MS_AT_START
from shaketable.system.sim.trio_world.host import STORE_ROOT, Host
from shaketable.system.sim.trio_world.programs import SimulatedNameServer
from shaketable.system.sim.trio_world.world import TrioWorld, address_of
from shaketable.system.store.plain_commit_log import PlainCommitLog, iter_plain_dispatches

# What a slave's connection to its master goes through: bits that flip on the way.
#
# TCP's checksum lets one such segment in ten million pass (Stone and Partridge, SIGCOMM 2000),
# and RocketMQ's HA protocol has none of its own. The head and the body of a message are protected
# by its magic, sizes, position and CRC: only these are damaged here, since nothing else can be
# detected.

HEAD_BYTES = 8
"""A message starts with its size and its magic."""
LARGE_BIT = 0x01
"""In the second byte of a size: 65,536 bytes more, and no more than RocketMQ allows."""


def damaging_connection(
    base: type[MasterConnection], next_bit_flip: Callable[[], int | None]
) -> type[MasterConnection]:
    """Return a connection class that damages a message's head at the byte that it is given.

    `next_bit_flip` is asked at the start of each frame that starts a message.
    """

    class Damaging(base):  # type: ignore[valid-type, misc]
        was_damaged = False

        def _receive_body(self, position: int, body: bytes, now_ms: float) -> None:
            is_start = not self._partial and len(body) >= HEAD_BYTES
            if is_start and (place := next_bit_flip()) is not None:
                damaged = bytearray(body)
                damaged[place] ^= LARGE_BIT
                self.was_damaged = True
                body = bytes(damaged)
            super()._receive_body(position, body, now_ms)

    found: type[Any] = Damaging
    return found


# The world.

CHECK_INTERVAL_MS = 500.0
LOST_CHECKS_MAX = 4
"""A slave seen so often in a row to need expired files is wiped."""
REPLACED_AFTER_MS = 300.0


class MasterSlaveWorld(TrioWorld):
    """One run of masters and slaves. `run` returns the first violated invariant, or None."""

    def __init__(
        self, setup: Setup, *, mutant: Mutant = HEALTHY, trace: Trace | None = None
    ) -> None:
        settings = Settings(
            members=len(setup.nodes),
            run_ms=setup.run_ms,
            data_file_bytes=setup.file_bytes,
            clients=0,
        )
        schedule = Schedule(seed=setup.seed, settings=settings, faults=setup.faults, calls=())
        self._bit_flips = list(setup.bit_flips)
        base = mutant.master_slave.master_connection
        master_slave = replace(
            mutant.master_slave, master_connection=damaging_connection(base, self.next_bit_flip)
        )
        mutant = replace(mutant, master_slave=master_slave)
        super().__init__(schedule, mutant=mutant, trace=trace, configs=configs_of(setup))
        self.setup = setup
        self.broker_clients = MasterSlaveClients(self, setup)
        setup.older.write(self.members[MASTER].disk, STORE_ROOT, setup.file_bytes)
        self._foreign_slaves = ForeignSlaves(self, MASTER, address_of(MASTER))
        self.healed_ms = float(setup.healed_ms)
        at = ("--host", NAME_SERVER_ADDRESS, "--port", str(NAME_SERVER_PORT))
        self._names = SimulatedNameServer(
            self, NAME_SERVER, ("-m", "shaketable.system.node.name_server", *at)
        )
        self._lost: dict[str, int] = {}
        self._settled: SettledState | None = None
        self.highest_delayed: dict[int, int] = {}
        """The highest end of each queue of delayed messages that some broker had."""

    def run(self) -> Violation | None:
        """Run to the end, or to the first violated invariant."""
        self.heap.push(0.0, self._names.start)
        self.heap.push(0.0, self.broker_clients.start)
        for at_ms, slave in self.setup.wiped:
            self.heap.push(float(at_ms), self._wipe, slave)
        for damage in self.setup.damages:
            self.heap.push(float(damage.at_ms), self._kill_and_damage, damage)
        for foreign in self.setup.foreign_slaves:
            self.heap.push(float(foreign.at_ms), self._foreign_slaves.connect, foreign)
        if self.setup.lagging_ms:
            self.heap.push(float(self.setup.lagging_ms), self._foreign_slaves.lag)
        if self.setup.listener_ms:
            self.heap.push(float(self.setup.listener_ms), self._foreign_slaves.listen)
        self.heap.push(CHECK_INTERVAL_MS, self._wipe_lost_slaves)
        self.heap.push(self.setup.settled_ms - 1.0, self._check_settled)
        self.heap.push(self.setup.run_ms - 1.0, self._check_taken_over)
        return super().run()

    def next_bit_flip(self) -> int | None:
        """Return which byte of a message's head is damaged now, if any."""
        if not self._bit_flips or self.clock.now_ms < self._bit_flips[0].at_ms:
            return None
        self.counts.fault("bit_flip_on_the_way")
        return self._bit_flips.pop(0).place

    def _wipe(self, name: str) -> None:
        """Wipe a slave's disk; it restarts without messages."""
        host = self.members[name]
        if host.is_up:
            self.crash(host, loses_unsynced=True)
            self.heap.push(self.clock.now_ms + REPLACED_AFTER_MS, self.restart, host)
        host.lose_disk()
        self.counts.fault("wipe")

    def _kill_and_damage(self, damage: FileDamage) -> None:
        """Kill a running broker and damage one of its files before the restart."""
        host = self.members[damage.node]
        if host.is_up and not host.is_paused:
            self.crash(host, loses_unsynced=False)
            self.heap.push(self.clock.now_ms + REPLACED_AFTER_MS, self.restart, host)
            self._damage(host, damage)

    def _damage(self, host: Host, damage: FileDamage) -> None:
        platter = host.disk.platter
        if damage_broker_file(platter, STORE_ROOT, damage.file, damage.way, damage.place):
            self.counts.files_damaged += 1
            self.counts.fault(f"damage_{damage.file}")

    def _wipe_lost_slaves(self) -> None:
        """Wipe slaves that need expired files, as an operator does.

        RocketMQ's slave never recovers from that by itself.
        """
        if self.clock.now_ms > self.setup.settled_ms - CHECK_INTERVAL_MS:
            return
        master = self.members[MASTER]
        for host in self.members.values():
            self._note_delayed(host)
            if host is not master:
                checks = self._lost.get(host.name, 0) + 1 if _is_lost(host, master) else 0
                self._lost[host.name] = checks
                if checks >= LOST_CHECKS_MAX:
                    self._lost[host.name] = 0
                    self.counts.fault("slave_behind_expired")
                    self._wipe(host.name)
        self.heap.push(self.clock.now_ms + CHECK_INTERVAL_MS, self._wipe_lost_slaves)

    def _note_delayed(self, host: Host) -> None:
        if host.node is None:
            return
        for (topic, level), (_, end) in host.node.broker.queues.ranges().items():
            if topic == SCHEDULE_TOPIC:
                self.highest_delayed[level] = max(end, self.highest_delayed.get(level, 0))

    def _check_settled(self) -> None:
        """Check that slaves have caught up, then fail the master and crash the slaves."""
        try:
            check_settled(self, self.setup)
        except Violated as found:
            self.violated(found, found.node)
            return
        self._settled = SettledState.of(self)
        for host in self.members.values():
            self.crash(host, loses_unsynced=True)
            if self.setup.last_damage is not None:
                self._damage(host, self.setup.last_damage)
            host.is_removed = host.name == MASTER and self.setup.slaves > 0
            self.heap.push(self.clock.now_ms + REPLACED_AFTER_MS, self.restart, host)

    def _check_taken_over(self) -> None:
        """Check that the remaining brokers kept all that was settled before the power loss."""
        assert self._settled is not None, "the run went on"
        try:
            self._settled.check_kept(self)
            self._check_recoveries()
        except Violated as found:
            self.violated(found, found.node)

    def _check_recoveries(self) -> None:
        """Recover copies of each broker's disk that have a torn tail, again and again."""
        rng = self.rngs.stream("native_world/recovery")
        folder, file_bytes = f"{STORE_ROOT}/commitlog", self.setup.file_bytes

        def end_on(disk: SimDisk) -> LogEnd:
            return PlainCommitLog.open(disk, STORE_ROOT, folder, file_bytes).end

        configs = self.rngs.stream("native_world/foreign_configs")
        for name, host in self.present.items():
            tables = _running(host).broker.tables
            self.counts.broken += check_foreign_configs(configs, tables, name)
            # RocketMQ's format has no durable watermark, as a member's log has.
            self.counts.broken += check_recovery(
                host.disk, end_on, folder, file_bytes, rng, name, remembers_cuts=False
            )

    def _check_end(self) -> None:
        """Do nothing: all was checked while the brokers still ran."""


def _is_lost(slave: Host, master: Host) -> bool:
    """Return whether a slave's log ends before its master's starts."""
    if slave.node is None or master.node is None:
        return False
    end = slave.node.commit_log.end.position
    return 0 < end < master.node.commit_log.start.position


# What must hold of a master and its slaves once faults and clients have stopped.
#
# All of it is checked once, `SETTLE_MS` after the last fault: by then a slave has caught up.

EXPIRED_AFTER_MS = 10_000
"""How long an expired file may stay: a node checks each second, only what is checkpointed."""
Queue = tuple[bytes, int]
Offsets = dict[str, dict[int, int]]
_DELIVERY_KEY = offset_key(DELIVERY_GROUP, SCHEDULE_TOPIC.decode())


def check_settled(world: MasterSlaveWorld, setup: Setup) -> None:
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
            _check_tables(name, node.broker, master.broker, world.highest_delayed)
            _check_known_master(name, node, world.members[MASTER])
    _check_delivered(master.broker)
    connected = _core(master).status().get("slaveCount")
    if connected != str(setup.slaves):
        raise Violated("slaves-are-counted", f"it tells of {connected} of {setup.slaves}", MASTER)


class SettledState:
    """A settled master's state: log, topics, offsets, and what is left to deliver."""

    def __init__(self, end: int, broker: Broker) -> None:
        self._end = end
        self._topics = broker.tables.topics.state()
        self._offsets = _offsets_of(broker)
        self._progress, self._left = _progress(broker), _left_to_deliver(broker)

    @classmethod
    def of(cls, world: TrioWorld) -> SettledState:
        """Return the state of a running master."""
        node = _running(world.members[MASTER])
        return cls(node.commit_log.end.position, node.broker)

    def check_kept(self, world: MasterSlaveWorld) -> None:
        """Check that every remaining broker has it all after a power loss. Raises Violated."""
        for name, host in world.present.items():
            broker = _running(host).broker
            for what, actual, expected in (
                ("log", world.broker_invariants.shadows[name].end, self._end),
                ("topics", broker.tables.topics.state(), self._topics),
                ("offsets", _offsets_of(broker), self._offsets),
            ):
                if actual != expected:
                    raise Violated(
                        "what-was-there-is-kept", f"{what}: {actual}, not {expected}", name
                    )
            if ahead := _progress_differs(
                broker, self._progress, self._left, world.highest_delayed
            ):
                raise Violated("what-was-there-is-kept", ahead, name)
            _check_queues(name, broker, world.broker_invariants.shadows[name])


def _running(host: Host) -> Node:
    if host.node is None:
        raise Violated("every-node-runs", "still down at the end", host.name)
    return host.node


def _core(node: Node) -> MasterSlaveCore:
    core = node.broker.core
    assert isinstance(core, MasterSlaveCore), "this is no member of a group"
    return core


def _check_log(name: str, slave: MasterSlaveShadow, master: MasterSlaveShadow) -> None:
    """A slave has its master's log; where both hold bytes they are equal."""
    if slave.end != master.end:
        raise Violated(
            "every-node-catches-up",
            f"its log ends at {slave.end}, its master's at {master.end},"
            f" {SETTLE_MS} ms after the last fault",
            name,
        )
    start = max(slave.start, master.start)
    if slave.bytes_at(start, slave.end) != master.bytes_at(start, slave.end):
        raise Violated("slave-copies-master", f"they differ after {start}", name)


def _check_delivered(broker: Broker) -> None:
    """The master has delivered every delayed message that it has: each has been due for long.

    A full disk may make it remove files before their time, with messages that are not delivered.
    """
    topic = SCHEDULE_TOPIC.decode()
    for level in range(LEVELS_MAX):
        queue = (SCHEDULE_TOPIC, level)
        end = broker.queues.max_offset(queue)
        done = broker.tables.offsets.get(DELIVERY_GROUP, topic, level) or 0
        done = max(done, broker.queues.min_offset(queue))
        if done < end:
            raise Violated(
                "delayed-is-delivered", f"{done} of {end} messages of level {level + 1}", MASTER
            )


def _check_queues(name: str, broker: Broker, shadow: MasterSlaveShadow) -> None:
    """Each queue is what the log holds of it, from the first kept message to the last."""
    if broker.applied_index != shadow.end - 1:
        raise Violated(
            "every-node-catches-up",
            f"its queues are at {broker.applied_index + 1}, its log at {shadow.end}",
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
        for queue, offset, position, size, *_ in iter_plain_dispatches(data, start):
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
        dispatch = next(iter_plain_dispatches(end, 0), None)
        if dispatch is None:
            continue
        age_ms = wall_ms - dispatch[5]
        if age_ms > reserved_ms + EXPIRED_AFTER_MS:
            raise Violated(
                "expired-is-gone",
                f"the file at {start} is kept for {age_ms} ms, {reserved_ms} were requested",
                name,
            )


def _check_tables(name: str, slave: Broker, master: Broker, highest: Mapping[int, int]) -> None:
    """A slave has its master's topics, group offsets and progress of deliveries."""
    for what, actual, expected in (
        ("topics", slave.tables.topics.state(), master.tables.topics.state()),
        ("offsets", _offsets_of(slave), _offsets_of(master)),
    ):
        if actual != expected:
            raise Violated("slave-has-tables", f"{what}: {actual} and not {expected}", name)
    ahead = _progress_differs(slave, _progress(master), _left_to_deliver(master), highest)
    if ahead:
        raise Violated("slave-has-tables", ahead, name)
    for queue_id, changes in master.tables.versions.items():
        counted = slave.tables.versions[queue_id]
        if counted < changes:
            why = f"it counts {counted} changes, its master {changes}"
            raise Violated("slave-has-tables", why, name)


def _offsets_of(broker: Broker) -> Offsets:
    """Return the offsets of consumer groups."""
    state = broker.tables.offsets.state()
    return {key: offsets for key, offsets in state.items() if key != _DELIVERY_KEY}


def _progress(broker: Broker) -> dict[int, int]:
    """Return up to where delayed messages are delivered, by the number of their queue."""
    return dict(broker.tables.offsets.state().get(_DELIVERY_KEY, {}))


def _left_to_deliver(broker: Broker) -> dict[int, int]:
    """Return how many delayed messages of each queue are not delivered."""
    done = _progress(broker)
    return {
        level: broker.queues.max_offset((SCHEDULE_TOPIC, level)) - done.get(level, 0)
        for level in range(LEVELS_MAX)
    }


def _progress_differs(
    broker: Broker,
    masters: Mapping[int, int],
    left: Mapping[int, int],
    highest: Mapping[int, int],
) -> str:
    """Say where a broker's progress of deliveries is not its settled master's; "" if nowhere.

    They may differ where a queue of which all has expired begins anew, so that none is left: the
    one that begins it anew sets its progress back (`DelayDelivery`), one that still knows the
    queue's end does not. `highest` are the queues' ends as they were at some time.
    """
    mine, ends = _progress(broker), _left_to_deliver(broker)
    for level in range(LEVELS_MAX):
        is_done = ends[level] <= 0 and mine.get(level, 0) <= highest.get(level, 0)
        is_same = mine.get(level, 0) == masters.get(level, 0)
        if not is_same and not (left.get(level, 0) <= 0 and is_done):
            return f"progress of level {level + 1}: {mine.get(level)}, and not {masters.get(level)}"
    return ""


def _check_known_master(name: str, node: Node, master: Host) -> None:
    """A slave sends clients to the right master."""
    expected = f"{master.address}:{master.config.listen_port}"
    if node.broker.core.leader != expected:
        raise Violated(
            "slave-knows-master", f"it names {node.broker.core.leader}, that is {expected}", name
        )


@dataclass(frozen=True, slots=True)
class MasterSlaveResult:
    """The outcome of one seed. `digest` is the same whenever and wherever the run is repeated."""

    seed: int
    violation: Violation | None
    ended_ms: float
    counts: Counts
    digest: str
    history: tuple[Operation, ...]


def run_seed(
    seed: int,
    run_ms: int,
    role: str,
    *,
    has_slaves: bool = True,
    mutant: Mutant | None = None,
    trace: Callable[[str], None] | None = None,
) -> MasterSlaveResult:
    """Run a seed with `run_ms` of faults to its end or the first violation.

    `role` is the master's; `mutant` plants a bug; `trace` is called with each line of the trace.
    """
    setup = draw_setup(seed, role, run_ms, has_slaves=has_slaves)
    recorder = Trace(trace)
    world = MasterSlaveWorld(setup, mutant=mutant or HEALTHY, trace=recorder)
    violation = world.run()
    ends = (
        f"{name} {shadow.start} {shadow.end} {shadow.durable}"
        for name, shadow in world.broker_invariants.shadows.items()
    )
    digest = recorder.final_digest(ends, violation)
    history = tuple(world.broker_clients.history)
    ended_ms = setup.run_ms if violation is None else violation.at_ms
    return MasterSlaveResult(seed, violation, ended_ms, world.counts, digest, history)


# At the end of a run: config/*.json that other brokers, other versions or people have written.
#
# A file is refused as a whole, or what is loaded is what a broker may have: then no later answer,
# copy or file can carry on what was wrong. Source: RocketMQ's ConfigManager, whose decode takes
# what fastjson takes; TopicConfigManager and SubscriptionGroupManager.

CHECKS = 6
"""How many foreign files are tried in a run."""
_TABLE = {
    TOPICS: "topicConfigTable",
    GROUPS: "subscriptionGroupTable",
    OFFSETS: "offsetTable",
    DELAYS: "offsetTable",
}
_I64_MAX = (1 << 63) - 1
_LEGAL_NAME = re.compile(r"[A-Za-z0-9_%|-]{1,127}")
_TOPIC = {"topicName": "t", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
_NAMES = ("", "a b", "../t", "x" * 300, "größer", "t\x00", "t/0")
_COUNTERS: tuple[object, ...] = (-1, 1 << 63, 1 << 80, "7", 1.5, None, [], True)
_CONFIGS: tuple[object, ...] = (5, "on", None, [], True)


def check_foreign_configs(rng: RandomStream, tables: BrokerTables, name: str) -> int:
    """Load foreign files into tables of their own; return how many. Raises Violated.

    What the broker `name` itself would write, given its `tables`, is loaded as it is.
    """
    for file in _TABLE:
        _check_own(file, tables, name)
    for _ in range(CHECKS):
        file, data, what = rng.choice(_WAYS)(rng)
        loaded = _new_tables()
        try:
            load_tables(file, data, loaded)
        except CommandError as error:
            if "\n" in str(error):
                text = f"{what}: {error!r} is no clear line"
                raise Violated("foreign-configs-are-refused", text, name) from error
        else:
            _check_loaded(loaded, what, name)
    return CHECKS


def _new_tables() -> BrokerTables:
    return BrokerTables(BrokerConfig(), BrokerState())


def _check_own(file: str, tables: BrokerTables, name: str) -> None:
    written = encode_tables(file, tables, 0)
    loaded = _new_tables()
    load_tables(file, written, loaded)
    # What its own topics are also depends on its configuration.
    again = encode_tables(file, loaded, 0)
    if file in (OFFSETS, DELAYS) and loads(again)[_TABLE[file]] != loads(written)[_TABLE[file]]:
        raise Violated("foreign-configs-are-refused", f"its own {file}.json changes", name)


def _check_loaded(tables: BrokerTables, what: str, name: str) -> None:
    """Check that tables are what a broker may have."""
    topics = [one.topic_name for one in tables.topics]
    bad = [topic for topic in topics if not _LEGAL_NAME.fullmatch(topic)]
    bad += [group for group, config in tables.groups.items() if not isinstance(config, Mapping)]
    keys = len(tables.offsets.state())
    problems = {
        f"{bad[:3]!r} are kept": bool(bad),
        f"{len(topics)} topics are kept": len(topics) > 2 * TOPICS_MAX,
        f"{len(tables.groups)} groups are kept": len(tables.groups) > KEYS_MAX,
        f"offsets of {keys} topics and groups are kept": keys > KEYS_MAX,
        f"changes are counted as {tables.versions}": any(
            type(count) is not int or not 0 <= count <= _I64_MAX
            for count in tables.versions.values()
        ),
    }
    for problem, is_one in problems.items():
        if is_one:
            raise Violated("foreign-configs-are-refused", f"{what}: {problem}", name)


# ---- ways: a file's name, what is in it, and what is wrong with it --------------------------

Foreign = tuple[str, bytes, str]


def _file(file: str, table: object, counter: object = 1) -> bytes:
    version = {"counter": counter, "stateVersion": 0, "timestamp": 0}
    return json.dumps({"dataVersion": version, _TABLE[file]: table}).encode()


def _illegal_topics(rng: RandomStream) -> Foreign:
    names = [rng.choice(_NAMES), "legal"]
    table = {name: {**_TOPIC, "topicName": name} for name in names}
    return TOPICS, _file(TOPICS, table), f"a topic {names[0]!r}"


def _odd_counters(rng: RandomStream) -> Foreign:
    file, counter = rng.choice((TOPICS, OFFSETS)), rng.choice(_COUNTERS)
    return file, _file(file, {}, counter), f"counter {counter!r} in {file}.json"


def _odd_groups(rng: RandomStream) -> Foreign:
    config = rng.choice(_CONFIGS)
    return GROUPS, _file(GROUPS, {"g": config, "h": {}}), f"a group's configuration {config!r}"


def _odd_table(rng: RandomStream) -> Foreign:
    file, table = rng.choice(tuple(_TABLE)), rng.choice(_CONFIGS)
    return file, _file(file, table), f"a table {table!r} in {file}.json"


def _too_many(rng: RandomStream) -> Foreign:
    file = rng.choice((GROUPS, OFFSETS))
    table: dict[str, object] = {f"t{number}@g": {} for number in range(KEYS_MAX + 1)}
    if file == OFFSETS:
        table = {key: {"0": 1} for key in table}
    return file, _file(file, table), f"{KEYS_MAX + 1} entries in {file}.json"


def _cut_off(rng: RandomStream) -> Foreign:
    file = rng.choice(tuple(_TABLE))
    data = _file(file, {})
    return file, data[: rng.randrange(len(data))], f"a part of {file}.json"


_WAYS: tuple[Callable[[RandomStream], Foreign], ...] = (
    _illegal_topics,
    _odd_counters,
    _odd_groups,
    _odd_table,
    _too_many,
    _cut_off,
)

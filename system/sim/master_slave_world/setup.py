"""What one seed of a master and its slaves decides: sizes, retention, faults, configurations.

Files hold a few messages and are kept for seconds, and a slave is sent little at once, so that
slaves that were cut off need older files, or expired ones. The master never loses its disk or its
page cache: RocketMQ's replication cannot recover from that (DLEDGER.md D.2).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from shaketable.system.broker.delay_levels import (
    LEVELS_MAX,
    SCHEDULE_TOPIC,
    scheduled_properties,
)
from shaketable.system.master_slave.config_files import DELAYS
from shaketable.system.node.config import NodeConfig
from shaketable.system.remoting.fastjson import dumps
from shaketable.system.sim.schedules.faults import (
    OF_A_BROKER,
    WAYS,
    AnyFault,
    Crash,
    Cut,
    FullDisk,
    Pause,
    SlowDisk,
    StallDisk,
    Stop,
)
from shaketable.system.sim.schedules.random_streams import RandomStream, RandomStreams
from shaketable.system.sim.trio_world.clocks import WALL_MS_AT_START
from shaketable.system.sim.trio_world.host import CLIENT_PORT, PEER_PORT, STORE_ROOT
from shaketable.system.sim.trio_world.programs import CONF, node_config
from shaketable.system.sim.trio_world.world import address_of
from shaketable.system.store.message import Message, encode_message

if TYPE_CHECKING:
    from shaketable.system.sim.disk import SimDisk


MASTER = "n0"
FAULTS_FROM_MS = 1_500
"""No faults before this time."""
SETTLE_MS = 30_000
"""Time after the last fault in which a slave must catch up.

A slave registers every 10 s and copies its master's tables every 10 s, so by then it has all: log,
queues, topics, offsets, progress of deliveries.
"""
LISTENS_AFTER_MS = 5_000
"""Time after the last fault when a slave connects that only listens: all is calm by then."""
TAKE_OVER_MS = 3_000
"""Time after that in which the master is gone, and its slaves restart from a power loss."""
NO_EXPIRY_MS = 3_600_000
_DURATION_MAX_MS = {"cut": 12_000, "away": 12_000, "stall": 6_000}
_OTHER_DURATION_MAX_MS = 2_500


# What a master finds on its disk of an older RocketMQ broker: delayed messages.
#
# Only config/delayOffset.json knows how far they are delivered: RocketMQ's deliveries do not record
# their source in the log, as ours do. Source: RocketMQ's ScheduleMessageService.

OLDER_TOPIC = b"older"
OLDER_STORE_SHARE = 0.3
OLDER_LEVELS = (LEVELS_MAX - 1, LEVELS_MAX)
"""Clients use other levels: a delivery of one of theirs would record the level's progress."""
OLDER_MESSAGES_MAX = 4
OLDER_AGE_MS = 5_000
"""Age of these messages: all are due."""


class OlderStore(msgspec.Struct, frozen=True, kw_only=True):
    """Number of delayed messages of each level, and how many were delivered."""

    waiting: tuple[int, ...] = ()
    delivered: tuple[int, ...] = ()

    def write(self, disk: SimDisk, root: str, file_bytes: int) -> None:
        """Write commit log and config/ durably to an empty disk."""
        if not self.waiting:
            return
        _put(disk, f"{root}/commitlog", f"{0:020}", self._log(), file_bytes)
        done = zip(OLDER_LEVELS, self.delivered, strict=True)
        table = {level: count for level, count in done if count}
        said = dumps({"offsetTable": table}, unquoted_integer_keys=True)
        _put(disk, f"{root}/config", f"{DELAYS}.json", said, len(said))

    def _log(self) -> bytes:
        log = b""
        for level, count in zip(OLDER_LEVELS, self.waiting, strict=True):
            for offset in range(count):
                log += _older_message(
                    SCHEDULE_TOPIC,
                    level - 1,
                    offset,
                    len(log),
                    scheduled_properties(b"", OLDER_TOPIC, level, level),
                )
        for level, count in zip(OLDER_LEVELS, self.delivered, strict=True):
            for offset in range(count):
                log += _older_message(OLDER_TOPIC, level, offset, len(log), b"")
        return log


def draw_older_store(rng: RandomStream) -> OlderStore:
    """Generate an older store, or an empty one."""
    if not rng.chance(OLDER_STORE_SHARE):
        return OlderStore()
    waiting = tuple(rng.randint(1, OLDER_MESSAGES_MAX) for _ in OLDER_LEVELS)
    return OlderStore(waiting=waiting, delivered=tuple(rng.randint(0, n) for n in waiting))


def _older_message(
    topic: bytes, queue_id: int, offset: int, position: int, properties: bytes
) -> bytes:
    stored_ms = WALL_MS_AT_START - OLDER_AGE_MS
    body = b"%d" % offset
    return encode_message(
        Message(
            topic, queue_id, offset, position, body, properties, born_ms=stored_ms,
            store_ms=stored_ms,
        )
    )  # fmt: skip


def _put(disk: SimDisk, folder: str, name: str, data: bytes, size: int) -> None:
    disk.make_dirs(folder)
    file = disk.create(f"{folder}/{name}", size)
    file.pwrite([data], 0)
    file.sync()
    file.close()
    disk.sync_dir(folder)


class FileDamage(msgspec.Struct, frozen=True, kw_only=True):
    """A lost or damaged file beside an intact log.

    `file` and `way` are those of `system.sim.schedules.faults`; `place` (0.0 to 1.0) is
    where.
    """

    at_ms: int
    node: str
    file: str
    way: str
    place: float


# Slaves that report an offset which this master never sent.
#
# A slave of another cluster (a wrong haMasterAddress), one that was restored from elsewhere, or one
# that has what its master lost. Its reports acknowledge no copy.
#
# Source: https://github.com/apache/rocketmq/issues/1155 (a slave that is ahead of its master).

AHEAD = (1 << 20, 1 << 40)
"""Bytes after the master's end that it claims to have: more than is written before its report
arrives."""
SAME_END = 0
"""It claims to have what the master has written, also where no slave was sent that yet."""
NOWHERE = -1


class ForeignSlave(msgspec.Struct, frozen=True, kw_only=True):
    """One that connects at a virtual time and is that far ahead of the master, or sends NOWHERE."""

    at_ms: int
    ahead_bytes: int


def draw_foreign_slaves(rng: RandomStream, from_ms: int, run_ms: int) -> tuple[ForeignSlave, ...]:
    """Generate the foreign slaves of a run."""
    found = [
        ForeignSlave(
            at_ms=rng.randrange(from_ms, run_ms),
            ahead_bytes=rng.choice((NOWHERE, SAME_END, *AHEAD)),
        )
        for _ in range(rng.choice((0, 0, 1, 2)))
    ]
    return tuple(sorted(found, key=lambda slave: slave.at_ms))


# Bits that flip on the way from a master to a slave: in a message's size, or its magic.

FLIPPED_PLACES = (1, 5)
FLIPPED_SHARE = 0.4


class BitFlip(msgspec.Struct, frozen=True, kw_only=True):
    """The first message that starts a frame at that time or later is damaged at that byte."""

    at_ms: int
    place: int


def draw_bit_flips(rng: RandomStream, from_ms: int, run_ms: int) -> tuple[BitFlip, ...]:
    """Generate the bit flips of a run."""
    if not rng.chance(FLIPPED_SHARE):
        return ()
    found = [
        BitFlip(at_ms=rng.randrange(from_ms, run_ms), place=rng.choice(FLIPPED_PLACES))
        for _ in range(rng.randint(1, 4))
    ]
    return tuple(sorted(found, key=lambda flip: flip.at_ms))


# Disks that are slow enough for a flush to take longer than a client is made to wait for it, and
# slaves that are away until what they lack has expired.

VERY_SLOW_SHARE = 0.5
VERY_SLOW_FACTOR = 400.0
VERY_SLOW_MS = 2_500
SHORT_FLUSH_TIMEOUT_MS = 200
LONG_AWAY_SHARE = 0.3


def with_longer_faults(
    rng: RandomStream, faults: tuple[AnyFault, ...], slaves: int, run_ms: int
) -> tuple[AnyFault, ...]:
    """Return a run's faults, for some seeds with longer ones."""
    more: list[AnyFault] = []
    latest_ms = run_ms - VERY_SLOW_MS
    if rng.chance(VERY_SLOW_SHARE) and latest_ms > FAULTS_FROM_MS:
        start_ms = rng.randrange(FAULTS_FROM_MS, latest_ms)
        more.append(
            SlowDisk(
                start_ms=start_ms, duration_ms=VERY_SLOW_MS, node=MASTER, factor=VERY_SLOW_FACTOR
            )
        )
    if slaves and rng.chance(LONG_AWAY_SHARE):
        start_ms = FAULTS_FROM_MS + rng.randrange(1_000)
        node, lasts_ms = f"n{rng.randint(1, slaves)}", max(50, run_ms - start_ms - 500)
        more.append(Crash(start_ms=start_ms, duration_ms=lasts_ms, node=node, loses_unsynced=False))
    return tuple(sorted((*faults, *more), key=lambda fault: fault.start_ms))


def _is_very_slow(faults: tuple[AnyFault, ...]) -> bool:
    return any(isinstance(fault, SlowDisk) and fault.factor == VERY_SLOW_FACTOR for fault in faults)


# A whole run.


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times in virtual milliseconds, sizes in bytes.

    Attributes:
        slaves: number of slaves, 0 in multi-master mode.
        reserved_ms: how long a file is kept after its last message.
        healed_ms: when the last fault has ended; clients stop then.
        sends_per_s: rate of messages.
        faults: faults of the machines and the network.
        wiped: when slaves lose their disks, and which.
        damages: when a rebuildable file of a node is damaged and its process killed.
        last_damage: the same for each remaining node at the final power loss.
        foreign_slaves: slaves of other masters that connect.
        lagging_ms: when a slave connects that never reports the last byte, 0 for none.
        listener_ms: when a slave connects that only listens, 0 for none.
        bit_flips: what is damaged on the way to a slave.
        older: what an older broker left on the master's disk.
    """

    seed: int
    role: str
    slaves: int
    is_sync_flush: bool
    file_bytes: int
    transfer_bytes_max: int
    tail_bytes_max: int
    reserved_ms: int
    sync_flush_timeout_ms: int
    slave_timeout_ms: int
    body_bytes_max: int
    sends_per_s: int
    healed_ms: int
    faults: tuple[AnyFault, ...]
    wiped: tuple[tuple[int, str], ...]
    damages: tuple[FileDamage, ...] = ()
    last_damage: FileDamage | None = None
    foreign_slaves: tuple[ForeignSlave, ...] = ()
    lagging_ms: int = 0
    listener_ms: int = 0
    bit_flips: tuple[BitFlip, ...] = ()
    older: OlderStore = OlderStore()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The master and its slaves."""
        return tuple(f"n{number}" for number in range(1 + self.slaves))

    @property
    def run_ms(self) -> int:
        """When the run ends."""
        return self.settled_ms + TAKE_OVER_MS

    @property
    def settled_ms(self) -> int:
        """When slaves must have caught up."""
        return self.healed_ms + SETTLE_MS


def draw_setup(seed: int, role: str, run_ms: int, *, has_slaves: bool = True) -> Setup:
    """Generate a seed's setup, with faults for `run_ms`."""
    rngs = RandomStreams(seed)
    rng = rngs.stream("native_world/setup")
    file_bytes = rng.choice((4_096, 8_192, 16_384, 65_536))
    slaves = rng.choice((1, 1, 2)) if has_slaves else 0
    faults = draw_faults(rngs.stream("native_world/faults"), slaves, run_ms)
    faults = with_longer_faults(rngs.stream("native_world/longer"), faults, slaves, run_ms)
    reserved_ms = rng.choice((2_000, 4_000, 8_000, NO_EXPIRY_MS))
    damage = rngs.stream("native_world/damage")
    # A queue whose messages have all expired restarts at 0 when rebuilt, as RocketMQ's does.
    damages = _draw_damages(damage, slaves, run_ms) if reserved_ms == NO_EXPIRY_MS else ()
    setup = Setup(
        seed=seed,
        role=role,
        slaves=slaves,
        is_sync_flush=rng.chance(0.5),
        file_bytes=file_bytes,
        transfer_bytes_max=rng.choice((50, 300, 2_000, 32_768)),
        tail_bytes_max=rng.choice((1, 1_000, 10_000, 1 << 20)),
        reserved_ms=reserved_ms,
        sync_flush_timeout_ms=rng.choice((200, 1_000, 5_000)),
        slave_timeout_ms=rng.choice((200, 1_000, 3_000)),
        body_bytes_max=min(file_bytes // 2, rng.choice((100, 1_000, 3_000))),
        sends_per_s=rng.choice((5, 15, 40)),
        healed_ms=run_ms,
        faults=faults,
        wiped=_draw_wiped(rngs.stream("native_world/wiped"), slaves, run_ms),
        damages=damages,
        last_damage=_draw_damage(damage, "", run_ms) if damage.chance(0.6) else None,
        foreign_slaves=draw_foreign_slaves(
            rngs.stream("native_world/strangers"), FAULTS_FROM_MS, run_ms
        ),
        lagging_ms=rngs.stream("native_world/lagging").choice((0, FAULTS_FROM_MS + 1_500)),
        listener_ms=run_ms + LISTENS_AFTER_MS,
        bit_flips=draw_bit_flips(rngs.stream("native_world/wire"), FAULTS_FROM_MS, run_ms),
        older=draw_older_store(rngs.stream("native_world/older")),
    )
    if _is_very_slow(faults):
        return msgspec.structs.replace(
            setup, is_sync_flush=True, sync_flush_timeout_ms=SHORT_FLUSH_TIMEOUT_MS
        )
    return setup


def draw_faults(rng: RandomStream, slaves: int, run_ms: int) -> tuple[AnyFault, ...]:
    """Generate the faults of a run, which all end by `run_ms`."""
    kinds = rng.sample(("cut", "crash", "pause", "stall", "slow", "stop", "full"), 4)
    if slaves:
        kinds[:2] = ["cut", "away"]
    faults = [_draw_fault(rng, rng.choice(kinds), slaves, run_ms) for _ in range(10)]
    return tuple(sorted(faults, key=lambda fault: fault.start_ms))


def _draw_fault(rng: RandomStream, kind: str, slaves: int, run_ms: int) -> AnyFault:
    start_ms = rng.randrange(FAULTS_FROM_MS, max(FAULTS_FROM_MS + 1, run_ms - 500))
    longest = _DURATION_MAX_MS.get(kind, _OTHER_DURATION_MAX_MS)
    duration_ms = max(50, min(int(rng.uniform(0.03, 1.0) ** 2 * longest), run_ms - start_ms))
    node = f"n{rng.randint(0, slaves)}"
    if kind == "cut" and slaves:
        slave = f"n{rng.randint(1, slaves)}"
        ways = rng.choice((((MASTER, slave), (slave, MASTER)), ((MASTER, slave),)))
        return Cut(start_ms=start_ms, duration_ms=duration_ms, links=ways)
    if kind == "away":
        # No connection keeps what it misses: it must request it, if the master still has it.
        slave = f"n{rng.randint(1, slaves)}"
        return Crash(start_ms=start_ms, duration_ms=duration_ms, node=slave, loses_unsynced=False)
    if kind == "crash":
        return Crash(
            start_ms=start_ms,
            duration_ms=duration_ms,
            node=node,
            loses_unsynced=rng.chance(0.5) and node != MASTER,
        )
    if kind == "stall":
        return StallDisk(start_ms=start_ms, duration_ms=duration_ms, node=node)
    if kind == "slow":
        return SlowDisk(
            start_ms=start_ms, duration_ms=duration_ms, node=node, factor=rng.choice((5.0, 50.0))
        )
    if kind == "stop":
        return Stop(start_ms=start_ms, duration_ms=duration_ms, node=node)
    if kind == "full":
        return FullDisk(
            start_ms=start_ms,
            duration_ms=duration_ms,
            node=node,
            spare_bytes=rng.choice((0, 1_000, 20_000)),
        )
    return Pause(start_ms=start_ms, duration_ms=duration_ms, node=node)


def _draw_damages(rng: RandomStream, slaves: int, run_ms: int) -> tuple[FileDamage, ...]:
    found = [
        _draw_damage(rng, f"n{rng.randint(0, slaves)}", rng.randrange(FAULTS_FROM_MS, run_ms))
        for _ in range(rng.randint(0, 3))
    ]
    return tuple(sorted(found, key=lambda damage: damage.at_ms))


def _draw_damage(rng: RandomStream, node: str, at_ms: int) -> FileDamage:
    file = rng.choice(OF_A_BROKER)
    way = rng.choice(WAYS[file])
    return FileDamage(at_ms=at_ms, node=node, file=file, way=way, place=rng.random())


def _draw_wiped(rng: RandomStream, slaves: int, run_ms: int) -> tuple[tuple[int, str], ...]:
    """Choose which slaves lose their disks, and when."""
    if not slaves:
        return ()
    times = rng.choice((0, 1, 2))
    found = [
        (rng.randrange(FAULTS_FROM_MS, run_ms), f"n{rng.randint(1, slaves)}") for _ in range(times)
    ]
    return tuple(sorted(found))


# Configuration of the brokers of such a run, as in a broker.conf.

NAME_SERVER = "names"
NAME_SERVER_ADDRESS = "10.0.8.1"
NAME_SERVER_PORT = 9876
BROKER = "broker-0"
LEVEL_DELAYS = ("1s",) * LEVELS_MAX


def configs_of(setup: Setup) -> dict[str, NodeConfig]:
    """Return each node's configuration, by node."""
    return {node: _broker_config(setup, node) for node in setup.nodes}


def _broker_config(setup: Setup, node: str) -> NodeConfig:
    number = int(node[1:])
    lines: dict[str, object] = {
        "brokerName": BROKER,
        "brokerId": number,
        "brokerRole": "SLAVE" if number else setup.role,
        "brokerIP1": address_of(node),
        "listenPort": CLIENT_PORT,
        "haListenPort": PEER_PORT,
        "namesrvAddr": f"{NAME_SERVER_ADDRESS}:{NAME_SERVER_PORT}",
        "registerNameServerPeriod": 10_000,
        "storePathRootDir": STORE_ROOT,
        "flushDiskType": "SYNC_FLUSH" if setup.is_sync_flush else "ASYNC_FLUSH",
        "syncFlushTimeout": setup.sync_flush_timeout_ms,
        "slaveTimeout": setup.slave_timeout_ms,
        "mappedFileSizeCommitLog": setup.file_bytes,
        "haTransferBatchSize": setup.transfer_bytes_max,
        "shaketableReservedMs": setup.reserved_ms,
        "messageDelayLevel": " ".join(LEVEL_DELAYS),
        "slaveReadEnable": "true",
    }
    if number:
        lines["haMasterAddress"] = f"{address_of(MASTER)}:{PEER_PORT}"
    config = node_config({CONF: "".join(f"{key}={value}\n" for key, value in lines.items())})
    master_slave = config.master_slave
    assert master_slave is not None, "it is no member of a group"
    own = replace(master_slave.config, tail_bytes_max=setup.tail_bytes_max)
    return replace(config, master_slave=replace(master_slave, config=own))

"""What one seed of a master and its slaves decides: sizes, how long messages are kept, faults.

Files hold a few messages and are kept for seconds, a slave is sent little at once, so that slaves
that are cut off need what is in older files, or has expired. The master never loses its disk, nor
what the kernel has: RocketMQ's replication cannot go on behind that (DLEDGER.md D.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shaketable.system.broker.delays.delay_levels import LEVELS_MAX, SCHEDULE_TOPIC, scheduled
from shaketable.system.native.config_files import DELAYS
from shaketable.system.remoting.fastjson import dumps
from shaketable.system.sim.broken_starts.file_damage import OF_A_BROKER, WAYS
from shaketable.system.sim.native_world.strangers import Stranger, draw_strangers
from shaketable.system.sim.schedules.draws import Draws, Stream
from shaketable.system.sim.schedules.faults import (
    AnyFault,
    Crash,
    Cut,
    FullDisk,
    Pause,
    SlowDisk,
    StallDisk,
    Stop,
)
from shaketable.system.sim.trio_world.host_clock import WALL_MS_AT_START
from shaketable.system.store.message import Message, encode_message

if TYPE_CHECKING:
    from shaketable.system.sim.disks.disk import SimDisk


MASTER = "n0"
CALM_MS = 1_500
"""So long nothing happens to them at first."""
SETTLE_MS = 30_000
"""Behind the last fault: a slave registers every 10 s, and every 10 s it takes its master's tables.

Within that it has all that its master has: log, queues, topics, offsets, progress of deliveries.
"""
TAKE_OVER_MS = 3_000
"""Behind that the master is gone for good, and its slaves lose their power and start again."""
KEPT_MS = 3_600_000
_LONGEST_MS = {"cut": 12_000, "away": 12_000, "stall": 6_000}
_LONGEST_OF_OTHERS_MS = 2_500


# What a master finds that a broker of RocketMQ's kept before it: delayed messages.
#
# How far they are delivered stands in config/delayOffset.json alone: RocketMQ's deliveries do not
# say in the log where they come from, as ours do. Source: RocketMQ's ScheduleMessageService.

TOPIC = b"older"
IS_THERE = 0.3
LEVELS = (LEVELS_MAX - 1, LEVELS_MAX)
"""Clients use others: whoever delivers one of theirs says how far its level is."""
MESSAGES_MAX = 4
AGE_MS = 5_000
"""So old they are: every one is due."""


class OlderStore(msgspec.Struct, frozen=True, kw_only=True):
    """How many delayed messages of each level there are, and how many of them were delivered."""

    waiting: tuple[int, ...] = ()
    delivered: tuple[int, ...] = ()

    def write(self, disk: SimDisk, root: str, file_bytes: int) -> None:
        """Put commit log and config/ on an empty disk, durably."""
        if not self.waiting:
            return
        _put(disk, f"{root}/commitlog", f"{0:020}", self._log(), file_bytes)
        done = zip(LEVELS, self.delivered, strict=True)
        table = {level: count for level, count in done if count}
        said = dumps({"offsetTable": table}, unquoted_integer_keys=True)
        _put(disk, f"{root}/config", f"{DELAYS}.json", said, len(said))

    def _log(self) -> bytes:
        log = b""
        for level, count in zip(LEVELS, self.waiting, strict=True):
            for offset in range(count):
                log += _message(
                    SCHEDULE_TOPIC, level - 1, offset, len(log), scheduled(b"", TOPIC, level, level)
                )
        for level, count in zip(LEVELS, self.delivered, strict=True):
            for offset in range(count):
                log += _message(TOPIC, level, offset, len(log), b"")
        return log


def draw_older_store(draw: Stream) -> OlderStore:
    """Draw whether there is one, and what it holds."""
    if not draw.chance(IS_THERE):
        return OlderStore()
    waiting = tuple(draw.randint(1, MESSAGES_MAX) for _ in LEVELS)
    return OlderStore(waiting=waiting, delivered=tuple(draw.randint(0, n) for n in waiting))


def _message(topic: bytes, queue_id: int, offset: int, position: int, properties: bytes) -> bytes:
    stored_ms = WALL_MS_AT_START - AGE_MS
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
    """A file that is lost or damaged beside a log that is whole.

    `file` and `way` are those of `system.sim.broken_starts.file_damage`; `place` (0.0 to 1.0) is
    where.
    """

    at_ms: int
    node: str
    file: str
    way: str
    place: float


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times in virtual milliseconds, sizes in bytes.

    Attributes:
        slaves: how many there are, 0 in multi-master mode.
        reserved_ms: how long a file is kept behind its last message.
        healed_ms: when the last fault is over at the latest; clients stop then.
        sends_per_s: how many messages are sent.
        faults: what happens to the machines and between them.
        wiped: when a slave loses its disk, and which.
        damages: when a file of a node is damaged that can be built anew, its process killed.
        last_damage: the same of each node that is left, as its power goes in the end.
        strangers: slaves of others that come to the master.
        older: what the master finds that was there before it.
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
    strangers: tuple[Stranger, ...] = ()
    older: OlderStore = OlderStore()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The master and its slaves."""
        return tuple(f"n{number}" for number in range(1 + self.slaves))

    @property
    def run_ms(self) -> int:
        """When the run is over."""
        return self.settled_ms + TAKE_OVER_MS

    @property
    def settled_ms(self) -> int:
        """When slaves have all that their master has."""
        return self.healed_ms + SETTLE_MS


def draw_setup(seed: int, role: str, run_ms: int, *, has_slaves: bool = True) -> Setup:
    """Draw what a seed is, with faults for `run_ms`."""
    draws = Draws(seed)
    draw = draws.stream("native_world/setup")
    file_bytes = draw.choice((4_096, 8_192, 16_384, 65_536))
    slaves = draw.choice((1, 1, 2)) if has_slaves else 0
    faults = draw_faults(draws.stream("native_world/faults"), slaves, run_ms)
    reserved_ms = draw.choice((2_000, 4_000, 8_000, KEPT_MS))
    damage = draws.stream("native_world/damage")
    # A queue whose messages have all expired begins at 0 when it is built anew, as RocketMQ's does.
    damages = _draw_damages(damage, slaves, run_ms) if reserved_ms == KEPT_MS else ()
    return Setup(
        seed=seed,
        role=role,
        slaves=slaves,
        is_sync_flush=draw.chance(0.5),
        file_bytes=file_bytes,
        transfer_bytes_max=draw.choice((50, 300, 2_000, 32_768)),
        tail_bytes_max=draw.choice((1, 1_000, 10_000, 1 << 20)),
        reserved_ms=reserved_ms,
        sync_flush_timeout_ms=draw.choice((200, 1_000, 5_000)),
        slave_timeout_ms=draw.choice((200, 1_000, 3_000)),
        body_bytes_max=min(file_bytes // 2, draw.choice((100, 1_000, 3_000))),
        sends_per_s=draw.choice((5, 15, 40)),
        healed_ms=run_ms,
        faults=faults,
        wiped=_draw_wiped(draws.stream("native_world/wiped"), slaves, run_ms),
        damages=damages,
        last_damage=_draw_damage(damage, "", run_ms) if damage.chance(0.6) else None,
        strangers=draw_strangers(draws.stream("native_world/strangers"), CALM_MS, run_ms),
        older=draw_older_store(draws.stream("native_world/older")),
    )


def draw_faults(draw: Stream, slaves: int, run_ms: int) -> tuple[AnyFault, ...]:
    """Draw the faults of a run, all over by `run_ms`."""
    kinds = draw.sample(("cut", "crash", "pause", "stall", "slow", "stop", "full"), 4)
    if slaves:
        kinds[:2] = ["cut", "away"]
    faults = [_draw_fault(draw, draw.choice(kinds), slaves, run_ms) for _ in range(10)]
    return tuple(sorted(faults, key=lambda fault: fault.start_ms))


def _draw_fault(draw: Stream, kind: str, slaves: int, run_ms: int) -> AnyFault:
    start_ms = draw.randrange(CALM_MS, max(CALM_MS + 1, run_ms - 500))
    longest = _LONGEST_MS.get(kind, _LONGEST_OF_OTHERS_MS)
    duration_ms = max(50, min(int(draw.uniform(0.03, 1.0) ** 2 * longest), run_ms - start_ms))
    node = f"n{draw.randint(0, slaves)}"
    if kind == "cut" and slaves:
        slave = f"n{draw.randint(1, slaves)}"
        ways = draw.choice((((MASTER, slave), (slave, MASTER)), ((MASTER, slave),)))
        return Cut(start_ms=start_ms, duration_ms=duration_ms, links=ways)
    if kind == "away":
        # What it is sent meanwhile waits in no connection: it must ask for it, if it is still kept.
        slave = f"n{draw.randint(1, slaves)}"
        return Crash(start_ms=start_ms, duration_ms=duration_ms, node=slave, loses_unsynced=False)
    if kind == "crash":
        return Crash(
            start_ms=start_ms,
            duration_ms=duration_ms,
            node=node,
            loses_unsynced=draw.chance(0.5) and node != MASTER,
        )
    if kind == "stall":
        return StallDisk(start_ms=start_ms, duration_ms=duration_ms, node=node)
    if kind == "slow":
        return SlowDisk(
            start_ms=start_ms, duration_ms=duration_ms, node=node, factor=draw.choice((5.0, 50.0))
        )
    if kind == "stop":
        return Stop(start_ms=start_ms, duration_ms=duration_ms, node=node)
    if kind == "full":
        return FullDisk(
            start_ms=start_ms,
            duration_ms=duration_ms,
            node=node,
            spare_bytes=draw.choice((0, 1_000, 20_000)),
        )
    return Pause(start_ms=start_ms, duration_ms=duration_ms, node=node)


def _draw_damages(draw: Stream, slaves: int, run_ms: int) -> tuple[FileDamage, ...]:
    found = [
        _draw_damage(draw, f"n{draw.randint(0, slaves)}", draw.randrange(CALM_MS, run_ms))
        for _ in range(draw.randint(0, 3))
    ]
    return tuple(sorted(found, key=lambda damage: damage.at_ms))


def _draw_damage(draw: Stream, node: str, at_ms: int) -> FileDamage:
    file = draw.choice(OF_A_BROKER)
    way = draw.choice(WAYS[file])
    return FileDamage(at_ms=at_ms, node=node, file=file, way=way, place=draw.random())


def _draw_wiped(draw: Stream, slaves: int, run_ms: int) -> tuple[tuple[int, str], ...]:
    """Draw which slaves lose their disks, and when."""
    if not slaves:
        return ()
    times = draw.choice((0, 1, 2))
    found = [(draw.randrange(CALM_MS, run_ms), f"n{draw.randint(1, slaves)}") for _ in range(times)]
    return tuple(sorted(found))

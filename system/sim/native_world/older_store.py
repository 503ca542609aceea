"""What a master finds that a broker of RocketMQ's kept before it: delayed messages.

How far they are delivered stands in config/delayOffset.json alone: RocketMQ's deliveries do not
say in the log where they come from, as ours do. Source: RocketMQ's ScheduleMessageService.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shaketable.system.broker.delay_levels import LEVELS_MAX, SCHEDULE_TOPIC, scheduled
from shaketable.system.native.config_files import DELAYS
from shaketable.system.remoting.fastjson import dumps
from shaketable.system.sim.draws import Stream
from shaketable.system.sim.trio_world.host_clock import WALL_MS_AT_START
from shaketable.system.store.message import Message, encode_message

if TYPE_CHECKING:
    from shaketable.system.sim.disk import SimDisk

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

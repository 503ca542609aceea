"""Delay levels, and the properties of delayed messages.

A message with the property DELAY is first stored in SCHEDULE_TOPIC_XXXX, in the queue of its
level, until the level's delay is over. REAL_TOPIC and REAL_QID name its destination. The delivered
message carries FROM_DELAY, "queue:offset" of the message in the schedule. From these entries alone
every member knows the delivery progress, so a message whose delivery is in the log is never
delivered again.
Source: RocketMQ's ScheduleMessageService, MessageExtBrokerInner and CommitLog.asyncPutMessage;
DLEDGER.md D.4. FROM_DELAY is ours: RocketMQ keeps delayOffset.json (E25).
"""

from __future__ import annotations

from typing import NamedTuple

from shaketable.system.remoting.command import CommandError
from shaketable.system.store.message import find_property

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
DELIVERY_GROUP = "CID_RMQ_SYS_DELAY_DELIVERY"
"""The group under which the delivery progress is kept among the group offsets."""
DELAY_MARK = "DELAY\x01"
"""Part of the properties of every message with DELAY or FROM_DELAY, and of few others."""
DELIVERED_MARK = b"FROM_DELAY\x01"
DELIVERY_ROOM_BYTES = 64
"""Bytes by which a message may grow when delivered, besides the name of its topic."""
LEVELS_MAX = 64
_DELAY, _FROM_DELAY = b"DELAY", b"FROM_DELAY"
_REAL_TOPIC, _REAL_QID = b"REAL_TOPIC", b"REAL_QID"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LEVEL_DIGITS_MAX = 9
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class Destination(NamedTuple):
    """The topic and queue of a delayed message when it is due."""

    topic: bytes
    queue_id: int


def parse_levels(text: str) -> tuple[int, ...]:
    """Parse RocketMQ's messageDelayLevel, "1s 5s 1m", to ms by level. Raises ValueError."""
    levels = []
    for part in text.split():
        number, unit = part[:-1], part[-1]
        is_number = number.isascii() and number.isdigit() and len(number) <= _LEVEL_DIGITS_MAX
        if not is_number or unit not in _SECONDS:
            raise ValueError(f"{part[:32]!r} is no time such as 30s, 5m, 2h or 1d")
        levels.append(int(number) * _SECONDS[unit] * 1000)
    if not 0 < len(levels) <= LEVELS_MAX:
        raise ValueError(f"{len(levels)} levels, 1..{LEVELS_MAX} are possible")
    return tuple(levels)


DEFAULT_LEVELS_MS = parse_levels(DEFAULT_LEVELS)


def delay_level(properties: bytes, levels: int) -> int:
    """Return the level, at most `levels`; 0 without a delay. Raises CommandError."""
    text = find_property(properties, _DELAY)
    if not text:
        return 0
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > _LEVEL_DIGITS_MAX:
        raise CommandError(f"DELAY is a level 1..{levels}, not {text[:32]!r}")
    return max(0, min(int(text), levels))


def scheduled_properties(properties: bytes, topic: bytes, queue_id: int, level: int) -> bytes:
    """Return the properties of a message in the schedule queue of its level (from 1)."""
    kept = without_properties(properties, (_DELAY, _FROM_DELAY, _REAL_TOPIC, _REAL_QID))
    return b"%bDELAY\x01%d\x02REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (
        kept,
        level,
        topic,
        queue_id,
    )


def destination(properties: bytes) -> Destination | None:
    """Return a delayed message's destination; None if its properties name none."""
    topic, queue = find_property(properties, _REAL_TOPIC), find_property(properties, _REAL_QID)
    if not topic or not queue.isdigit() or len(queue) > _LEVEL_DIGITS_MAX:
        return None
    return Destination(topic, int(queue))


def delivered_properties(properties: bytes, queue_id: int, offset: int) -> bytes:
    """Return the properties of a message delivered from a schedule queue's offset."""
    kept = without_properties(properties, (_DELAY, _FROM_DELAY))
    return b"%bFROM_DELAY\x01%d:%d\x02" % (kept, queue_id, offset)


def delivered_from(properties: bytes) -> tuple[int, int] | None:
    """Return the schedule queue and offset that a message was delivered from, None if neither."""
    queue, colon, offset = find_property(properties, _FROM_DELAY).partition(b":")
    if not colon or not queue.isdigit() or not offset.isdigit():
        return None
    return int(queue), int(offset)


def undelayed_properties(properties: bytes) -> bytes:
    """Return the properties without DELAY and FROM_DELAY."""
    return without_properties(properties, (_DELAY, _FROM_DELAY))


def without_properties(properties: bytes, names: tuple[bytes, ...]) -> bytes:
    """Return the properties without those named, each ended by its separator."""
    kept = [
        part
        for part in properties.split(b"\x02")
        if part and part.partition(b"\x01")[0] not in names
    ]
    return b"".join([part + b"\x02" for part in kept])

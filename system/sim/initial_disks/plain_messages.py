"""A plain commit log on a simulated disk, as RocketMQ leaves it before an upgrade to a group.

Every bootstrap member gets the same messages; the torn tail of a crash may differ between them.
Source: RocketMQ's CommitLog and MappedFile; DLEDGER.md B.1, D.5.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.store.message import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    Message,
    encode_message,
    encode_properties,
)
from shaketable.system.store.plain_log import BLANK, BLANK_BYTES, BLANK_MAGIC

if TYPE_CHECKING:
    from shaketable.system.sim.disk import SimDisk

SHAPES = ("one_file", "two_files", "torn", "torn_first", "full", "expired_front", "empty")
"""Shapes of the log: `torn` ends within a message, `torn_first` within the first message of its
file; `full` ends with a blank, and an empty file follows; the first files of `expired_front` are
gone; `empty` has files but no message."""
PLAIN_TOPIC = b"native"
LONG_TOPIC = b"native-with-a-name-of-two-length-bytes-" + b"x" * 100
_FIRST_OFFSET_KEPT = 7
_TORN_BODY_BYTES = 60
"""The body of a torn message. A tear in the properties would go undetected: BODYCRC covers only
the body."""
_NOTHING = 0.3
"""Below that value a crash left nothing of the torn message."""
_PREPARED = 4
_BORN_MS = 1_600_000_000_000

Queues = dict[tuple[bytes, int], list[bytes]]
"""Each queue's stored messages by offset; empty bytes where they have expired."""


class PlainMessages:
    """The messages of one run, and the files that hold them.

    `queues` is what must be readable after the upgrade, `end` where DLedger's entries start.
    """

    def __init__(self, rngs: RandomStreams, shape: str, file_bytes: int, topic: bytes) -> None:
        self._rng = rngs.stream("native_log")
        self._file_bytes = file_bytes
        self._topic = topic
        self.queues: Queues = {}
        self._files: dict[int, bytearray] = {}
        self._torn_at = -1
        self.end = 0
        if shape:
            self._fill(shape)

    def write(self, disk: SimDisk, folder: str, tear: float) -> None:
        """Write the files durably to a disk; keep that share `tear` of a torn message's body."""
        disk.make_dirs(folder)
        for start, data in self._files.items():
            file = disk.create(f"{folder}/{start:020}", self._file_bytes)
            kept = bytes(data)
            if start <= self._torn_at < start + self._file_bytes:
                torn_at = self._torn_at - start
                kept = kept[: torn_at + _torn_bytes(tear)]
            if kept:
                file.pwrite([kept], 0)
            file.sync()
            file.close()
        disk.sync_dir(folder)

    def _fill(self, shape: str) -> None:
        start = 0
        if shape == "expired_front":
            start = 2 * self._file_bytes
            self.queues[self._topic, 0] = [b""] * _FIRST_OFFSET_KEPT
        if shape == "empty":
            self._files[start] = bytearray()
            return
        self._fill_file(start, to_the_end=shape in ("two_files", "torn_first", "full"))
        if not any(self.queues.get((self._topic, 0), (b"kept",))):
            # Only consume queues knew its end, and an upgrade does not read them: it restarts at 0.
            del self.queues[self._topic, 0]
        self.end = start + self._file_bytes
        if shape == "full":
            self._files[self.end] = bytearray()
        elif shape == "two_files":
            self._fill_file(self.end, to_the_end=False)
            self.end += self._file_bytes
        elif shape == "torn_first":
            self._files[self.end] = bytearray()
            self._tear(self.end)
        elif shape == "torn":
            self._tear(start)

    def _fill_file(self, start: int, *, to_the_end: bool) -> None:
        data = self._files[start] = bytearray()
        wanted = self._rng.randint(3, 40)
        while to_the_end or wanted:
            message, is_queued = self._message(start + len(data))
            encoded = encode_message(message)
            left = self._file_bytes - len(data)
            if len(encoded) + BLANK_BYTES > left:
                data += BLANK.pack(left, BLANK_MAGIC)
                return
            data += encoded
            if is_queued:
                self.queues.setdefault((message.topic, message.queue_id), []).append(encoded)
            wanted -= 1

    def _tear(self, start: int) -> None:
        """Append to the file at `start` a message that a crash tore."""
        data = self._files[start]
        self._torn_at = start + len(data)
        queue_offset = len(self.queues.get((self._topic, 0), ()))
        body = self._rng.randbytes(_TORN_BODY_BYTES)
        torn = encode_message(
            Message(self._topic, 0, queue_offset, self._torn_at, body, b"TAGS\x01torn\x02")
        )
        if len(data) + len(torn) + BLANK_BYTES <= self._file_bytes:
            data += torn
        else:
            self._torn_at = -1

    def _message(self, position: int) -> tuple[Message, bool]:
        """Return the next message, and whether it is in a queue."""
        rng = self._rng
        roll = rng.random()
        topic = self._topic if roll < 0.8 else LONG_TOPIC if roll < 0.9 else PLAIN_TOPIC
        queue_id = rng.randrange(2)
        is_half = rng.chance(0.05)
        sys_flag = _PREPARED if is_half else 0
        born_host = store_host = bytes(8)
        if rng.chance(0.1):
            sys_flag |= BORN_HOST_V6
            born_host = rng.randbytes(16) + bytes(4)
        if rng.chance(0.1):
            sys_flag |= STORE_HOST_V6
            store_host = rng.randbytes(16) + bytes(4)
        properties = {"TAGS": "old", "KEYS": "before"} if rng.chance(0.3) else {}
        message = Message(
            topic,
            queue_id,
            0 if is_half else len(self.queues.get((topic, queue_id), ())),
            position,
            rng.randbytes(rng.choice((10, 100, 700))),
            encode_properties(properties),
            sys_flag=sys_flag,
            born_ms=_BORN_MS,
            born_host=born_host,
            store_ms=_BORN_MS + zlib.crc32(position.to_bytes(8, "big")) % 1000,
            store_host=store_host,
        )
        return message, not is_half


def _torn_bytes(tear: float) -> int:
    """Return how many bytes of a torn message are on a member's disk."""
    return 0 if tear < _NOTHING else 1 + int(tear * _TORN_BODY_BYTES)

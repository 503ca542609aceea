"""Logs that members of an Apache RocketMQ group leave, for `import_log` to copy.

Entries have no CRCs, and no entry is written at a term's start. Every member has what a majority
had; some lag behind, or diverged in an older term. After a log's end there may be removed entries:
DLedger moves its end back and writes no zeros. Source: DLedgerMmapFileStore.truncate and
appendAsLeader of DLedger 0.3.1.2; DLEDGER.md B.3.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.store.entry import BLANK, BLANK_BYTES, BLANK_MAGIC, ENTRY_MAGIC
from shaketable.system.store.foreign_log import ForeignLog
from shaketable.system.store.message import Message, encode_message, encode_properties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shaketable.system.sim.disk import SimDisk
    from shaketable.system.sim.initial_disks.plain_messages import Queues
    from shaketable.system.store.commit_log import CommitLog

SHAPES = ("even", "behind", "parted", "left_over")
"""Members' logs: all equal; fewer than half of them `behind` the others, or `parted` (diverged)
from them; `left_over`: removed entries follow the end."""
FOLDER = "/old/dledger-"
OLDER_TOPIC = b"older"
PARTED_TOPIC = b"parted"
_HEADER = struct.Struct(">iiqqqiiii")
_TERM_ENDS = 0.15
_STORED_MS = 1_600_000_000_000
_COUNT_MIN, _COUNT_MAX = 4, 60
_PARTS_MAX = 5


class _Files:
    """One member's data files, as DLedger fills them. `ends` are its queues' next offsets."""

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.data = bytearray()
        self.count = 0
        self.term = 0
        self.ends: dict[tuple[bytes, int], int] = {}
        self.left_over = b""
        """The bytes after the end."""

    def copy(self) -> _Files:
        other = _Files(self.file_bytes)
        other.data, other.ends = self.data[:], dict(self.ends)
        other.count, other.term = self.count, self.term
        return other

    def append(self, term: int, queue: tuple[bytes, int], body: bytes, properties: bytes) -> bytes:
        """Append a message; return it as stored."""
        offset = self.ends.get(queue, 0)
        size = len(self._message(queue, offset, 0, body, properties)) + _HEADER.size
        left = self.file_bytes - len(self.data) % self.file_bytes
        if left < size + BLANK_BYTES:
            self.data += BLANK.pack(BLANK_MAGIC, left) + bytes(left - BLANK_BYTES)
        position = len(self.data)
        message = self._message(queue, offset, position + _HEADER.size, body, properties)
        self.data += _HEADER.pack(
            ENTRY_MAGIC, size, self.count, term, position, 0, 0, 0, len(message)
        )
        self.data += message
        self.count, self.term = self.count + 1, term
        self.ends[queue] = offset + 1
        return message

    def _message(
        self, queue: tuple[bytes, int], offset: int, position: int, body: bytes, properties: bytes
    ) -> bytes:
        stored_ms = _STORED_MS + self.count
        return encode_message(
            Message(
                *queue, offset, position, body, properties, born_ms=stored_ms, store_ms=stored_ms
            )
        )


class ApacheLogs:
    """The logs of one run's members.

    `queues` is what a majority had, and what must be there afterwards; `committed_index` is the
    last entry of it.
    """

    def __init__(
        self, rngs: RandomStreams, shape: str, members: Sequence[str], file_bytes: int, topic: bytes
    ) -> None:
        self._rng = rngs.stream("apache_log")
        self._topic = topic
        self.queues: Queues = {}
        self.committed_index = -1
        self._term = 1
        self._files: dict[str, _Files] = {}
        self._known: dict[str, int] = {}
        """The committed index in each member's checkpoint."""
        if shape:
            self._fill(shape, members, file_bytes)

    def import_into(self, log: CommitLog, disk: SimDisk, member: str) -> None:
        """Write a member's old files, and copy them into its new log. Raises StoreError."""
        self._write(disk, member)
        ForeignLog(disk, FOLDER + member).copy_into(log)

    def _fill(self, shape: str, members: Sequence[str], file_bytes: int) -> None:
        rng, files = self._rng, _Files(file_bytes)
        count = rng.randint(_COUNT_MIN, _COUNT_MAX)
        turn = rng.randint(2, count - 1) if shape == "parted" else count - 1
        prefixes: list[_Files] = []
        for number in range(count):
            prefixes.append(files.copy())
            self._term += number == turn or rng.chance(_TERM_ENDS)
            self._append(files)
        self.committed_index = files.count - 1
        few = rng.sample(list(members), (len(members) - 1) // 2)
        for member in members:
            own = files
            if shape == "parted" and few[:1] == [member]:
                own = self._parted(prefixes[turn])
            elif shape in ("behind", "parted") and member in few:
                own = rng.choice(prefixes[1:])
            elif shape == "left_over" and rng.chance(0.6):
                own = self._with_left_over(files)
            self._files[member] = own
            shared = min(own.count - own.ends.get((PARTED_TOPIC, 0), 0), files.count) - 1
            self._known[member] = rng.choice((-1, shared, rng.randint(-1, shared)))

    def _append(self, files: _Files) -> None:
        rng = self._rng
        queue = (self._topic if rng.chance(0.8) else OLDER_TOPIC, rng.randrange(2))
        properties = {"TAGS": "old", "KEYS": "before"} if rng.chance(0.3) else {}
        body = rng.randbytes(rng.choice((10, 100, 700)))
        stored = files.append(self._term, queue, body, encode_properties(properties))
        self.queues.setdefault(queue, []).append(stored)

    def _parted(self, front: _Files) -> _Files:
        """Return a log that diverged in the term that ended there, with entries of its own."""
        own = front.copy()
        for _ in range(self._rng.randint(1, _PARTS_MAX)):
            own.append(own.term, (PARTED_TOPIC, 0), self._rng.randbytes(50), b"")
        return own

    def _with_left_over(self, files: _Files) -> _Files:
        """Return the log followed by an older leader's entries, whole or in part."""
        rng, own, before = self._rng, files.copy(), files.copy()
        before.count += rng.choice((0, 0, 1))  # the same bytes were one entry more then
        for _ in range(rng.randint(1, _PARTS_MAX)):
            before.append(self._term - 1, (PARTED_TOPIC, 0), rng.randbytes(50), b"")
        first = rng.choice((0, 0, 20))
        room = -len(own.data) % own.file_bytes
        own.left_over = bytes(before.data[len(own.data) :])[:room][first:]
        return own

    def _write(self, disk: SimDisk, member: str) -> None:
        files, folder = self._files[member], FOLDER + member
        disk.make_dirs(f"{folder}/data")
        data = bytes(files.data) + files.left_over
        for start in range(0, len(data), files.file_bytes):
            self._put(
                disk, f"{folder}/data/{start:020}", data[start : start + files.file_bytes],
                files.file_bytes,
            )  # fmt: skip
        leader = min(self._files)
        texts = {
            "currterm": f"#\nvoteLeader={leader}\ncurrTerm={self._term}\n",
            "checkpoint": f"#\nendIndex={files.count - 1}\ncommittedIndex={self._known[member]}\n",
        }
        for name, text in texts.items():
            self._put(disk, f"{folder}/{name}", text.encode(), len(text))
        disk.sync_dir(folder)
        disk.sync_dir(f"{folder}/data")

    @staticmethod
    def _put(disk: SimDisk, path: str, data: bytes, size: int) -> None:
        file = disk.create(path, size)
        file.pwrite([data], 0)
        file.sync()
        file.close()

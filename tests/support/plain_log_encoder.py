"""Writes RocketMQ's plain commit log for tests; shares no code with what reads it.

Source: RocketMQ's CommitLog (doAppend: messages one behind the other, a blank of i32 remaining
bytes and i32 0xCBD43194 where the next one does not fit), DLEDGER.md B.1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.dledger_encoder import message

BLANK_MAGIC = b"\xcb\xd4\x31\x94"
BLANK_BYTES = 8


@dataclass
class PlainLogWriter:
    """Encodes messages into files of `file_bytes`; `written` has (offset, body) by queue.

    `begin` is the position of the first file: files in front of it have expired, and `offsets`
    says where their queues went on.
    """

    file_bytes: int
    begin: int = 0
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    files: list[bytearray] = field(default_factory=list)
    written: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)

    def append(self, topic: str, queue_id: int, body: bytes, properties: bytes = b"") -> None:
        queue = (topic, queue_id)
        offset = self.offsets.get(queue, 0)
        size = len(message(topic, queue_id, offset, body, 0, properties))
        if not self.files or len(self.files[-1]) + size + BLANK_BYTES > self.file_bytes:
            self._begin_file()
        start = self.begin + (len(self.files) - 1) * self.file_bytes
        position = start + len(self.files[-1])
        self.files[-1] += message(topic, queue_id, offset, body, position, properties)
        self.offsets[queue] = offset + 1
        self.written.setdefault(queue, {})[offset] = body

    @property
    def end(self) -> int:
        """Where the last file ends: RocketMQ's dividedCommitlogOffset."""
        return self.begin + len(self.files) * self.file_bytes

    def write(self, folder: Path) -> None:
        """Write the files; the last one is allotted whole, with zeros behind its messages."""
        folder.mkdir(parents=True)
        for number, content in enumerate(self.files):
            name = f"{self.begin + number * self.file_bytes:020d}"
            (folder / name).write_bytes(bytes(content).ljust(self.file_bytes, b"\0"))

    def _begin_file(self) -> None:
        if self.files:
            left = self.file_bytes - len(self.files[-1])
            self.files[-1] += struct.pack(">i", left) + BLANK_MAGIC + bytes(left - BLANK_BYTES)
        self.files.append(bytearray())

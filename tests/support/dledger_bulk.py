"""Writes large DLedger logs fast, for benchmarks: every entry has the same size.

The layout is encoded here once more; only the compiled CRC is the reader's (which
tests/targets holds against zlib's).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np

from shaketable.harness.targets.logs.dledger_kernels import crc32

TOPIC = b"bench"
HEADER_BYTES, MESSAGE_BYTES = 48, 91
DIGITS = 10
CHUNK = 65_536


@dataclass(frozen=True)
class Bulk:
    """A log of `entries` messages of `body_bytes`, dealt to `queues` in turn.

    Entry i goes to queue i % queues, at offset i // queues, and carries the value i.
    """

    entries: int
    queues: int = 1
    body_bytes: int = 200
    file_bytes: int = 1 << 30
    term_every: int = 1_000_000

    @property
    def entry_bytes(self) -> int:
        return HEADER_BYTES + MESSAGE_BYTES + len(TOPIC) + self.body_bytes

    @property
    def log_bytes(self) -> int:
        return self.entries * self.entry_bytes

    def write(self, directory: Path, node: str, instead: Mapping[int, int] | None = None) -> None:
        """Write the node's files; `instead` has entries that carry another value."""
        data = directory / "store" / f"dledger-{node}" / "data"
        data.mkdir(parents=True)
        a_file = (self.file_bytes - 8) // self.entry_bytes
        chain = 0
        for number, first in enumerate(range(0, self.entries, a_file)):
            start = number * self.file_bytes
            behind = min(first + a_file, self.entries)
            with (data / f"{start:020d}").open("wb") as file:
                for low in range(first, behind, CHUNK):
                    high = min(low + CHUNK, behind)
                    position = start + (low - first) * self.entry_bytes
                    block = self._block(low, high, position, instead or {})
                    chain = _seal(block, chain, self.body_bytes, len(TOPIC))
                    file.write(block.data)
                if behind < self.entries:
                    left = self.file_bytes - (behind - first) * self.entry_bytes
                    file.write(struct.pack(">ii", -1, left))
                file.truncate(self.file_bytes)

    def _block(self, low: int, high: int, position: int, instead: Mapping[int, int]) -> np.ndarray:
        index = np.arange(low, high)
        block = np.tile(np.frombuffer(self._template(), np.uint8), (len(index), 1))
        pos = position + (index - low) * self.entry_bytes
        value = index.copy()
        for at, other in instead.items():
            if low <= at < high:
                value[at - low] = other

        def put(at: int, numbers: np.ndarray, kind: str = ">i8") -> None:
            raw = numbers.astype(kind).view(np.uint8).reshape(len(index), -1)
            block[:, at : at + raw.shape[1]] = raw

        put(8, index)
        put(16, 1 + index // self.term_every)
        put(24, pos)
        body = HEADER_BYTES
        put(body + 12, index % self.queues, ">i4")
        put(body + 20, index // self.queues)
        put(body + 28, pos + HEADER_BYTES)
        for digit in range(DIGITS):
            put(body + 88 + digit, 48 + value // 10 ** (DIGITS - 1 - digit) % 10, ">u1")
        return block

    def _template(self) -> bytes:
        total = self.entry_bytes - HEADER_BYTES
        head = struct.pack(">iiqqqiiii", 1, self.entry_bytes, 0, 0, 0, 0, 0, 0, total)
        body = struct.pack(">iiiiiqqi", total, -626843481, 0, 0, 0, 0, 0, 0)
        body += struct.pack(">q8sq8siqi", 1, b"\0" * 8, 2, b"\0" * 8, 0, 0, self.body_bytes)
        body += b"0" * DIGITS + b" " + b"x" * (self.body_bytes - DIGITS - 1)
        return head + body + bytes((len(TOPIC),)) + TOPIC + b"\0\0"


@numba.njit(nogil=True)
def _put(row, at, crc):
    for n in range(4):
        row[at + n] = (crc >> (24 - 8 * n)) & 255


@numba.njit(nogil=True)
def _seal(block, chain, body_bytes, topic_bytes):
    """Compute the CRCs of the entries, payload first, chain last; return the last chainCrc."""
    link = np.zeros(4, np.uint8)
    for n in range(len(block)):
        row = block[n]
        _put(row, 48 + 8, crc32(row, 136, 136 + body_bytes, 0) & 0x7FFFFFFF)
        _put(row, 40, crc32(row, 48, len(row), 0))
        _put(link, 0, chain)
        chain = crc32(row, 40, 48, crc32(row, 0, 36, crc32(link, 0, 4, 0)))
        _put(row, 36, chain)
    return chain

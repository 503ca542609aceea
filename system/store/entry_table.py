"""Vectorized verification and iteration of whole batches, with numpy arrays.

The same as `system.store.entry` does entry by entry, which is most of a follower's work under
load (docs/throughput.md). Batches that these arrays cannot represent, damaged ones above all, are
left to that module, which can report what is wrong.
"""

from __future__ import annotations

from itertools import pairwise, repeat
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from shaketable.system.raft.batch import ENTRY_HEADER_BYTES, Batch
from shaketable.system.store.entry import CHAINED_BYTES, ENTRY_MAGIC
from shaketable.system.store.group_events import MESSAGE_CHANNEL
from shaketable.system.store.message import BORN_HOST_V6, MAGIC_V1, STORE_HOST_V6, tags_in

CHECKED_MIN = 32
WALKED_MIN = 64
"""With fewer entries the arrays cost more than they save."""

_I64_MAX = 2**63 - 1
_SIZE_AT_4 = Struct(">4xi").unpack_from
_HEADER = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("position", ">i8"),
        ("channel", ">i4"),
        ("chain_crc", ">u4"),
        ("body_crc", ">u4"),
        ("body_size", ">i4"),
    ]
)
_HEADERS = Struct(f"{ENTRY_HEADER_BYTES}s").iter_unpack
_CHAIN_CRC = slice(CHAINED_BYTES, CHAINED_BYTES + 4)
_AFTER_CHAIN_CRC = slice(CHAINED_BYTES + 4, ENTRY_HEADER_BYTES)

_HEAD_BYTES = 88
"""A message up to its BODYLEN, with IPv4 hosts."""
_HEAD = np.dtype(
    {
        "names": ["size", "magic", "queue_id", "offset", "sys_flag", "store_ms", "body_bytes"],
        "formats": [">i4", ">i4", ">i4", ">i8", ">i4", ">i8", ">i4"],
        "offsets": [0, 4, 12, 20, 36, 56, 84],
        "itemsize": _HEAD_BYTES,
    }
)
_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6
_UNIT = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8")])


def is_valid_batch(batch: Batch) -> bool:
    """True only if the batch passes `verify_batch(batch, None)`.

    False proves nothing: the batch may be too small, or contain a membership entry.
    """
    data, count = batch.data, batch.count
    if max(batch.last_index, batch.end_position) > _I64_MAX:  # numbers would wrap
        return False
    starts = _starts(data, count) if count >= CHECKED_MIN else None
    if starts is None:
        return False
    at = np.array(starts)
    rows = sliding_window_view(np.frombuffer(data, np.uint8), ENTRY_HEADER_BYTES)[at]
    table = rows.view(_HEADER).reshape(-1)
    if (
        (table["magic"] != ENTRY_MAGIC).any()
        or (table["size"] != table["body_size"] + ENTRY_HEADER_BYTES).any()
        or (table["position"] != at + batch.position).any()
        or (table["channel"] != MESSAGE_CHANNEL).any()
        or (table["index"] != np.arange(batch.first_index, batch.last_index + 1)).any()
        or (table["term"] != batch.term).any()
    ):
        return False
    view = memoryview(data)
    starts.append(len(data))
    bodies = [crc32(view[start + ENTRY_HEADER_BYTES : stop]) for start, stop in pairwise(starts)]
    return bodies == table["body_crc"].tolist() and _is_chained(rows, table["chain_crc"].tolist())


def _is_chained(rows: NDArray[np.uint8], chain_crcs: list[int]) -> bool:
    """Whether each chainCrc but the first matches the previous one and its own header."""
    covered = np.empty_like(rows[1:])
    covered[:, :4] = rows[:-1, _CHAIN_CRC]
    covered[:, 4 : 4 + CHAINED_BYTES] = rows[1:, :CHAINED_BYTES]
    covered[:, 4 + CHAINED_BYTES :] = rows[1:, _AFTER_CHAIN_CRC]
    return [crc32(row) for (row,) in _HEADERS(covered.tobytes())] == chain_crcs[1:]


class QueueRun(NamedTuple):
    """Messages of one queue with consecutive offsets, and their encoded units."""

    queue: tuple[bytes, int]
    first_offset: int
    message_count: int
    units: memoryview


class MessageTable:
    """The messages of verified entries in columns, for consume queues and the key index.

    Attributes:
        topic: the topic of all messages.
        properties: each message's properties, in log order.
        positions: each message's start position in the log.
        store_ms: when each message was stored.
    """

    def __init__(self, columns: _Columns, topic: bytes, properties: list[bytes]) -> None:
        self.topic = topic
        self.properties = properties
        self.positions = columns.positions
        self.store_ms = columns.heads["store_ms"]
        self._heads = columns.heads

    def key_items(self, needle: bytes) -> list[tuple[bytes, bytes, int, int]]:
        """Return (topic, properties, position, store ms) where the properties hold `needle`."""
        rows = zip(
            repeat(self.topic),
            self.properties,
            self.positions.tolist(),
            self.store_ms.tolist(),
            strict=False,
        )
        return [row for row in rows if needle in row[1]]

    def runs(self) -> list[QueueRun] | None:
        """Return the messages by queue, each queue's in log order.

        None if a queue's offsets are not consecutive.
        """
        heads = self._heads
        units = np.empty(len(heads), _UNIT)
        units["position"], units["size"] = self.positions, heads["size"]
        units["tags"] = [tags_in(properties) for properties in self.properties]
        order = np.argsort(heads["queue_id"], kind="stable")
        queue_ids = heads["queue_id"][order].astype(np.int64)
        offsets = heads["offset"][order].astype(np.int64)
        is_other = np.diff(queue_ids) != 0
        if (np.diff(offsets)[~is_other] != 1).any():
            return None
        bounds = [0, *(np.flatnonzero(is_other) + 1).tolist(), len(heads)]
        encoded = memoryview(units[order].tobytes())
        found = []
        for start, stop in pairwise(bounds):
            run = encoded[start * _UNIT.itemsize : stop * _UNIT.itemsize]
            queue = (self.topic, int(queue_ids[start]))
            found.append(QueueRun(queue, int(offsets[start]), stop - start, run))
        return found


class _Columns(NamedTuple):
    """Messages' fixed fields, and their start positions in the log."""

    heads: NDArray[np.void]
    positions: NDArray[np.int64]


def message_table(data: bytes, position: int, count: int) -> MessageTable | None:
    """Return the messages of `count` verified entries in columns, if they are of one topic.

    None if they are not, if they are too few, or if the columns cannot represent them.
    """
    starts = _starts(data, count) if count >= WALKED_MIN else None
    if starts is None:
        return None
    raw = np.frombuffer(data, np.uint8)
    at = np.array(starts) + ENTRY_HEADER_BYTES
    heads = sliding_window_view(raw, _HEAD_BYTES)[at].view(_HEAD).reshape(-1)
    if (heads["magic"] != MAGIC_V1).any() or (heads["sys_flag"] & _HOSTS_V6).any():
        return None
    topic_at = at + (_HEAD_BYTES + 1) + heads["body_bytes"]
    lengths = raw[topic_at - 1]
    topic_bytes = int(lengths[0])
    if (lengths != topic_bytes).any():
        return None
    topics = sliding_window_view(raw, topic_bytes)[topic_at]
    if (topics != topics[0]).any():
        return None
    property_starts = (topic_at + (topic_bytes + 2)).tolist()
    properties = [
        data[start:end]
        for start, end in zip(property_starts, (at + heads["size"]).tolist(), strict=True)
    ]
    return MessageTable(_Columns(heads, at + position), topics[0].tobytes(), properties)


def _starts(data: bytes, count: int) -> list[int] | None:
    """Return the entries' start offsets, None if their sizes do not add up to the data."""
    starts: list[int] = []
    at, last = 0, len(data) - ENTRY_HEADER_BYTES
    while at <= last:
        starts.append(at)
        (size,) = _SIZE_AT_4(data, at)
        if size < ENTRY_HEADER_BYTES:
            return None
        at += size
    return starts if at == len(data) and len(starts) == count else None

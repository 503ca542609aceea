"""The messages that the key index does not have yet, and queries over both.

Source: RocketMQ's CommitLogDispatcherBuildIndex and DefaultMessageStore.queryMessage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from shaketable.system.raft.log_view import LogView
from shaketable.system.store.entry import ENTRY_BYTES_MAX
from shaketable.system.store.keys.key_hashes import KeyItem
from shaketable.system.store.message import HEAD, DamagedMessage, Message, decode_message, keys_in
from shaketable.system.store.segment_files import OutsideLog


class KeyReader(Protocol):
    """Finds messages that a checkpoint wrote to the index (`system.store.keys.key_index`)."""

    def candidates(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield positions, newest first, of all that have the key, and perhaps of others."""


class KeyItems:
    """Messages dispatched since the last checkpoint, in the log's order, to be found by key."""

    def __init__(self, reader: KeyReader | None = None) -> None:
        self._reader = reader
        self._items: list[KeyItem] = []
        self.append: Callable[[KeyItem], None] = self._items.append
        """Dispatch one committed message that has properties."""
        self.extend: Callable[[Sequence[KeyItem]], None] = self._items.extend
        """Dispatch several."""

    def since_checkpoint(self) -> list[KeyItem]:
        """Return what no checkpoint has saved yet."""
        return self._items.copy()

    def checkpointed(self, items: Sequence[KeyItem]) -> None:
        """Take note that the index has these items, as `since_checkpoint` returned them."""
        del self._items[: len(items)]

    def candidates(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield positions of committed messages that may have the key, newest first.

        All that have it and were stored from `begin_ms` to `end_ms` are among them; whoever reads
        the messages leaves out the others. Raises DiskFailed.
        """
        first_position = self._items[0][2] if self._items else None
        for item_topic, properties, position, store_ms in reversed(self._items):
            is_in_time = begin_ms <= store_ms <= end_ms
            may_have = is_in_time and item_topic == topic and key in properties
            if may_have and key in keys_in(properties):
                yield position
        if self._reader is not None:
            for position in self._reader.candidates(topic, key, begin_ms, end_ms):
                if first_position is None or position < first_position:
                    yield position


# Finds a stored message by the byte position that a client or an index names.
#
# Source: RocketMQ's DefaultMessageStore.lookMessageByOffset, which trusts the position.

SIZE_BYTES = 4
MESSAGE_BYTES_MIN = HEAD.size + 3
"""No body, no topic, no properties: the lengths of the last two take three bytes."""


def message_at(log: LogView, position: int, end_position: int) -> tuple[Message, bytes] | None:
    """Return the message that stands at a position, decoded and as it is stored.

    None where no message stands there, or none any more, or only behind `end_position`: the
    position may be anything. Raises StoreError where the disk fails.
    """
    size_at_most = min(ENTRY_BYTES_MAX, end_position - position)
    if position < 0 or size_at_most < MESSAGE_BYTES_MIN:
        return None
    try:
        size = int.from_bytes(log.read_some(position, SIZE_BYTES), "big")
        if not MESSAGE_BYTES_MIN <= size <= size_at_most:
            return None
        data = log.read_some(position, size)
        message = decode_message(data)
    except (OutsideLog, DamagedMessage):
        return None
    return (message, data) if message.physical_offset == position else None

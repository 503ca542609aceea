"""Messages that are not in the key index yet, and lookups over both.

Source: RocketMQ's CommitLogDispatcherBuildIndex and DefaultMessageStore.queryMessage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from shaketable.system.raft.ledger import LogView
from shaketable.system.store.entry import ENTRY_BYTES_MAX
from shaketable.system.store.key_index import KeyItem
from shaketable.system.store.message import HEAD, DamagedMessage, Message, decode_message, keys_in
from shaketable.system.store.segment_files import OutsideLog


class KeyReader(Protocol):
    """Looks up messages in the index that checkpoints wrote (`system.store.key_index`)."""

    def candidates(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield positions, newest first, of all messages with the key, and perhaps of others."""


class KeyItems:
    """Messages with keys that were dispatched since the last checkpoint, in log order."""

    def __init__(self, reader: KeyReader | None = None) -> None:
        self._reader = reader
        self._items: list[KeyItem] = []
        self.append: Callable[[KeyItem], None] = self._items.append
        """Add one committed message."""
        self.extend: Callable[[Sequence[KeyItem]], None] = self._items.extend
        """Add several."""

    def since_checkpoint(self) -> list[KeyItem]:
        """Return the items that no checkpoint has saved."""
        return self._items.copy()

    def checkpointed(self, items: Sequence[KeyItem]) -> None:
        """Note that the index has these items, as `since_checkpoint` returned them."""
        del self._items[: len(items)]

    def candidates(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield positions of committed messages that may have the key, newest first.

        They include all messages with the key that were stored from `begin_ms` to `end_ms`; the
        caller reads the messages and drops the others. Raises DiskFailed.
        """
        first_position = self._items[0][2] if self._items else None
        for item_topic, properties, position, store_ms in reversed(self._items):
            is_in_time = begin_ms <= store_ms <= end_ms
            may_have = is_in_time and item_topic == topic and key in properties
            if may_have and key in keys_in(properties):
                yield position
        if self._reader is not None:
            # The index may already have these items, from a checkpoint that is not confirmed yet.
            for position in self._reader.candidates(topic, key, begin_ms, end_ms):
                if first_position is None or position < first_position:
                    yield position


# Finds a stored message by a byte position from a client or an index.
#
# Source: RocketMQ's DefaultMessageStore.lookMessageByOffset, which trusts the position.

SIZE_BYTES = 4
MESSAGE_BYTES_MIN = HEAD.size + 3
"""A message without body, topic and properties: the lengths of the last two take three bytes."""


def message_at(log: LogView, position: int, end_position: int) -> tuple[Message, bytes] | None:
    """Return the message at a position, decoded and as stored.

    The position may be any number: None if no message starts there, if it has expired, or if it
    does not end by `end_position`. Raises StoreError if the disk fails.
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

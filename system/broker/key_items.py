"""The messages that the key index does not have yet, and queries over both.

Source: RocketMQ's CommitLogDispatcherBuildIndex and DefaultMessageStore.queryMessage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from shaketable.system.store.key_hashes import KeyItem
from shaketable.system.store.message_properties import keys_in


class KeyReader(Protocol):
    """Finds messages that a checkpoint wrote to the index (`system.store.key_index`)."""

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

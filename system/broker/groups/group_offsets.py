"""Committed offsets of consumer groups: replicated, so an acknowledged commit is never lost.

The table is built from committed entries only and is the same on every member.
Source: RocketMQ's ConsumerOffsetManager, where offsets are not replicated (E24).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shaketable.system.broker.broker_state import DamagedBrokerState

KEYS_MAX = 20_000
"""Limit of "topic@group" keys: the whole table must fit in one snapshot message."""
OFFSETS_MAX = 200_000

OffsetEvent = list[tuple[str, list[tuple[int, int]]]]
"""The body of an entry: by "topic@group", pairs of queue id and offset."""


class OffsetTable:
    """Committed offsets by "topic@group" and queue id."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[int, int]] = {}
        self.count = 0

    def __len__(self) -> int:
        """Return the number of "topic@group" keys."""
        return len(self._offsets)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's committed offset, None if it has none."""
        return self._offsets.get(offset_key(group, topic), {}).get(queue_id)

    def has_key(self, key: str) -> bool:
        """Whether this "topic@group" has any offset."""
        return key in self._offsets

    def has(self, key: str, queue_id: int) -> bool:
        """Whether this "topic@group" has an offset for the queue."""
        return queue_id in self._offsets.get(key, ())

    def apply(self, body: bytes) -> None:
        """Apply a committed entry. Raises DamagedBrokerState."""
        try:
            event = msgspec.json.decode(body, type=OffsetEvent)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise DamagedBrokerState(f"an entry about offsets cannot be read: {error}") from None
        for key, updates in event:
            offsets = self._offsets.setdefault(key, {})
            before = len(offsets)
            offsets.update(updates)
            self.count += len(offsets) - before

    def advance(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Raise an offset, never lower it; for progress implied by other kinds of entries."""
        offsets = self._offsets.setdefault(offset_key(group, topic), {})
        self.count += queue_id not in offsets
        offsets[queue_id] = max(offset, offsets.get(queue_id, 0))

    def set_back(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an existing offset back to `offset`; for tables that are not replicated."""
        self._offsets[offset_key(group, topic)][queue_id] = offset

    def forget_topic(self, topic: str) -> None:
        """Remove all offsets of a deleted topic."""
        prefix = f"{topic}@"
        for key in [key for key in self._offsets if key.startswith(prefix)]:
            self.count -= len(self._offsets.pop(key))

    def groups(self) -> set[str]:
        """Return the names of all groups that have committed offsets."""
        return {key.partition("@")[2] for key in self._offsets}

    def state(self) -> dict[str, dict[int, int]]:
        """Return the table, for a checkpoint or a snapshot."""
        return {key: dict(offsets) for key, offsets in self._offsets.items()}

    def restore(self, state: Mapping[str, Mapping[int, int]]) -> None:
        """Load such a state."""
        self._offsets = {key: dict(offsets) for key, offsets in state.items()}
        self.count = sum(map(len, self._offsets.values()))


def offset_key(group: str, topic: str) -> str:
    """Return "topic@group", as RocketMQ's consumerOffset.json has it."""
    return f"{topic}@{group}"

"""Offsets that consumer groups commit: replicated, so that an acknowledged one never goes back.

The table is made of committed entries alone and is the same on every member.
Source: RocketMQ's ConsumerOffsetManager, where offsets are not replicated (E24).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shaketable.system.broker.broker_state import DamagedBrokerState

KEYS_MAX = 20_000
"""Topics times groups of which offsets are kept: all of them must fit one snapshot message."""
OFFSETS_MAX = 200_000

OffsetEvent = list[tuple[str, list[tuple[int, int]]]]
"""The body of an entry: of "topic@group" the offsets by queue id."""


class OffsetTable:
    """Committed offsets by "topic@group" and queue id."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[int, int]] = {}
        self.count = 0

    def __len__(self) -> int:
        """Of how many topics and groups there are offsets."""
        return len(self._offsets)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset that a group committed, None if it did not."""
        return self._offsets.get(key_of(group, topic), {}).get(queue_id)

    def knows(self, key: str) -> bool:
        """Whether there are offsets of this "topic@group"."""
        return key in self._offsets

    def has(self, key: str, queue_id: int) -> bool:
        """Whether there is an offset of this "topic@group" and queue."""
        return queue_id in self._offsets.get(key, ())

    def apply(self, body: bytes) -> None:
        """Take a committed entry. Raises DamagedBrokerState."""
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
        """Let an offset go on, never back; for what other entries say beside what they are."""
        offsets = self._offsets.setdefault(key_of(group, topic), {})
        self.count += queue_id not in offsets
        offsets[queue_id] = max(offset, offsets.get(queue_id, 0))

    def set_back(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Let an offset be `offset` again; for what nobody agreed on."""
        self._offsets[key_of(group, topic)][queue_id] = offset

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: what groups committed in it goes with it."""
        prefix = f"{topic}@"
        for key in [key for key in self._offsets if key.startswith(prefix)]:
            self.count -= len(self._offsets.pop(key))

    def groups(self) -> set[str]:
        """Return the names of all groups that committed something."""
        return {key.partition("@")[2] for key in self._offsets}

    def state(self) -> dict[str, dict[int, int]]:
        """Return the table, for a checkpoint or a snapshot."""
        return {key: dict(offsets) for key, offsets in self._offsets.items()}

    def restore(self, state: Mapping[str, Mapping[int, int]]) -> None:
        """Begin anew from such a state."""
        self._offsets = {key: dict(offsets) for key, offsets in state.items()}
        self.count = sum(map(len, self._offsets.values()))


def key_of(group: str, topic: str) -> str:
    """Return "topic@group", as RocketMQ's consumerOffset.json has it."""
    return f"{topic}@{group}"

"""Encodes the broker's state machine for checkpoints and Raft snapshots.

Equal states have equal bytes, on every member. A snapshot gives each queue an empty range at its
next offset: no message before the snapshot's index is retained. Its topics and group offsets may
be newer: see `system.broker.reput`.
Source: RocketMQ's topics.json and consumerOffset.json, which are not replicated there;
DESIGN.md decision 3.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shaketable.system.broker.consume_queue import Queue, Ranges
from shaketable.system.store.disk import StoreError

_FORMAT = 1


class DamagedBrokerState(StoreError):  # noqa: N818 - a finding about the bytes
    """The bytes are not a broker state."""


class BrokerState(msgspec.Struct, frozen=True):
    """The broker's state after some entry.

    Attributes:
        ranges: min and max offset of each queue.
        topics: topic configurations (RocketMQ's TopicConfig) by name.
        group_offsets: committed offsets by "topic@group" and queue id.
    """

    ranges: dict[Queue, tuple[int, int]] = {}
    topics: dict[str, dict[str, str | int | bool]] = {}
    group_offsets: dict[str, dict[int, int]] = {}


class _Stored(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The encoded form: sorted lists in place of BrokerState's maps."""

    format: int
    queues: list[tuple[bytes, int, int, int]]
    topics: list[tuple[str, list[tuple[str, str | int | bool]]]]
    group_offsets: list[tuple[str, list[tuple[int, int]]]]


def encode_state(state: BrokerState) -> bytes:
    """Encode a state. Equal states give equal bytes, whatever the order of their maps."""
    stored = _Stored(
        _FORMAT,
        sorted((topic, number, *ends) for (topic, number), ends in state.ranges.items()),
        sorted((name, sorted(config.items())) for name, config in state.topics.items()),
        sorted((name, sorted(offsets.items())) for name, offsets in state.group_offsets.items()),
    )
    return msgspec.msgpack.encode(stored)


def decode_state(data: bytes) -> BrokerState:
    """Decode a state; no bytes are the state of a broker that has applied nothing.

    Raises DamagedBrokerState.
    """
    if not data:
        return BrokerState()
    try:
        stored = msgspec.msgpack.decode(data, type=_Stored)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise DamagedBrokerState(f"the broker's state cannot be read: {error}") from None
    if stored.format != _FORMAT:
        raise DamagedBrokerState(f"the broker's state has format {stored.format}, not {_FORMAT}")
    ranges = {
        (topic, number): (min_offset, max_offset)
        for topic, number, min_offset, max_offset in stored.queues
    }
    if any(not 0 <= min_offset <= max_offset for min_offset, max_offset in ranges.values()):
        raise DamagedBrokerState("a queue of the broker's state ends before its start")
    return BrokerState(
        ranges,
        {name: dict(config) for name, config in stored.topics},
        {name: dict(offsets) for name, offsets in stored.group_offsets},
    )


def ranges_of(data: bytes) -> Ranges:
    """Return the queues' ranges in an encoded state. Raises DamagedBrokerState."""
    return decode_state(data).ranges


def snapshot_ranges(offsets: Mapping[Queue, int]) -> dict[Queue, tuple[int, int]]:
    """Return a snapshot's ranges from `ConsumeQueues.offsets_at` its position."""
    return {queue: (offset, offset) for queue, offset in offsets.items()}

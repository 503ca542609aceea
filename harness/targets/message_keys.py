"""The message keys of a campaign, and what to record of a query's answer.

A message of value v has the key of each range of values [first, first + span) that it is queried
by. Keys are chosen to provoke wrong answers: every second range has a key with the same hash as its
neighbour's, because a broker's index knows only hashes; the range's key occurs twice among the
message's KEYS; and one of its KEYS equals the unique key of another message. None of this may show
in an answer.

Source: RocketMQ's IndexService.buildKey (one index for UNIQ_KEY and KEYS); apache/rocketmq issue
3613 (a key of the same hash is found).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shaketable.harness.contracts.clients import ALL_SPAN
from shaketable.system.client import Message

FOREIGN_VALUE = -1
"""Recorded for a message without a value, or one that should not have been returned. No client
sends it, so the checkers report a message that was never sent.
"""
NOWHERE = -1
"""Recorded as the offset of a message of another queue."""
_SAME_HASH = ("Aa", "BB")
"""Texts with the same String.hashCode."""


def key_of(queue: int, first: int, span: int) -> str:
    """Return the key of the `span` values from `first` on, in the topic's queue."""
    pair, place = divmod(first // span, len(_SAME_HASH))
    return f"{queue}.{span}.{pair}{_SAME_HASH[place]}"


def unique_key_of(value: int) -> str:
    """Return the UNIQ_KEY of the message with that value."""
    return f"U{value}"


def keys_of(queue: int, value: int, span: int) -> list[str]:
    """Return the KEYS of the message with that value."""
    own = key_of(queue, value - value % span, span)
    neighbour = unique_key_of(value + span if value // span % 2 == 0 else value - span)
    return [own, key_of(queue, 0, ALL_SPAN), own, neighbour]


def in_queue(
    messages: Iterable[Message], queue: tuple[str, int], times_ms: tuple[int, int] | None
) -> Sequence[Message | None]:
    """Return the messages, with None for each one of another queue or another store time."""
    topic, queue_id = queue[0].encode(), queue[1]
    return [
        each
        if (each.topic, each.queue_id) == (topic, queue_id)
        and (times_ms is None or times_ms[0] <= each.store_ms <= times_ms[1])
        else None
        for each in messages
    ]

"""How messages of a campaign are named by keys, and what of an answer is to be recorded.

A message of value v bears the key of each range of values that it is asked for by: [first, first
+ span). Every second range has a key whose hash is that of its neighbour, since a broker's index
knows hashes alone; each range's key stands twice among the message's KEYS; and it bears as one of
its KEYS what is the unique key of another message. None of this may be seen in any answer.

Source: RocketMQ's IndexService.buildKey (one index for UNIQ_KEY and KEYS); apache/rocketmq issue
3613 (a key of the same hash is found).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shaketable.harness.contracts.clients import ALL_SPAN
from shaketable.system.client import Message

NOBODYS_VALUE = -1
"""What a message is recorded as that holds no value, or should not have come: no client sends it,
so that the checkers see a message of nobody's."""
NOWHERE = -1
"""Of a message that is of another queue: at which offset it stands is nothing to this one."""
_SAME_HASH = ("Aa", "BB")
"""Texts of one String.hashCode."""


def key_of(queue: int, first: int, span: int) -> str:
    """Return the key of the values from `first` on, `span` of them, in the topic's queue."""
    pair, place = divmod(first // span, len(_SAME_HASH))
    return f"{queue}.{span}.{pair}{_SAME_HASH[place]}"


def unique_key_of(value: int) -> str:
    """Return the UNIQ_KEY of the message of a value."""
    return f"U{value}"


def keys_of(queue: int, value: int, span: int) -> list[str]:
    """Return the KEYS of the message of a value."""
    own = key_of(queue, value - value % span, span)
    neighbour = unique_key_of(value + span if value // span % 2 == 0 else value - span)
    return [own, key_of(queue, 0, ALL_SPAN), own, neighbour]


def in_queue(
    messages: Iterable[Message], queue: tuple[str, int], times_ms: tuple[int, int] | None
) -> Sequence[Message | None]:
    """Return messages, None for each that is of another queue, or stored at another time."""
    topic, queue_id = queue[0].encode(), queue[1]
    return [
        each
        if (each.topic, each.queue_id) == (topic, queue_id)
        and (times_ms is None or times_ms[0] <= each.store_ms <= times_ms[1])
        else None
        for each in messages
    ]

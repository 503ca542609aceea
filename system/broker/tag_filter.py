"""Filters messages by a subscription's tags, using the tags codes in the consume queue.

A tags code is a hash, so a message that passes may still have another tag: the client compares
the tags themselves, as RocketMQ's client does.
Source: RocketMQ's FilterAPI.buildSubscriptionData and
ExpressionMessageFilter.isMatchedByConsumeQueue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from shaketable.system.store.message import java_hash

TAG_EXPRESSION = "TAG"
TAGS_MAX = 1024
"""Limit for one subscription."""
FILTERS_CACHED_MAX = 1024
"""Parsed subscriptions kept: every pull carries one."""


class SubscriptionError(Exception):
    """The expression is not a subscription by tags. The message is one line for the client."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The hash codes of the wanted tags. A message without tags does not pass."""

    codes: frozenset[int]

    def passes(self, tags_code: int) -> bool:
        """Whether a message with this code may be wanted."""
        return tags_code in self.codes


@lru_cache(FILTERS_CACHED_MAX)
def tag_filter(expression: str | None, expression_type: str | None = None) -> TagFilter | None:
    """Parse "*" or "TagA || TagB"; None if every message is wanted. Raises SubscriptionError."""
    if expression_type not in (None, "", TAG_EXPRESSION):
        raise SubscriptionError(
            f"subscriptions by {expression_type[:32]} are not served: subscribe by TAG"
        )
    if not expression or expression == "*":
        return None
    parts = expression.split("||", TAGS_MAX)
    if len(parts) > TAGS_MAX:
        raise SubscriptionError(f"a subscription of more than {TAGS_MAX} tags")
    if not any(parts):
        raise SubscriptionError('a subscription names no tag: write "TagA || TagB" or "*"')
    tags = {tag for part in parts if (tag := part.strip())}
    return TagFilter(frozenset(java_hash(tag.encode(errors="replace")) for tag in tags))

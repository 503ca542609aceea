"""Which promises an anomaly breaks; what breaks none is observed, not judged.

An anomaly is a breach if the target promises linearizable operations that cannot show it, or
names it among what it excludes (`Promises.excludes`). What is about keeping data is a breach only
under faults that an acknowledged write survives. Source: DESIGN.md decision 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shaketable.harness.contracts.plugins import CheckContext

Group = frozenset[str]

SENDS: Final[Group] = frozenset(("append", "send"))
DELAYS: Final[Group] = frozenset(("delay",))
"""Sends whose messages come later, at offsets that their answers do not tell."""
BATCHES: Final[Group] = frozenset(("batch",))
"""Sends of several messages, whose values and offsets follow the first one's."""
READS: Final[Group] = frozenset(("read", "poll"))
POLLS: Final[Group] = frozenset(("poll",))
PUTS: Final[Group] = frozenset(("enqueue", "add"))
TAKES: Final[Group] = frozenset(("dequeue", "drain", "read"))
NOTHING: Final[Group] = frozenset()
"""No operation's linearizability excludes it: only a promise of its own does."""
COMMITS: Final[Group] = frozenset(("commit",))
FETCHES: Final[Group] = frozenset(("fetch",))

EXCLUDED_BY: Final[Mapping[str, tuple[Group, ...]]] = {
    "inconsistent-offsets": (SENDS, READS),
    "duplicate": (SENDS, READS),
    "lost-write": (SENDS, READS),
    "unseen": (SENDS, READS),
    "G1a": (SENDS, READS),
    "phantom-read": (SENDS, READS),
    "poll-skip": (POLLS,),
    "int-poll-skip": (POLLS,),
    "nonmonotonic-poll": (POLLS,),
    "int-nonmonotonic-poll": (POLLS,),
    "nonmonotonic-send": (SENDS,),
    "lost-message": (SENDS, POLLS),
    "out-of-order": (SENDS, POLLS),
    "redelivered-committed": (COMMITS, FETCHES, POLLS),
    "early-delivery": (NOTHING,),
    "duplicate-delivery": (NOTHING,),
    "late-delivery": (NOTHING,),
    "wrong-attempt": (NOTHING,),
    "two-owners": (NOTHING,),
    "needless-redelivery": (NOTHING,),
    "unwanted-tag": (NOTHING,),
    "missed-tag": (NOTHING,),
    "unwanted-key": (NOTHING,),
    "not-refused": (NOTHING,),
    "wrong-refusal": (NOTHING,),
    "no-answer": (NOTHING,),
    "missed-key": (NOTHING,),
    "lock-overlap": (NOTHING,),
    "G0": (SENDS,),
    "G0-process": (SENDS,),
    "G0-realtime": (SENDS,),
    "G1c": (SENDS, READS),
    "G1c-process": (SENDS, READS),
    "G1c-realtime": (SENDS, READS),
    "lost-element": (PUTS, TAKES),
    "unexpected-element": (PUTS, TAKES),
    "duplicated-element": (NOTHING,),
    "stale-element": (PUTS, TAKES),
    "repeated-element": (PUTS, TAKES),
    "lost-add": (PUTS, TAKES),
    "out-of-bounds": (PUTS, TAKES),
    "repeated-id": (frozenset(("generate",)),),
    "offset-went-back": (COMMITS, FETCHES),
    "offset-ran-ahead": (COMMITS, FETCHES),
    "offset-lost": (COMMITS, FETCHES),
    "never-committed": (COMMITS, FETCHES),
}
"""For each anomaly, groups of operations: if of each group one is promised to be linearizable,
the anomaly is excluded."""

ANOMALIES: Final = frozenset(EXCLUDED_BY)
"""All of them: `Promises(excludes=ANOMALIES)` is how a history is judged whose system promises
everything."""

DURABILITY: Final = frozenset(("lost-write", "unseen", "lost-element", "offset-lost", "lost-add"))
"""Anomalies of what was acknowledged and is gone."""
DELIVERED: Final = frozenset(
    (
        "lost-message",
        "inconsistent-offsets",
        "nonmonotonic-send",
        "offset-went-back",
        "redelivered-committed",
        "out-of-order",
        "missed-tag",
        "missed-key",
        "late-delivery",
        "wrong-attempt",
        "needless-redelivery",
        # A broker that lost its disk makes a topic anew that was not to be written.
        "not-refused",
    )
)
"""Anomalies that follow where the end of a queue is lost and its offsets are used again; what was
lost is waited for in vain."""

NEEDS_ALL_EVENTS: Final = frozenset(
    (
        "lost-write",
        "unseen",
        "phantom-read",
        "poll-skip",
        "lost-message",
        "late-delivery",
        "wrong-attempt",
        "two-owners",
        "needless-redelivery",
        "unwanted-tag",
        "unwanted-key",
        "redelivered-committed",
        "lost-element",
        "unexpected-element",
        "duplicated-element",
        "stale-element",
        "lost-add",
        "out-of-bounds",
        "never-committed",
        # What would explain them may be missing: a commit, a start elsewhere, an unlock.
        "offset-went-back",
        "offset-ran-ahead",
        "nonmonotonic-poll",
        "out-of-order",
        "lock-overlap",
    )
)
"""Anomalies that rest on the absence of events: an incomplete history proves none of them."""


def why_not_promised(kind: str, context: CheckContext) -> str | None:
    """Say why an anomaly breaks no promise of the target; None if it does break one."""
    promises = context.promises
    groups = EXCLUDED_BY[kind]
    is_linearizable = all(group & promises.linearizable for group in groups)
    if not is_linearizable and kind not in promises.excludes:
        return "the target does not promise it"
    beyond = context.beyond(promises.durable_under)
    if kind in DURABILITY and beyond:
        return f"the target promises no durability under {beyond}"
    beyond = context.beyond(promises.all_delivered_under)
    if kind in DELIVERED and beyond:
        return f"the target promises no delivery under {beyond}"
    return None

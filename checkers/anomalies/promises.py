"""Which promises an anomaly breaks; one that breaks none is observed, not judged.

An anomaly is a violation if the target promises linearizable operations that cannot show it, or
excludes it by name (`Promises.excludes`). A loss of data is a violation only under faults that an
acknowledged write must survive. Source: DESIGN.md decision 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shaketable.harness.contracts.plugins import CheckContext

Group = frozenset[str]

SENDS: Final[Group] = frozenset(("append", "send"))
DELAYS: Final[Group] = frozenset(("delay",))
"""Sends whose messages are delivered later, at offsets that their answers do not report."""
BATCHES: Final[Group] = frozenset(("batch",))
"""Sends of several messages, whose values and offsets follow the first one's."""
READS: Final[Group] = frozenset(("read", "poll"))
POLLS: Final[Group] = frozenset(("poll",))
PUTS: Final[Group] = frozenset(("enqueue", "add"))
TAKES: Final[Group] = frozenset(("dequeue", "drain", "read"))
NOTHING: Final[Group] = frozenset()
"""Linearizability of no operation excludes it: only a promise of its own does."""
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
"""For each anomaly, groups of operations: if one of each group is promised to be linearizable,
the anomaly is excluded."""

ANOMALIES: Final = frozenset(EXCLUDED_BY)
"""All anomalies: `Promises(excludes=ANOMALIES)` judges the history of a system that promises
everything."""

DURABILITY: Final = frozenset(("lost-write", "unseen", "lost-element", "offset-lost", "lost-add"))
"""Anomalies in which acknowledged data is lost."""
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
        # A broker that lost its disk creates the topic again, without its write protection.
        "not-refused",
    )
)
"""Anomalies that follow if the end of a queue is lost and its offsets are reused; consumers wait
in vain for what was lost."""

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
        # The events that explain them may be missing: a commit, a start elsewhere, an unlock.
        "offset-went-back",
        "offset-ran-ahead",
        "nonmonotonic-poll",
        "out-of-order",
        "lock-overlap",
    )
)
"""Anomalies that depend on the absence of events: an incomplete history proves none of them."""


def why_not_promised(kind: str, context: CheckContext) -> str | None:
    """Return why an anomaly breaks no promise of the target; None if it breaks one."""
    promises = context.promises
    assert kind in EXCLUDED_BY, f"{kind}: EXCLUDED_BY does not say which promise excludes it"
    groups = EXCLUDED_BY[kind]
    is_linearizable = all(group & promises.linearizable for group in groups)
    if not is_linearizable and kind not in promises.excludes:
        return "the target does not promise it"
    beyond = context.unpromised_faults(promises.durable_under)
    if kind in DURABILITY and beyond:
        return f"the target promises no durability under {beyond}"
    beyond = context.unpromised_faults(promises.all_delivered_under)
    if kind in DELIVERED and beyond:
        return f"the target promises no delivery under {beyond}"
    return None

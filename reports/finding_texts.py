"""Short texts for kinds of findings, the gravest first, for the banner and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

PHRASES_MAX: Final = 3
"""Kinds that a summary names; the findings of other kinds are only counted."""

TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    # A rule on which everything rests is broken: what follows may be a consequence.
    "invariant-broken": ("invariant was broken", "invariants were broken"),
    "rule-broken": (
        "node stopped because a rule of its own was broken",
        "times a node stopped because a rule of its own was broken",
    ),
    "damage-found": (
        "node found what it had stored damaged by no fault",
        "times a node found what it had stored damaged by no fault",
    ),
    "ended-unharmed": (
        "node ended by itself, and nothing had been done to it",
        "times a node ended by itself, and nothing had been done to it",
    ),
    # Data that was promised to be kept is gone.
    "lost-append": ("acknowledged append is lost", "acknowledged appends are lost"),
    "altered": ("acknowledged append was altered", "acknowledged appends were altered"),
    "reordered": (
        "acknowledged append is at another offset",
        "acknowledged appends are at other offsets",
    ),
    "divergent": (
        "committed entry differs between nodes",
        "committed entries differ between nodes",
    ),
    "damaged": ("stored entry is damaged", "stored entries are damaged"),
    "missing-on-node": (
        "acknowledged append is missing on a node that committed it",
        "acknowledged appends are missing on a node that committed them",
    ),
    "duplicated": ("value is twice in a log", "values are twice in a log"),
    "gap": (
        "stretch of committed entries is missing in a node's log",
        "stretches of committed entries are missing in nodes' logs",
    ),
    "index-twice": (
        "index is twice in a node's log",
        "indices are twice in a node's log",
    ),
    "term-fell": (
        "time the term falls along a node's log",
        "times the term falls along a node's log",
    ),
    "lost-element": (
        "element that was known to be there is gone",
        "elements that were known to be there are gone",
    ),
    # A read returned the wrong thing.
    "not-linearizable": (
        "key shows what no order of its operations explains",
        "keys show what no order of their operations explains",
    ),
    "stale-element": (
        "element was missed by a later read of its set",
        "elements were missed by later reads of their sets",
    ),
    "unexpected-element": (
        "element came out that no client had put in",
        "elements came out that no client had put in",
    ),
    "repeated-element": (
        "element was twice in one read of its set",
        "elements were twice in one read of their sets",
    ),
    "duplicated-element": (
        "element came out of a queue more often than it was put in",
        "elements came out of queues more often than they were put in",
    ),
    "lost-add": (
        "read of a counter lacked what had been added",
        "reads of counters lacked what had been added",
    ),
    "out-of-bounds": (
        "read of a counter was more or less than can have been added",
        "reads of counters were more or less than can have been added",
    ),
    "phantom-read": (
        "read returned a value that no client appended",
        "reads returned values that no client appended",
    ),
    "aborted-read": (
        "read returned the value of an append that had failed",
        "reads returned values of appends that had failed",
    ),
    "inconsistent-read": (
        "read returned another value than the one stored there",
        "reads returned other values than those stored there",
    ),
    "stale-read": (
        "read missed what was there already",
        "reads missed what was there already",
    ),
    "read-went-back": (
        "read found less than one before it",
        "reads found less than one before them",
    ),
    "stale-end": (
        "reported end of a queue lacked what was there already",
        "reported ends of queues lacked what was there already",
    ),
    "end-went-back": ("reported end of a queue went back", "reported ends of queues went back"),
    "future-read": (
        "read showed what was appended only later",
        "reads showed what was appended only later",
    ),
    "future-end": (
        "reported end of a queue counted what was appended only later",
        "reported ends of queues counted what was appended only later",
    ),
    "offset-given-twice": (
        "time an offset was given to two appends",
        "times an offset was given to two appends",
    ),
    "append-order": (
        "append is before one that was complete when it was called",
        "appends are before ones that were complete when they were called",
    ),
    "unexplained-offset": (
        "time an offset was taken that no append can have taken",
        "times an offset was taken that no append can have taken",
    ),
    "negative-offset": (
        "time an offset below 0 was returned",
        "times an offset below 0 was returned",
    ),
    "repeated-id": ("id was handed out twice", "ids were handed out twice"),
    # The same as clients see it, and what only consumers and producers see.
    "lost-message": (
        "acknowledged message was never delivered",
        "acknowledged messages were never delivered",
    ),
    "late-delivery": (
        "message was not delivered in time",
        "messages were not delivered in time",
    ),
    "early-delivery": (
        "delayed message came before its time",
        "delayed messages came before their time",
    ),
    "wrong-attempt": (
        "message came again, or was given up, though no handler had failed at it before",
        "messages came again, or were given up, though no handler had failed at them before",
    ),
    "two-owners": (
        "queue was consumed by two consumers at once",
        "queues were consumed by two consumers at once",
    ),
    "needless-redelivery": (
        "handled message came again for no reason",
        "handled messages came again for no reason",
    ),
    "duplicate-delivery": (
        "delayed message was delivered twice",
        "delayed messages were delivered twice",
    ),
    "missed-tag": (
        "message was left out of an answer to a request for its tag",
        "messages were left out of answers to requests for their tag",
    ),
    "unwanted-tag": (
        "message was returned for another tag",
        "messages were returned for another tag",
    ),
    "missed-key": (
        "message was left out of an answer to a query for its key",
        "messages were left out of answers to queries for their keys",
    ),
    "unwanted-key": (
        "message was returned for another key, or too often",
        "messages were returned for another key, or too often",
    ),
    "not-refused": (
        "request was done that must be refused",
        "requests were done that must be refused",
    ),
    "wrong-refusal": (
        "request was refused with the wrong code",
        "requests were refused with the wrong code",
    ),
    "no-answer": (
        "operator was not answered",
        "operators were not answered",
    ),
    "lock-overlap": (
        "time two consumers held the lock of one queue",
        "times two consumers held the lock of one queue",
    ),
    "offset-lost": (
        "time the offset that a group had committed was gone",
        "times the offset that a group had committed was gone",
    ),
    "offset-went-back": (
        "time the offset that a group had committed went back",
        "times the offset that a group had committed went back",
    ),
    "offset-ran-ahead": (
        "time the offset of a group ran ahead of what it had committed",
        "times the offset of a group ran ahead of what it had committed",
    ),
    "never-committed": (
        "time a group was given an offset that no client had committed",
        "times a group was given an offset that no client had committed",
    ),
    "redelivered-committed": (
        "message came again although the group had committed an offset after it",
        "messages came again although the group had committed an offset after them",
    ),
    "out-of-order": (
        "message came after one that its producer sent later",
        "messages came after ones that their producers sent later",
    ),
    "lost-write": (
        "acknowledged message was passed by and never read",
        "acknowledged messages were passed by and never read",
    ),
    "unseen": (
        "acknowledged message was not there when a client looked",
        "acknowledged messages were not there when a client looked",
    ),
    "inconsistent-offsets": (
        "offset was seen with two values",
        "offsets were seen with two values",
    ),
    "duplicate": ("value was seen at two offsets", "values were seen at two offsets"),
    "G1a": (
        "read returned the value of a send that had failed",
        "reads returned values of sends that had failed",
    ),
    "poll-skip": ("poll skipped messages", "polls skipped messages"),
    "int-poll-skip": (
        "time one answer left messages out",
        "times one answer left messages out",
    ),
    "nonmonotonic-poll": ("poll went back", "polls went back"),
    "int-nonmonotonic-poll": ("time one answer went back", "times one answer went back"),
    "nonmonotonic-send": (
        "send is before the one sent before it",
        "sends are before the ones sent before them",
    ),
    "G0": (
        "cycle of writes, each of which comes before the next",
        "cycles of writes, each of which comes before the next",
    ),
    "G1c": (
        "cycle of writes and reads, each of which comes before the next",
        "cycles of writes and reads, each of which comes before the next",
    ),
    "G0-process": (
        "cycle of appends that a client's own order contradicts",
        "cycles of appends that a client's own order contradicts",
    ),
    "G1c-process": (
        "cycle of appends and reads that a client's own order contradicts",
        "cycles of appends and reads that a client's own order contradicts",
    ),
    "G0-realtime": (
        "cycle of appends that real time contradicts",
        "cycles of appends that real time contradicts",
    ),
    "G1c-realtime": (
        "cycle of appends and reads that real time contradicts",
        "cycles of appends and reads that real time contradicts",
    ),
}
"""Kind -> text for one finding and for several, placed after their number; the gravest first."""


def summarize(totals: Mapping[str, int]) -> str:
    """Summarize findings, counted by kind, in one line: name the gravest, count the rest."""
    kinds = sorted(totals, key=lambda kind: (rank(kind), -totals[kind]))
    shown = [phrase(kind, totals[kind]) for kind in kinds[:PHRASES_MAX]]
    if more := sum(totals[kind] for kind in kinds[PHRASES_MAX:]):
        shown.append(f"{more:,} other {'finding' if more == 1 else 'findings'}")
    return "; ".join(shown)


def phrase(kind: str, count: int) -> str:
    """Return the text for findings of one kind, or the kind's name if it has none."""
    if kind not in TEXTS:
        return f"{count:,} {kind}"
    one, several = TEXTS[kind]
    return f"{count:,} {one if count == 1 else several}"


def title(kind: str) -> str:
    """Return a kind as a heading, without a number: "Acknowledged append is lost"."""
    if kind not in TEXTS:
        return kind
    text = TEXTS[kind][0].removeprefix("time ")
    return text[:1].upper() + text[1:]


def rank(kind: str) -> int:
    """Return the rank of a kind by gravity, the gravest first; kinds without a text come last."""
    return next((place for place, known in enumerate(TEXTS) if known == kind), len(TEXTS))


def merge_totals(counted: Iterable[Iterable[tuple[str, int]]]) -> dict[str, int]:
    """Merge the totals of several checkers, kind by kind.

    For a kind that several have found, the largest number counts: they judged the same history.
    """
    totals: dict[str, int] = {}
    for pairs in counted:
        for kind, count in pairs:
            totals[kind] = max(totals.get(kind, 0), count)
    return totals

"""Isolation levels of transactions: which of them imply which, and what each anomaly breaks.

Sources: Adya 1999 (read uncommitted to serializable are PL-1, PL-2, PL-2.99 and PL-3, consistent
view PL-2+); Bailis et al., VLDB 2013 (monotonic atomic view, read atomic); Elle's consistency
models for the sessions and real time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple

_WEAKER: Final[dict[str, tuple[str, ...]]] = {
    "read-uncommitted": (),
    "read-committed": ("read-uncommitted",),
    "monotonic-atomic-view": ("read-committed",),
    "read-atomic": ("monotonic-atomic-view",),
    "strong-session-read-uncommitted": ("read-uncommitted",),
    "strong-session-read-committed": ("read-committed", "strong-session-read-uncommitted"),
    "strong-session-monotonic-atomic-view": (
        "monotonic-atomic-view", "strong-session-read-committed",
    ),
    "strong-session-read-atomic": ("read-atomic", "strong-session-monotonic-atomic-view"),
    "causal": ("strong-session-read-atomic",),
    "prefix-consistency": ("causal",),
    "cursor-stability": ("read-committed",),
    "update-atomic": ("read-atomic",),
    "consistent-view": ("cursor-stability", "read-atomic"),
    "snapshot-isolation": ("consistent-view", "update-atomic"),
    "repeatable-read": ("cursor-stability", "read-atomic"),
    "serializable": ("snapshot-isolation", "repeatable-read"),
    "strong-session-consistent-view": ("consistent-view", "strong-session-read-committed"),
    "strong-session-snapshot-isolation": (
        "snapshot-isolation", "strong-session-consistent-view", "prefix-consistency",
    ),
    "strong-session-serializable": ("serializable", "strong-session-snapshot-isolation"),
    "strong-read-uncommitted": ("strong-session-read-uncommitted",),
    "strong-read-committed": ("strong-session-read-committed", "strong-read-uncommitted"),
    "strong-snapshot-isolation": (
        "strong-session-snapshot-isolation", "strong-read-committed",
    ),
    "strict-serializable": ("strong-session-serializable", "strong-snapshot-isolation"),
}  # fmt: skip
"""Each level, with the weaker ones next to it that it implies."""

LEVELS: Final = tuple(_WEAKER)
STRONGEST: Final = "strict-serializable"

BREAKS: Final[dict[str, tuple[str, ...]]] = {
    "G0": ("read-uncommitted",),
    "duplicate-elements": ("read-uncommitted",),
    "G1a": ("read-committed",),
    "G1b": ("read-committed",),
    "G1c": ("read-committed",),
    "dirty-update": ("read-committed",),
    "future-read": ("read-committed",),
    "thin-air-read": ("read-committed",),
    "incompatible-order": ("read-committed",),
    "nonmonotonic-read": ("monotonic-atomic-view",),
    "internal": ("read-atomic",),
    "fractured-read": ("read-atomic",),
    "causality-violation": ("causal",),
    "lost-update": ("update-atomic", "cursor-stability"),
    "G-single-item": ("consistent-view", "repeatable-read"),
    "G-nonadjacent-item": ("snapshot-isolation", "repeatable-read"),
    "G2-item": ("repeatable-read",),
    "no-serial-order": ("serializable",),
    "no-snapshot-order": ("snapshot-isolation",),
    "no-prefix-order": ("prefix-consistency",),
    "G0-process": ("strong-session-read-uncommitted",),
    "G1c-process": ("strong-session-read-committed",),
    "nonmonotonic-read-process": ("strong-session-monotonic-atomic-view",),
    "fractured-read-process": ("strong-session-read-atomic",),
    "G-single-item-process": ("strong-session-consistent-view", "strong-session-serializable"),
    "G-nonadjacent-item-process": ("strong-session-snapshot-isolation",),
    "G2-item-process": ("strong-session-serializable",),
    "no-serial-order-process": ("strong-session-serializable",),
    "no-snapshot-order-process": ("strong-session-snapshot-isolation",),
    "G0-realtime": ("strong-read-uncommitted",),
    "G1c-realtime": ("strong-read-committed",),
    "G-single-item-realtime": ("strong-snapshot-isolation",),
    "G-nonadjacent-item-realtime": ("strong-snapshot-isolation",),
    "G2-item-realtime": ("strict-serializable",),
    "no-serial-order-realtime": ("strict-serializable",),
    "no-snapshot-order-realtime": ("strong-snapshot-isolation",),
}
"""The weakest levels that each anomaly breaks."""

_MEANINGS: Final = {
    "G0": ("dirty write (G0)", "a cycle of versions alone"),
    "duplicate-elements": ("duplicate element", "a list holds an element twice"),
    "G1a": ("aborted read (G1a)", "a read of what a failed transaction wrote"),
    "G1b": (
        "intermediate read (G1b)",
        "a read of an intermediate version, which its own transaction overwrote",
    ),
    "G1c": ("circular information flow (G1c)", "a cycle of versions and reads"),
    "dirty-update": (
        "dirty update", "an append after an element of a failed transaction was committed",
    ),
    "future-read": ("future read", "a transaction read what it wrote later"),
    "thin-air-read": ("read out of thin air", "a read of what no transaction wrote"),
    "incompatible-order": (
        "incompatible order", "two reads of a list, neither of which is a prefix of the other",
    ),
    "nonmonotonic-read": (
        "non-monotonic read",
        "a transaction saw another one, and later read a key from before that one's write",
    ),
    "internal": (
        "internal inconsistency",
        "a transaction's read contradicts what it had written or read",
    ),
    "fractured-read": ("fractured read", "a transaction saw a part of another one's writes"),
    "causality-violation": (
        "causality violation", "a read misses a write that happened before the reader",
    ),
    "lost-update": (
        "lost update", "two transactions read one version of a key and both wrote the next",
    ),
    "G-single-item": ("read skew (G-single)", "a cycle with exactly one rw edge"),
    "G-nonadjacent-item": (
        "long fork (G-nonadjacent)", "a cycle with several rw edges, no two of them adjacent",
    ),
    "G2-item": ("write skew (G2-item)", "a cycle with rw edges"),
    "no-prefix-order": (
        "missing prefix order",
        "no order of commits explains what snapshots showed, even if writers of one key may"
        " overlap",
    ),
    "no-snapshot-order": (
        "missing snapshot order", "no order of versions is snapshot isolation",
    ),
    "no-serial-order": ("missing serial order", "no order of versions is serializable"),
}  # fmt: skip
"""By anomaly, without a suffix: its usual name, and what it is."""
SUFFIXES: Final = {
    "-process": ", with the order of a session",
    "-realtime": ", with real time",
}
"""What an anomaly needs besides, by the end of its name."""


class Anomaly(NamedTuple):
    """An anomaly in words: its usual name, and what it is."""

    name: str
    what: str


def anomaly_of(kind: str) -> Anomaly | None:
    """Return what an anomaly is; None if no level forbids one of that name."""
    if kind not in BREAKS:
        return None
    for suffix, more in SUFFIXES.items():
        if kind.endswith(suffix):
            name, what = _MEANINGS[kind.removesuffix(suffix)]
            return Anomaly(name + more, what + more)
    return Anomaly(*_MEANINGS[kind])


def implied(level: str) -> frozenset[str]:
    """Return a level and all that it implies."""
    return frozenset((level,)).union(*(implied(weaker) for weaker in _WEAKER[level]))


def broken(anomalies: Iterable[str]) -> frozenset[str]:
    """Return all levels that these anomalies break: the named ones, and all that imply them."""
    named = {level for anomaly in anomalies for level in BREAKS[anomaly]}
    return frozenset(level for level in LEVELS if implied(level) & named)


def weaker_of(one: str, other: str) -> str:
    """Return the strongest level that both imply; "" if one of them is none."""
    common = implied(one) & implied(other) if one and other else ()
    return max(common, key=LEVELS.index, default="")


@cache
def ruled_out_by(level: str) -> frozenset[str]:
    """Return the anomalies that transactions of a level never show; none if there is no level."""
    if not level:
        return frozenset()
    kept = implied(level)
    return frozenset(kind for kind, levels in BREAKS.items() if not kept.isdisjoint(levels))

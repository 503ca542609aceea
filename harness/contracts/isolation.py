"""Isolation levels of transactions: which of them imply which, and what each anomaly breaks.

Sources: Adya 1999 (read uncommitted to serializable are PL-1, PL-2, PL-2.99 and PL-3, consistent
view PL-2+); Bailis et al., VLDB 2013 (monotonic atomic view, read atomic); Elle's consistency
models for the sessions and real time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

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


def implied(level: str) -> frozenset[str]:
    """Return a level and all that it implies."""
    return frozenset((level,)).union(*(implied(weaker) for weaker in _WEAKER[level]))


def broken(anomalies: Iterable[str]) -> frozenset[str]:
    """Return all levels that these anomalies break: the named ones, and all that imply them."""
    named = {level for anomaly in anomalies for level in BREAKS[anomaly]}
    return frozenset(level for level in LEVELS if implied(level) & named)


@cache
def ruled_out_by(level: str) -> frozenset[str]:
    """Return the anomalies that transactions of a level never show; none if there is no level."""
    if not level:
        return frozenset()
    kept = implied(level)
    return frozenset(kind for kind, levels in BREAKS.items() if not kept.isdisjoint(levels))

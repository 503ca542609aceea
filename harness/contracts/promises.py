"""What a target promises, as data; `contracts.plugins` hands it on.

Source: DESIGN.md decision 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

FAULTS_OF_LINKS: Final = frozenset(
    {
        "partition",
        "flap",
        "delay",
        "slow-link",
        "reset",
        "half-open",
        "loss",
        "duplicate",
        "reorder",
        "corrupt",
        "name-server-links",
    }
)
"""Faults of the network between nodes, and between them and name servers: who stands a partition
promises to stand each of them."""
FAULTS_OF_PROCESSES: Final = frozenset(
    {"rolling-restart", "crash-loop", "members", "name-servers", "cpu", "memory", "descriptors"}
)
"""Who stands kills and pauses promises to stand these, which are made of them."""
FAULTS_OF_CLOCKS: Final = frozenset({"clock"})
FAULTS_OF_DISKS: Final = frozenset(
    {"power", "disk-errors", "disk-full", "disk-slow", "disk-stall", "damage"}
)
"""Faults of one node's disk, and of many at once; `rollback` is none that anybody stands."""
OURS: Final = (
    frozenset({"kill", "pause", "transfer", "wipe", "rollback"})
    | FAULTS_OF_LINKS
    | FAULTS_OF_PROCESSES
    | FAULTS_OF_CLOCKS
    | FAULTS_OF_DISKS
)
"""Faults that every target's promises could name: what they do not name is not promised."""
RAISED: Final = "Raised by hand to what"
"""How the note of promises begins that a target does not make itself."""
FAMILIES: Final[Mapping[str, frozenset[str]]] = {
    "process": frozenset(
        {"kill", "pause", "transfer", "rolling-restart", "crash-loop", "name-servers"}
    ),
    "network": FAULTS_OF_LINKS,
    "clock": FAULTS_OF_CLOCKS,
    "disk": FAULTS_OF_DISKS | {"wipe"},
    "membership": frozenset({"members"}),
    "resources": frozenset({"cpu", "memory", "descriptors"}),
}
"""Our faults by family (`contracts.words.FAMILIES`), but for rollbacks, which nobody stands."""
STANDS_BY: Final[Mapping[str, frozenset[str]]] = {
    "process": frozenset({"kill", "pause"}),
    "network": frozenset({"partition"}),
    "clock": FAULTS_OF_CLOCKS,
    "disk": FAULTS_OF_DISKS | {"wipe"},
    "membership": frozenset({"members"}),
    "resources": frozenset({"cpu", "memory", "descriptors"}),
}
"""By family (`contracts.words.FAMILIES`): whoever stands these stands other people's faults of it.
Rollbacks nobody stands."""


def stands(stood: frozenset[str], fault: str, family: str) -> bool:
    """Say if who promises to stand the faults `stood` promises to stand this one.

    One that the promises could not name, since it is somebody's own plug-in, is judged by its
    family; one that says no family is not promised.
    """
    if fault in stood or fault in OURS:
        return fault in stood
    return family in STANDS_BY and STANDS_BY[family] <= stood


def in_families(faults: frozenset[str]) -> str:
    """Say these faults by their families, where they are all of one, and the rest by name."""
    whole = [family for family, ours in FAMILIES.items() if ours <= faults]
    rest = sorted(faults.difference(*(FAMILIES[family] for family in whole)))
    if not whole:
        return ", ".join(rest)
    *first, last = whole
    told = f"{', '.join(first)} and {last}" if first else last
    return ", ".join((f"every {told} fault", *rest))


@dataclass(frozen=True, slots=True)
class Promises:
    """What a target promises, as data; checkers judge these and nothing else.

    `durable_under`: names of faults that an acknowledged append survives; see `stands`.
    `linearizable`: operation names (f) that are linearizable together, for each key.
    `committed_prefix`: committed log prefixes are equal on all nodes.
    `excludes`: anomalies (docs/anomalies.md) that it promises never to show, beside those
    that its linearizable operations cannot show.
    `note`: one sentence for the report.
    `copies`: on how many nodes an acknowledged append must stand at least; None: on a majority
    of them, and on every node that has committed that far.
    `delivered_under`: faults under which a message that is kept stays at its offset, so that
    consumers are given it; None: those of `durable_under`.
    `documented`: what its documentation says about what it does not promise, with the source;
    shown beside what is observed and breaks no promise.
    """

    durable_under: frozenset[str] = frozenset()
    linearizable: frozenset[str] = frozenset()
    committed_prefix: bool = False
    note: str = ""
    excludes: frozenset[str] = frozenset()
    copies: int | None = None
    delivered_under: frozenset[str] | None = None
    documented: str = ""

    @property
    def all_delivered_under(self) -> frozenset[str]:
        """Faults under which what is kept is delivered as well."""
        return self.durable_under if self.delivered_under is None else self.delivered_under

    def raised_to(self, other: Promises, name: str) -> Promises:
        """Return these promises with all that target `name` promises beside: judged by hand.

        On how many nodes something stands, and that all keep one log, are facts of how a target
        is built, no matter of promises: these stay.
        """
        return replace(
            self,
            durable_under=self.durable_under | other.durable_under,
            delivered_under=self.all_delivered_under | other.all_delivered_under,
            linearizable=self.linearizable | other.linearizable,
            excludes=self.excludes | other.excludes,
            note=f"{RAISED} {name} promises. {self.note}",
        )

"""What a target promises, as data. Re-exported by `contracts.plugins`.

Source: DESIGN.md decision 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from shaketable.harness.contracts.isolation import LEVELS

FAULTS_OF_LINKS: Final = frozenset(
    {
        "partition",
        "flap",
        "delay",
        "slow-link",
        "mtu",
        "reset",
        "half-open",
        "loss",
        "duplicate",
        "reorder",
        "corrupt",
        "name-server-links",
        "client-links",
    }
)
"""Faults of links between nodes, to name servers or to clients.

Who promises "partition" promises them all.
"""
FAULTS_OF_PROCESSES: Final = frozenset(
    {"rolling-restart", "crash-loop", "members", "name-servers", "cpu", "memory", "descriptors"}
)
"""Faults made of kills and pauses: promising "kill" and "pause" promises all of these."""
FAULTS_OF_CLOCKS: Final = frozenset({"clock"})
FAULTS_OF_DISKS: Final = frozenset(
    {"power", "disk-errors", "disk-full", "disk-slow", "disk-stall", "damage"}
)
"""Disk faults, of one node or many at once. Not `rollback`: no target promises to survive it."""
BUILT_IN_FAULTS: Final = (
    frozenset({"kill", "pause", "transfer", "wipe", "rollback"})
    | FAULTS_OF_LINKS
    | FAULTS_OF_PROCESSES
    | FAULTS_OF_CLOCKS
    | FAULTS_OF_DISKS
)
"""The built-in faults: promises can name each of these, and one not named is not promised."""
RAISED_BY_HAND: Final = "Raised by hand to what"
"""Prefix of the note of promises that the user added to a target by hand."""
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
"""Built-in faults by family (`contracts.capabilities.FAMILIES`), except rollback: no target
promises that."""
PROMISED_BY: Final[Mapping[str, frozenset[str]]] = {
    "process": frozenset({"kill", "pause"}),
    "network": frozenset({"partition"}),
    "clock": FAULTS_OF_CLOCKS,
    "disk": FAULTS_OF_DISKS | {"wipe"},
    "membership": frozenset({"members"}),
    "resources": frozenset({"cpu", "memory", "descriptors"}),
}
"""By family (`contracts.capabilities.FAMILIES`): a target that promises these faults also promises
external faults of that family. Rollback is absent: no target promises it.
"""


def is_promised(promised: frozenset[str], fault: str, family: str) -> bool:
    """Return whether promising the faults in `promised` also promises `fault`.

    A built-in fault has to be named. An external one (a plug-in) is judged by its family; without a
    family it is not promised.
    """
    if fault in promised or fault in BUILT_IN_FAULTS:
        return fault in promised
    return family in PROMISED_BY and PROMISED_BY[family] <= promised


def in_families(faults: frozenset[str]) -> str:
    """Return a phrase for these faults: whole families by name, then the remaining faults."""
    whole = [family for family, ours in FAMILIES.items() if ours <= faults]
    rest = sorted(faults.difference(*(FAMILIES[family] for family in whole)))
    if not whole:
        return ", ".join(rest)
    *first, last = whole
    families = f"{', '.join(first)} and {last}" if first else last
    return ", ".join((f"every {families} fault", *rest))


@dataclass(frozen=True, slots=True)
class Promises:
    """What a target promises. Checkers judge these and nothing else.

    Attributes:
        durable_under: names of faults that an acknowledged append survives; see `is_promised`.
        linearizable: operation names (f) that are linearizable together, for each key.
        committed_prefix: committed log prefixes are equal on all nodes.
        fails_over: when the leader is killed, another node leads. Measured, not judged; None: as
            `committed_prefix`.
        failover_goals_s: how soon writes should go on then: the median, and the 99th percentile.
        note: one sentence for the report.
        excludes: anomalies (docs/anomalies.md) that never occur, beside those that its linearizable
            operations rule out already.
        copies: on how many nodes an acknowledged append is stored at least; None: on a majority,
            and on every node that has committed that far.
        delivered_under: faults under which a stored message stays at its offset, so that consumers
            receive it; None: those of `durable_under`.
        documented: what the target's documentation says about what it does not promise, with the
            source. Shown beside what is observed; breaks no promise.
        isolation: the level that all transactions have (`contracts.isolation.LEVELS`); "": none.
    """

    durable_under: frozenset[str] = frozenset()
    linearizable: frozenset[str] = frozenset()
    committed_prefix: bool = False
    note: str = ""
    excludes: frozenset[str] = frozenset()
    copies: int | None = None
    delivered_under: frozenset[str] | None = None
    documented: str = ""
    isolation: str = ""
    fails_over: bool | None = None
    failover_goals_s: tuple[float, float] | None = None

    @property
    def is_failover_measured(self) -> bool:
        """Whether it is measured how soon writes go on after a kill of the leader."""
        return self.committed_prefix if self.fails_over is None else self.fails_over

    @property
    def all_delivered_under(self) -> frozenset[str]:
        """Faults under which stored messages are also delivered."""
        return self.durable_under if self.delivered_under is None else self.delivered_under

    def raised_to(self, other: Promises, name: str) -> Promises:
        """Return these promises plus those of target `name`, when the user raises them by hand.

        What describes how the target is built does not change: `copies`, `committed_prefix`,
        `fails_over` and `failover_goals_s`.
        """
        levels = [level for level in (self.isolation, other.isolation) if level]
        return replace(
            self,
            durable_under=self.durable_under | other.durable_under,
            delivered_under=self.all_delivered_under | other.all_delivered_under,
            linearizable=self.linearizable | other.linearizable,
            excludes=self.excludes | other.excludes,
            note=f"{RAISED_BY_HAND} {name} promises. {self.note}",
            isolation=max(levels, key=LEVELS.index, default=""),
        )

    def as_json(self) -> dict[str, Any]:
        """Return all as JSON, sets as sorted lists; `delivered_under` is never None."""
        texts = {
            key: sorted(value) if isinstance(value, frozenset) else value
            for key, value in asdict(self).items()
        }
        return {**texts, "delivered_under": sorted(self.all_delivered_under)}

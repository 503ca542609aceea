"""Counters of what happened in a simulated run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """Count events when they happen, not when they are scheduled. `faults` counts by kind."""

    operations: int = 0
    acknowledged: int = 0
    reads: int = 0
    refused: int = 0
    unknown: int = 0
    elections: int = 0
    truncations: int = 0
    snapshot_installs: int = 0
    compactions: int = 0
    membership_changes: int = 0
    transfers: int = 0
    crashes: int = 0
    restarts: int = 0
    stops: int = 0
    files_damaged: int = 0
    damage_noticed: int = 0
    changes_refused: int = 0
    keys_found: int = 0
    broken: int = 0
    stopped_by_disk: int = 0
    checkpoints: int = 0
    lost_bytes: int = 0
    messages: int = 0
    messages_lost: int = 0
    disk_operations: int = 0
    events: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    states: set[tuple[str, str]] = field(default_factory=set)
    """(role, event) pairs that members went through: the protocol's coverage."""

    def fault(self, kind: str) -> None:
        """Count a fault that took effect."""
        self.faults[kind] = self.faults.get(kind, 0) + 1

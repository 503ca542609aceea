"""The harness' side of a node's steering folder: orders out, effects in.

The format is the node's (docs/faults.md); this side shares no code with it.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from shaketable.harness.history.run_folder import write_atomically

CONTROL: Final = "control.json"
EFFECTS: Final = "effects"
MAGIC: Final = b"shktbl01"
SLOTS: Final = (
    "starts",
    "control_version",
    "reading",
    "machine_mono_us",
    "node_mono_us",
    "machine_wall_us",
    "node_wall_us",
    "read",
    "write",
    "sync",
    "name",
    "errors",
    "slowed",
    "waited_us",
    "unsynced_bytes",
    "lost_bytes",
    "losses",
    "message",
    "message:VoteRequest",
    "message:VoteResponse",
    "message:PushRequest",
    "message:PushResponse",
    "message:SnapshotRequest",
    "message:LeadershipTransfer",
)
DISK_FAULT_SLOTS: Final = ("number", "calls", "errors", "slowed", "waited_us")
DISK_FAULTS_MAX: Final = 16
_SLOTS = struct.Struct(f"={len(SLOTS)}q")
_DISK_FAULT = struct.Struct(f"={len(DISK_FAULT_SLOTS)}q")
_READ_AGAIN_MAX: Final = 100


class SteeringFiles:
    """Implements `contracts.abilities.NodeSteering` in a folder, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version = 0

    def order(
        self,
        clocks: Sequence[Mapping[str, object]] = (),
        disk_faults: Sequence[Mapping[str, object]] = (),
        trips: Sequence[Mapping[str, object]] = (),
    ) -> int:
        """Replace all orders in force; return the version of the new ones."""
        self._version = max(self._version, self.effects().get("control_version", 0)) + 1
        orders = {
            "version": self._version,
            "clocks": list(clocks),
            "disk_faults": list(disk_faults),
            "trips": list(trips),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / CONTROL, json.dumps(orders, indent=1).encode() + b"\n")
        return self._version

    def effects(self) -> Mapping[str, int]:
        """Return the node's counters; its clocks are those of one instant."""
        for _ in range(_READ_AGAIN_MAX):
            data = self._read()
            if not data.startswith(MAGIC) or len(data) < len(MAGIC) + _SLOTS.size:
                return {}
            found = dict(zip(SLOTS, _SLOTS.unpack_from(data, len(MAGIC)), strict=True))
            reading = found["reading"]
            if reading % 2 == 0 and self._slot("reading") == reading:
                break  # else torn: the node was writing (a seqlock)
        return found

    def disk_fault(self, number: int) -> Mapping[str, int]:
        """Return the node's counters of one disk fault."""
        at = len(MAGIC) + _SLOTS.size + number % DISK_FAULTS_MAX * _DISK_FAULT.size
        data = self._read()
        if len(data) < at + _DISK_FAULT.size:
            return {}
        found = dict(zip(DISK_FAULT_SLOTS, _DISK_FAULT.unpack_from(data, at), strict=True))
        return found if found["number"] == number else {}

    def _slot(self, name: str) -> int:
        at = len(MAGIC) + SLOTS.index(name) * 8
        return int.from_bytes(self._read()[at : at + 8], sys.byteorder, signed=True)

    def _read(self) -> bytes:
        try:
            return (self._folder / EFFECTS).read_bytes()
        except FileNotFoundError:
            return b""

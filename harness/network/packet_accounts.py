"""What cuts and shapes did to packets so far: the proof that they bit (DESIGN.md decision 11)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from shaketable.harness.network.frames import Flow, reverse
from shaketable.harness.plugins import Json

LATE_MIN_S: Final = 0.001
"""What is late by less is not counted as delayed: our own work takes time, too."""


@dataclass(slots=True)
class CutAccount:
    """What one cut dropped, and of which connections (by one of their two flows)."""

    size_bytes: int = 0
    packets: int = 0
    flows: set[Flow] = field(default_factory=set)

    def meet(self, frame: bytes, flow: Flow | None) -> None:
        """Count a frame that was dropped."""
        self.size_bytes += len(frame)
        self.packets += 1
        if flow is not None:
            self.flows.add(min(flow, reverse(flow)))

    def to_json(self) -> Json:
        """As `World.held` answers, with "packets"."""
        return {"bytes": self.size_bytes, "packets": self.packets, "connections": len(self.flows)}


@dataclass(slots=True)
class Account:
    """What one shape did."""

    size_bytes: int = 0
    packets: int = 0
    delayed: int = 0
    delay_s: float = 0.0
    dropped: int = 0
    duplicated: int = 0
    reordered: int = 0
    corrupted: int = 0
    resets: int = 0
    half_open: int = 0
    unread: int = 0

    def meet(self, frame: bytes) -> None:
        """Count a frame that came by."""
        self.size_bytes += len(frame)
        self.packets += 1

    def deliver(self, late_s: float, *, is_overtaken: bool) -> None:
        """Count a frame that went on, so late."""
        if late_s >= LATE_MIN_S:
            self.delayed += 1
            self.delay_s += late_s
        self.reordered += is_overtaken

    def to_json(self) -> Json:
        """As `ShapesLinks.shaped` answers."""
        return {
            "bytes": self.size_bytes,
            "packets": self.packets,
            "delayed": self.delayed,
            "delay_ms_mean": round(self.delay_s * 1e3 / self.delayed, 3) if self.delayed else 0.0,
            "dropped": self.dropped,
            "duplicated": self.duplicated,
            "reordered": self.reordered,
            "corrupted": self.corrupted,
            "resets": self.resets,
            "half_open": self.half_open,
            "unread": self.unread,
        }

"""Periodic samples of each node's log end and clocks (samples.jsonl).

They are taken from the answers to status polls, so a sample costs one line. Each is one row:

    {"time_ns": ..., "node": "n1", "committed_index": 41, "end_index": 43,
     "wall_offset_ms": 0.2, "monotonic_offset_ms": 0.2, "doubt_ms": 0.4}

The last three are there only for nodes whose target reports their clocks
(`contracts.plugins.NodeStatus.wall_ms`), or whose world knows them; an offset is how far the node's
clock is ahead of the harness's, plus or minus `doubt_ms`. If nodes form several groups, a row has
its `group` too.

Source: Cristian, Probabilistic clock synchronization (1989): the midpoint between request and
answer stands for the moment at which the clock was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from shaketable.harness.contracts.plugins import Json, NodeStatus
from shaketable.harness.contracts.simulation import SteersSimulated
from shaketable.harness.runtime.ledger import Lines

SAMPLE_EVERY_NS: Final = 500_000_000
"""The minimum interval between samples of a node."""
SAMPLES_EVEN_MAX: Final = 2_000
"""After this many samples of a node the interval grows: it becomes the run's age divided by this,
so a run of a week has 15,000 samples of a node.
"""
ROWS_MAX: Final = 200_000
"""Limit of rows in a run; further samples are dropped."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the harness's own clocks showed at one instant, in milliseconds."""

    wall_ms: float
    monotonic_ms: float


@dataclass(frozen=True, slots=True)
class ClockOffsets:
    """How far a node's clocks are ahead of the harness's, plus or minus `doubt_ms`."""

    wall_ms: float
    monotonic_ms: float
    doubt_ms: float


class Clocks(Protocol):
    """How a world measures its nodes' clocks."""

    def shown(self) -> Shown:
        """Return what the harness's own clocks show now."""
        ...

    def offsets(self, status: NodeStatus, asked: Shown) -> ClockOffsets | None:
        """Measure the clocks of a node that was asked at `asked` and answers now; None: unknown."""
        ...


class AnsweredClocks:
    """Clocks of nodes that report them in their status."""

    def shown(self) -> Shown:
        """Return what this machine's clocks show."""
        return Shown(time.time_ns() / 1e6, time.monotonic_ns() / 1e6)

    def offsets(self, status: NodeStatus, asked: Shown) -> ClockOffsets | None:
        """Compare a node's report with the midpoint between request and answer."""
        if status.wall_ms is None or status.monotonic_ms is None:
            return None
        answered = self.shown()
        doubt_ms = (answered.monotonic_ms - asked.monotonic_ms) / 2
        return ClockOffsets(
            status.wall_ms - (asked.wall_ms + answered.wall_ms) / 2,
            status.monotonic_ms - (asked.monotonic_ms + doubt_ms),
            doubt_ms,
        )


class SimulatedClocks:
    """Clocks of simulated nodes, known without asking. `now_ns` returns the world's time."""

    def __init__(self, machines: SteersSimulated, now_ns: Callable[[], int]) -> None:
        self._machines = machines
        self._now_ns = now_ns

    def shown(self) -> Shown:
        """Return the world's time, which a correct wall clock shows too."""
        now_ms = self._now_ns() / 1e6
        return Shown(now_ms, now_ms)

    def offsets(self, status: NodeStatus, asked: Shown) -> ClockOffsets:
        """Read the clocks of the node."""
        del asked
        reading = self._machines.reading(status.node)
        return ClockOffsets(reading.wall_error_ms, reading.ahead_ms, 0.0)


class Samples:
    """Writes the samples of one run.

    Args:
        lines: samples.jsonl, open.
        clocks: measures the nodes' clocks.
        now_ns: returns the time since the run's start.
    """

    def __init__(self, lines: Lines, clocks: Clocks, now_ns: Callable[[], int]) -> None:
        self._lines = lines
        self._clocks = clocks
        self._now_ns = now_ns
        self._due_ns: dict[str, int] = {}
        self._rows = 0

    def begin(self, node: str) -> Shown | None:
        """Call before a node is asked; returns None if no sample of it is due."""
        if self._now_ns() < self._due_ns.get(node, 0) or self._rows >= ROWS_MAX:
            return None
        return self._clocks.shown()

    def end(self, node: str, status: NodeStatus, asked: Shown) -> None:
        """Write a sample of the node's answer. `asked` is from `begin`."""
        now_ns = self._now_ns()
        self._due_ns[node] = now_ns + max(SAMPLE_EVERY_NS, now_ns // SAMPLES_EVEN_MAX)
        row: Json = {
            "time_ns": now_ns,
            "node": node,
            "committed_index": status.committed_index,
            "end_index": status.end_index,
        }
        if status.group:
            row["group"] = status.group
        offsets = self._clocks.offsets(status, asked)
        if offsets is not None:
            row["wall_offset_ms"] = round(offsets.wall_ms, 1)
            row["monotonic_offset_ms"] = round(offsets.monotonic_ms, 1)
            row["doubt_ms"] = round(offsets.doubt_ms, 1)
        self._rows += 1
        self._lines.append(row)

"""Skew the clocks of single nodes: offset, drift, strobe, frozen.

The host's clock is never touched. The evidence is measured: the node's clocks against the
machine's, at two instants.

Source: jepsen.nemesis.time (bump, strobe, reset); libfaketime (rate); DESIGN.md decision 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Self

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import (
    Capability,
    ClockChange,
    ClockReading,
    SkewsClocks,
)
from shaketable.harness.contracts.errors import IndefiniteError
from shaketable.harness.contracts.plugins import Evidence, Json, World
from shaketable.harness.faults.victims import NodeFault, undone_if_it_fails

KINDS = ("drift", "offset", "frozen", "strobe")
"""Used in this order, so that a campaign with four has each kind."""
WALL_KINDS = ("offset", "drift", "frozen")
"""For nodes of which only the wall clock can be changed, and not often enough to strobe."""
RATES = (0.1, 0.5, 0.8, 1.2, 2.0, 5.0)
WALL_OFFSETS_MS = (-3_600_000.0, -30_000.0, -400.0, 400.0, 30_000.0, 3_600_000.0)
FOREIGN_RATES = (0.1, 5.0, 10.0)
FOREIGN_OFFSETS_MS = (-3_600_000.0, -30_000.0, 30_000.0, 3_600_000.0)
"""Large enough to show within seconds on a clock that the node reports, often in whole seconds."""
MONOTONIC_OFFSETS_MS = (100.0, 600.0, 5_000.0)
STROBES_MS = (20.0, 60.0, 200.0)
STROBE_OFFSETS_MS = (150.0, 600.0)
READINGS_OF_STROBE = 8
NEAR_SHARE = 0.2
"""The relative tolerance between a measured and a requested skew."""
NEAR_MS = 30.0
FOREIGN_MOVE_MIN_MS = 1_000.0
"""A smaller drift is within the uncertainty of a clock reading in an answer."""


class Clock(NodeFault):
    """Skew nodes' wall and monotonic clocks: offset, strobe, drift or frozen."""

    name = "clock"
    family = capabilities.CLOCK
    needs = frozenset({Capability.CLOCK})
    variants = ("leader", "one", "minority", "majority", "followers", "all")

    takes_out = False
    is_wall_only = False

    def configured(self, options: Json) -> Self:
        """Return this fault restricted to options["victims"] and options["clocks"] ("wall")."""
        chosen = super().configured(options)
        chosen.is_wall_only = options.get("clocks") == "wall"
        return chosen

    def draw(self, rng: Random, index: int) -> Json:
        """Draw the change of the clocks."""
        if self.is_wall_only:
            kind = WALL_KINDS[index % len(WALL_KINDS)]
            return {"kind": kind, "change": _draw_wall(kind, rng)}
        kind = KINDS[index % len(KINDS)]
        return {"kind": kind, "change": _draw(kind, rng)}

    def verb(self, plan: Json) -> str:
        """Describe the change: "clock at rate 0.5 (both) of"."""
        return f"{_phrase(ClockChange(**plan['change']))} of"

    async def apply(self, plan: Json, world: World) -> Json:
        """Change each victim's clocks; return the undo, with the readings before."""
        assert isinstance(world, SkewsClocks), "the fault was not available"
        change = ClockChange(**plan["change"])
        before = await _read_all(plan["victims"], 1, world)
        undo: Json = {
            "changes": {},
            "since_s": trio.current_time(),
            "before": {
                node: _as_json(found[0]) if found else None for node, found in before.items()
            },
        }
        async with undone_if_it_fails(self, undo, world):
            for node in plan["victims"]:
                undo["changes"][node] = await world.skew(node, change)
        return undo

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if a victim's clocks were measured to be as wrong as requested."""
        assert isinstance(world, SkewsClocks), "the fault was not available"
        change = ClockChange(**plan["change"])
        readings = await _read_all(list(undo["changes"]), _readings(change), world)
        held_s = trio.current_time() - undo["since_s"]
        parts, untouched, skewed = [], [], 0
        most: dict[str, int | float] = {}
        for node, found in readings.items():
            if not found:
                parts.append(f"{node} shows no clock")
                continue
            last = found[-1]
            if is_as_asked(change, undo["before"][node], found, held_s):
                skewed += 1
                most = {"offset_ms": round(last.offset_ms, 1)}
                if not last.is_wall_only:
                    most["rate"] = round(last.rate, 3)
            elif last.is_wall_only:
                untouched.append(node)
            parts.append(f"{node} {_phrase_reading(last)}")
        if untouched:
            parts.append(f"the program of {', '.join(untouched)} does not notice")
        return Evidence(skewed > 0, "measured: " + ", ".join(parts), {"skewed": skewed, **most})

    async def undo(self, undo: Json, world: World) -> None:
        """Restore the clocks."""
        assert isinstance(world, SkewsClocks), "the fault was not available"
        for node, change in undo["changes"].items():
            await world.unskew(node, change)


def is_as_asked(
    change: ClockChange, before: Json | None, found: Sequence[ClockReading], held_s: float
) -> bool:
    """True if the measured clocks match a change that has been in force for `held_s`."""
    last = found[-1]
    if change.strobe_ms:
        rates = [reading.rate for reading in found]
        if change.which == "monotonic":
            return max(rates) - min(rates) > NEAR_SHARE
        wall = [reading.offset_ms for reading in found]
        return max(wall) - min(wall) > abs(change.offset_ms) / 2
    was = before or {"offset_ms": 0.0, "monotonic_offset_ms": 0.0}
    if change.rate != 1.0:
        if change.which == "wall":  # its rate cannot be measured: compare the drift since
            expected_ms = (change.rate - 1.0) * held_s * 1000
            missed_ms = abs(last.offset_ms - was["offset_ms"] - expected_ms)
            least_ms = FOREIGN_MOVE_MIN_MS if last.is_wall_only else NEAR_MS
            return bool(
                abs(expected_ms) >= least_ms
                and missed_ms <= NEAR_MS + NEAR_SHARE * abs(expected_ms)
            )
        return abs(last.rate - change.rate) <= NEAR_SHARE * abs(1 - change.rate)
    moved = (
        last.monotonic_offset_ms - was["monotonic_offset_ms"]
        if change.which == "monotonic"
        else last.offset_ms - was["offset_ms"]
    )
    return bool(abs(moved - change.offset_ms) <= NEAR_MS + NEAR_SHARE * abs(change.offset_ms))


def _draw(kind: str, rng: Random) -> Json:
    match kind:
        case "drift":
            return {"rate": rng.choice(RATES), "which": "both"}
        case "frozen":
            return {"rate": 0.0, "which": "both"}
        case "strobe":
            return {
                "offset_ms": rng.choice(STROBE_OFFSETS_MS),
                "strobe_ms": rng.choice(STROBES_MS),
                "which": "both",
            }
    which = rng.choice(("wall", "monotonic"))
    offsets = WALL_OFFSETS_MS if which == "wall" else MONOTONIC_OFFSETS_MS
    return {"offset_ms": rng.choice(offsets), "which": which}


def _draw_wall(kind: str, rng: Random) -> Json:
    match kind:
        case "drift":
            return {"rate": rng.choice(FOREIGN_RATES), "which": "wall"}
        case "frozen":
            return {"rate": 0.0, "which": "wall"}
    return {"offset_ms": rng.choice(FOREIGN_OFFSETS_MS), "which": "wall"}


def _phrase(change: ClockChange) -> str:
    if change.strobe_ms:
        what = f"clock strobing by {change.offset_ms:g} ms every {change.strobe_ms:g} ms"
    elif change.rate == 0.0:
        what = "clock frozen"
    elif change.rate != 1.0:
        what = f"clock at rate {change.rate:g}"
    else:
        what = f"clock {change.offset_ms:+g} ms"
    return f"{what} ({change.which})"


def _phrase_reading(reading: ClockReading) -> str:
    wall, monotonic = reading.offset_ms, reading.monotonic_offset_ms
    if reading.is_wall_only:
        return f"wall {wall:+.0f} ms"
    return f"wall {wall:+.0f} ms, monotonic {monotonic:+.0f} ms, rate {reading.rate:.2f}"


def _readings(change: ClockChange) -> int:
    return READINGS_OF_STROBE if change.strobe_ms else 1


def _as_json(reading: ClockReading) -> Json:
    return {
        "offset_ms": reading.offset_ms,
        "monotonic_offset_ms": reading.monotonic_offset_ms,
    }


async def _read_all(
    nodes: Sequence[str], times: int, world: SkewsClocks
) -> dict[str, list[ClockReading]]:
    """Measure the clocks of nodes concurrently; a node that does not answer has no reading."""
    found: dict[str, list[ClockReading]] = {node: [] for node in nodes}

    async def read(node: str) -> None:
        with suppress(IndefiniteError):
            for _ in range(times):
                found[node].append(await world.read_clock(node))

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(read, node)
    return found


PLUGIN = Clock()

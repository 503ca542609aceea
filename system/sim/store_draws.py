"""Draws what concerns the store: key index, native log, big messages, stops, damaged files.

Each seed has some of it. All draws are of streams of their own, so that the rest of a schedule
is the same with and without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shaketable.system.sim.before.apache_log import SHAPES as APACHE_SHAPES
from shaketable.system.sim.fault_draws import GRID_MS, LOSES_A_DISK
from shaketable.system.sim.faults import AnyFault, DamageFile, RefusedChange, Stop
from shaketable.system.sim.file_damage import MUST_BE_NOTICED, REBUILT, WAYS
from shaketable.system.sim.native_messages import SHAPES

if TYPE_CHECKING:
    from shaketable.system.sim.draws import Stream
    from shaketable.system.sim.schedule import Settings

STORE_KINDS = ("stop", "damage_file", "refused_change")
_LEAST_MS = 2_000
"""In a shorter time nothing is drawn."""
_KEYED = 0.4
_BIG = 0.2
_NATIVE = 0.25
_PREFERRED = 0.25
_APACHE = 0.2
_CONFIG = 0.3


def draw_store_settings(draw: Stream, settings: Settings) -> Settings:
    """Return the settings with what this seed has of the store's."""
    if draw.chance(_KEYED):
        settings = msgspec.structs.replace(
            settings,
            # Not fewer: a new member takes a checkpoint for each so many entries of a whole log.
            key_items_max=draw.choice((250, 400, 2_000)),
            key_slots=draw.choice((31, 200, 3_000)),
            key_file_items=draw.choice((50, 300, 2_000)),
            keyed=draw.choice((0.05, 0.3, 1.0)),
        )
    if draw.chance(_BIG):
        settings = msgspec.structs.replace(settings, big_every=draw.choice((100, 400)))
    if draw.chance(_NATIVE):
        settings = msgspec.structs.replace(settings, native_log=draw.choice(SHAPES))
    if draw.chance(_PREFERRED):
        names = [f"n{number}" for number in range(settings.members)]
        draw.shuffle(names)
        preferred = tuple(names[: draw.randint(1, 2)])
        settings = msgspec.structs.replace(settings, preferred_leaders=preferred)
    return _of_older(draw, settings)


def _of_older(draw: Stream, settings: Settings) -> Settings:
    """Return the settings with what stood on the disks before the group."""
    if draw.chance(_APACHE) and not settings.native_log:
        settings = msgspec.structs.replace(settings, apache_log=draw.choice(APACHE_SHAPES))
    return msgspec.structs.replace(settings, older_config=draw.chance(_CONFIG))


def draw_store_faults(
    draw: Stream,
    settings: Settings,
    faults: tuple[AnyFault, ...],
    kinds: tuple[str, ...] | None,
    until_ms: int,
) -> tuple[AnyFault, ...]:
    """Return `faults` and up to four more, in order of time.

    What costs a node its log is drawn once at most, and not beside another fault that does.
    """
    is_alone = settings.members == 1
    own = [
        kind
        for kind in STORE_KINDS
        if (kinds is None or kind in kinds)
        and (draw.chance(0.5) or (is_alone and kind == "refused_change"))
    ]
    if not own or until_ms < _LEAST_MS:
        return faults
    may_lose = settings.members > 2 and all(fault.kind not in LOSES_A_DISK for fault in faults)
    more: list[AnyFault] = []
    for _ in range(draw.randint(1, 4)):
        start_ms = draw.randrange(500, max(1000, until_ms - 500), GRID_MS)
        duration_ms = draw.randrange(GRID_MS, min(1500, until_ms - start_ms), GRID_MS)
        fault = _fault(draw, draw.choice(own), settings, start_ms, duration_ms, may_lose=may_lose)
        may_lose = may_lose and not (isinstance(fault, DamageFile) and fault.file not in REBUILT)
        more.append(fault)
    return tuple(sorted((*faults, *more), key=lambda fault: fault.start_ms))


def _fault(
    draw: Stream, kind: str, settings: Settings, start_ms: int, duration_ms: int, *, may_lose: bool
) -> AnyFault:
    if kind == "refused_change":
        # "unknown" asks a group of one to remove its only voter.
        why = draw.choice(("unknown", "present", "nameless", "no_voter"))
        why = "unknown" if settings.members == 1 else why
        return RefusedChange(start_ms=start_ms, duration_ms=duration_ms, why=why)
    node = draw.choice(("leader", "follower", f"n{draw.randrange(settings.members)}"))
    if kind == "stop":
        loses_power = draw.chance(0.5)
        return Stop(start_ms=start_ms, duration_ms=duration_ms, node=node, loses_power=loses_power)
    loses_log = draw.chance(0.4) and may_lose
    # What the page cache alone has lies behind the mark: that it is lost is noticed by nobody.
    lost = [file for file in MUST_BE_NOTICED if file != "data" or settings.ack == "fsync"]
    file = draw.choice(lost if loses_log else REBUILT)
    return DamageFile(
        start_ms=start_ms,
        duration_ms=duration_ms,
        node=node,
        file=file,
        way=draw.choice(WAYS[file]),
        place=draw.random(),
    )

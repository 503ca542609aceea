"""Draws the faults of a campaign and their times from its seed, and nothing else.

Source: jepsen.generator (mix, stagger), drawn beforehand so that a run can be repeated;
TigerBeetle's one seed, one universe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from harness.campaign import FAULT_DURATION_MIN_S, Campaign, node_names
from harness.draw import draw
from harness.errors import HarnessError, UsageError
from harness.plugins import Fault

FIRST_GAP_MAX_S = 1.0
"""The first fault begins within this time of the chaos phase."""
GAP_SPREAD = 0.25
"""Quiet times differ from `nemesis_interval_s` by this share at most."""
FAULTS_PLANNED_MAX = 100_000

_ROUNDING_S = 1e-6


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a schedule, as drawn: schedule.json holds a list of these.

    `start_s` counts from the beginning of the chaos phase. `plan` may still name roles
    ("leader"); they are aimed when the fault begins.
    """

    number: int
    fault: str
    plan: dict[str, Any]
    start_s: float
    duration_s: float


def schedule(campaign: Campaign, faults: Mapping[str, Fault]) -> list[Planned]:
    """Draw the faults of a resolved campaign: the same list for the same seed.

    Faults are drawn from a bag that is refilled when it is empty, so that every fault
    asked for comes up in each round; a fault's turn is the number of the round. Each
    draw has a stream of its own. A time limit with too little room for one round
    squeezes that round; the chaos phase is filled, and nothing outlasts it.

    Args:
        campaign: with its seed.
        faults: the plug-ins by name; what is asked for and not here is not available.

    Raises:
        UsageError: the time limit leaves no room to try each fault once.
        HarnessError: a fault's plan is no JSON.
    """
    assert campaign.seed is not None, "a schedule is drawn from a seed"
    names = sorted(set(campaign.faults) & faults.keys())
    room_s = campaign.time_limit_s - campaign.steady_s
    if not names:
        return []
    squeeze = _squeeze(campaign, len(names), room_s)
    nodes = node_names(campaign)
    planned: list[Planned] = []
    end_s = 0.0
    while len(planned) < FAULTS_PLANNED_MAX:
        number = len(planned)
        gap_s, duration_s = _timing(campaign, number)
        start_s = end_s + gap_s * squeeze
        end_s = start_s + duration_s * squeeze
        if end_s > room_s + _ROUNDING_S:
            break
        turn, place = divmod(number, len(names))
        bag = draw(campaign.seed, "nemesis", "round", turn).sample(names, len(names))
        fault = faults[bag[place]]
        drawn = fault.plan(draw(campaign.seed, "nemesis", "plan", fault.name, turn), nodes, turn)
        planned.append(
            Planned(
                number=number,
                fault=fault.name,
                plan=_as_json(fault.name, drawn),
                start_s=round(start_s, 3),
                duration_s=round(end_s - start_s, 3),
            )
        )
    return planned


def encode_schedule(planned: Iterable[Planned]) -> bytes:
    """Write a schedule as the JSON of schedule.json."""
    return msgspec.json.format(msgspec.json.encode(list(planned)), indent=2) + b"\n"


def decode_schedule(data: bytes, where: str) -> list[Planned]:
    """Read what `encode_schedule` wrote; `where` names the file in errors.

    Raises:
        UsageError: it is no schedule.
    """
    try:
        return msgspec.json.decode(data, type=list[Planned])
    except msgspec.DecodeError as error:
        raise UsageError(f"{where}: no schedule of faults: {error}") from error


def _timing(campaign: Campaign, number: int) -> tuple[float, float]:
    """Draw (quiet time before, duration) of the numbered fault."""
    rng = draw(campaign.seed or "", "nemesis", "timing", number)
    quiet_s = campaign.nemesis_interval_s * rng.uniform(1 - GAP_SPREAD, 1 + GAP_SPREAD)
    first_s = min(FIRST_GAP_MAX_S, campaign.nemesis_interval_s) * rng.random()
    duration_s = rng.uniform(campaign.fault_duration_min_s, campaign.fault_duration_max_s)
    return (quiet_s if number else first_s), duration_s


def _squeeze(campaign: Campaign, count: int, room_s: float) -> float:
    """Return the factor (at most 1) by which times shrink so that `count` faults fit."""
    needed_s = sum(sum(_timing(campaign, number)) for number in range(count))
    squeeze = min(1.0, room_s / needed_s) if needed_s else 1.0
    least_s = min(_timing(campaign, number)[1] for number in range(count))
    if least_s * squeeze < min(FAULT_DURATION_MIN_S, least_s):
        enough_s = campaign.steady_s + needed_s
        raise UsageError(
            f"time_limit {campaign.time_limit_s:g} s leaves {max(room_s, 0):g} s for faults, too "
            f"little to try each of {count} once: give {math.ceil(enough_s)} s, or fewer faults"
        )
    return squeeze


def _as_json(fault: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan as it comes back from schedule.json, so that a replay applies the same."""
    try:
        return msgspec.json.decode(msgspec.json.encode(plan), type=dict[str, Any])
    except (TypeError, msgspec.MsgspecError, ValueError) as error:
        raise HarnessError(f"fault {fault}: its plan is no JSON: {error}") from error

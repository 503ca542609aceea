"""Draws the faults of a campaign and their times from its seed, and nothing else.

Source: jepsen.generator (mix, stagger, cycle), drawn beforehand so that a run can be repeated;
TigerBeetle's one seed, one universe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from harness import blame
from harness.campaign import Campaign, fault_options, node_names
from harness.draw import draw
from harness.errors import HarnessError, UsageError
from harness.limits import FAULT_DURATION_MIN_S
from harness.plan_values import check_values
from harness.plugins import Fault
from harness.scripts import Step
from harness.words import Acts

FIRST_GAP_MAX_S = 1.0
"""The first fault begins within this time of the chaos phase."""
GAP_SPREAD = 0.25
"""Quiet times differ from `nemesis_interval_s` by this share at most."""
FAULTS_PLANNED_MAX = 100_000

_ROUNDING_S = 1e-6


class Planned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault of a schedule, as drawn: schedule.json holds a list of these.

    `start_s` counts from the beginning of the chaos phase. `plan` may still name roles
    ("leader"); they are aimed when the fault begins. One with `on` begins `after_s` after the
    `nth` event of that name (`harness.scripts`), and may not begin at all.
    """

    number: int
    fault: str
    plan: dict[str, Any]
    start_s: float
    duration_s: float
    on: str | None = None
    nth: int = 1
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Slot:
    """One fault of a lane: which, in which turn of it, after which quiet time, for how long."""

    fault: Fault
    turn: int
    gap_s: float
    duration_s: float


def schedule(campaign: Campaign, faults: Mapping[str, Fault]) -> list[Planned]:
    """Draw the faults of a resolved campaign: the same list for the same seed.

    Faults are drawn from a bag that is refilled when it is empty (in a sequence: taken in the
    order in which they are named), so that every fault asked for comes up in each round; a
    fault's turn is the number of the round. Each draw has a stream of its own, and so has each
    of `faults_at_once` lanes. A time limit with too little room for one round squeezes that
    round; the chaos phase is filled, and nothing outlasts it. Those of the script come last.

    Args:
        campaign: with its seed.
        faults: the plug-ins by name; what is asked for and not here is not available.

    Raises:
        UsageError: the time limit leaves no room to try each fault once, or the script sets
            what a fault's plan does not have or cannot be, or lasts too long.
        HarnessError: a fault's plan cannot be drawn, or is no JSON.
    """
    assert campaign.seed is not None, "a schedule is drawn from a seed"
    names = [name for name in dict.fromkeys(campaign.faults) if name in faults]
    if campaign.nemesis_schedule != "sequence":
        names.sort()
    planned: list[Planned] = []
    for lane in range(campaign.faults_at_once if names else 0):
        planned += _lane(campaign, faults, names, lane)
    planned.sort(key=lambda one: one.start_s)
    numbered = [msgspec.structs.replace(one, number=number) for number, one in enumerate(planned)]
    return numbered + _scripted(campaign, faults, len(numbered))


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


def _lane(
    campaign: Campaign, faults: Mapping[str, Fault], names: Sequence[str], lane: int
) -> Iterator[Planned]:
    """Draw one lane: faults that follow each other until the chaos phase is full."""
    room_s = campaign.time_limit_s - campaign.steady_s
    squeeze = _squeeze(campaign, faults, names, lane, room_s)
    nodes = node_names(campaign)
    end_s = 0.0
    for number in range(FAULTS_PLANNED_MAX):
        slot = _slot(campaign, faults, names, lane, number)
        start_s = end_s + slot.gap_s * squeeze
        end_s = start_s + slot.duration_s * squeeze
        if end_s > room_s + _ROUNDING_S:
            return
        fault, turn = slot.fault, slot.turn
        rng = draw(campaign.seed or "", "nemesis", "plan", fault.name, turn, *_of_lane(lane))
        yield Planned(
            number=number,
            fault=fault.name,
            plan=_plan(fault, rng, nodes, turn),
            start_s=round(start_s, 3),
            duration_s=round(end_s - start_s, 3),
        )


def _plan(fault: Fault, rng: Random, nodes: Sequence[str], turn: int) -> dict[str, Any]:
    try:
        with blame.blamed():
            plan = fault.plan(rng, nodes, turn)
    except blame.PlugInError as error:
        raise HarnessError(f"fault {fault.name}: its plan fails: {error}") from error
    return _as_json(fault.name, plan)


def least_s(fault: Fault, nodes: Sequence[str]) -> float:
    """How long a fault must hold at least, in seconds; 0 for one that does not say.

    Raises:
        HarnessError: it cannot be asked; one line names it and says why.
    """
    if not isinstance(fault, Acts):
        return 0.0
    try:
        with blame.blamed():
            return blame.seconds(fault.least_s(nodes), "it returned")
    except blame.PlugInError as error:
        raise HarnessError(f"fault {fault.name}: its least_s fails: {error}") from error


def _slot(
    campaign: Campaign, faults: Mapping[str, Fault], names: Sequence[str], lane: int, number: int
) -> _Slot:
    """Draw which fault is the numbered one of a lane, the quiet time before it, its duration."""
    turn, place = divmod(number, len(names))
    bag = list(names)
    if campaign.nemesis_schedule != "sequence":
        rng = draw(campaign.seed or "", "nemesis", "round", turn, *_of_lane(lane))
        bag = rng.sample(bag, len(bag))
    fault = faults[bag[place]]
    gap_s, duration_s = _timing(campaign, number, lane)
    duration_s = max(duration_s, least_s(fault, node_names(campaign)))
    return _Slot(fault, turn, gap_s, duration_s)


def _timing(campaign: Campaign, number: int, lane: int) -> tuple[float, float]:
    """Draw (quiet time before, duration) of the numbered fault of a lane."""
    interval_s = campaign.nemesis_interval_s
    shortest_s, longest_s = campaign.fault_duration_min_s, campaign.fault_duration_max_s
    if campaign.nemesis_schedule == "periodic":
        first_s = interval_s * lane / campaign.faults_at_once  # lanes take turns
        return (interval_s if number else first_s), (shortest_s + longest_s) / 2
    rng = draw(campaign.seed or "", "nemesis", "timing", number, *_of_lane(lane))
    quiet_s = interval_s * rng.uniform(1 - GAP_SPREAD, 1 + GAP_SPREAD)
    first_s = min(FIRST_GAP_MAX_S, interval_s) * rng.random()
    return (quiet_s if number else first_s), rng.uniform(shortest_s, longest_s)


def _of_lane(lane: int) -> tuple[str | int, ...]:
    """What the names of a lane's draws end in: nothing for the first, whatever others there are."""
    return ("lane", lane) if lane else ()


def _squeeze(
    campaign: Campaign, faults: Mapping[str, Fault], names: Sequence[str], lane: int, room_s: float
) -> float:
    """Return the factor (at most 1) by which times shrink so that one round fits."""
    slots = [_slot(campaign, faults, names, lane, number) for number in range(len(names))]
    needed_s = sum(slot.gap_s + slot.duration_s for slot in slots)
    squeeze = min(1.0, room_s / needed_s) if needed_s else 1.0
    shortest_s = min(slot.duration_s for slot in slots)
    if shortest_s * squeeze < min(FAULT_DURATION_MIN_S, shortest_s):
        enough_s = campaign.steady_s + needed_s
        raise UsageError(
            f"time_limit {campaign.time_limit_s:g} s leaves {max(room_s, 0):g} s for faults, too "
            f"little to try each of {len(names)} once: give {math.ceil(enough_s)} s, or fewer "
            "faults"
        )
    return squeeze


def _scripted(campaign: Campaign, faults: Mapping[str, Fault], first_number: int) -> list[Planned]:
    """Return the faults of the script, each with what its entry sets in place of what is drawn."""
    nodes, options = node_names(campaign), fault_options(campaign)
    planned: list[Planned] = []
    for entry, step in enumerate(campaign.script, 1):
        if step.fault not in faults:
            continue
        _check_time(campaign, step, entry)
        fault = faults[step.fault]
        if step.victims:
            fault = blame.configured(fault, {**options, "victims": list(step.victims)})
        for turn in range(step.times):
            rng = draw(campaign.seed or "", "nemesis", "script", entry, turn)
            plan = _plan(fault, rng, nodes, turn)
            _check_plan(step, plan, entry)
            try:
                check_values(fault, plan, step.plan, nodes, options)
            except UsageError as error:
                raise UsageError(f"script {entry}: {error}") from error
            planned.append(
                Planned(
                    number=first_number + len(planned),
                    fault=fault.name,
                    plan={**plan, **step.plan},
                    start_s=step.at or 0.0,
                    duration_s=step.duration,
                    on=step.on,
                    nth=turn + 1,
                    after_s=step.after,
                )
            )
    return planned


def _check_time(campaign: Campaign, step: Step, entry: int) -> None:
    room_s = campaign.time_limit_s - campaign.steady_s
    if step.at is not None and step.at + step.duration > room_s + _ROUNDING_S:
        raise UsageError(
            f"script {entry}: {step} for {step.duration:g} s ends after the {max(room_s, 0):g} s"
            f" that time_limit {campaign.time_limit_s:g} s leaves for faults"
        )


def _check_plan(step: Step, plan: Mapping[str, Any], entry: int) -> None:
    for key in step.plan:
        if key not in plan:
            there_are = ", ".join(sorted(plan))
            raise UsageError(
                f"script {entry}: {key!r} is neither a key of a script nor one of the plan of "
                f"{step.fault} (there are: {there_are})"
            )


def _as_json(fault: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan as it comes back from schedule.json, so that a replay applies the same."""
    try:
        return msgspec.json.decode(msgspec.json.encode(plan), type=dict[str, Any])
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:  # msgspec's, too
        raise HarnessError(f"fault {fault}: its plan is no JSON: {error}") from error

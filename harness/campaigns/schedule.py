"""Draws the faults of a campaign and their times from its seed, and nothing else.

Source: jepsen.generator (mix, stagger, cycle), drawn beforehand so that a run can be repeated;
TigerBeetle's one seed, one universe.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import msgspec

from shaketable.harness import blame, discovery
from shaketable.harness.campaigns import scenarios
from shaketable.harness.campaigns.campaign import (
    FAULT_DURATION_MIN_S,
    Campaign,
    fault_options,
    node_names,
)
from shaketable.harness.campaigns.plan_values import check_values
from shaketable.harness.campaigns.scenarios import SCENARIOS, Scenario, Setting, span_s
from shaketable.harness.campaigns.scripts import Step
from shaketable.harness.contracts.abilities import TransfersLeadership
from shaketable.harness.contracts.capabilities import Acts
from shaketable.harness.contracts.draw import draw
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Fault, Target

FIRST_GAP_MAX_S = 1.0
"""The first fault begins within this time of the chaos phase."""
GAP_SPREAD = 0.25
"""Quiet times differ from `nemesis_interval_s` by this share at most."""
SCENARIOS_SHARE = 0.5
"""So many scenarios come up in a round, for each of its faults."""
SQUEEZE_MIN = 0.5
"""A round that would have to shrink to less has fewer scenarios."""
LAST_SHARE_MAX = 0.1
"""What comes at the end takes this part of the chaos phase at most, or does not come."""
FAULTS_PLANNED_MAX = 100_000

_ROUNDING_S = 1e-6


class Planned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault of a schedule, as drawn: schedule.json holds a list of these.

    `start_s` counts from the beginning of the chaos phase. `plan` may still name roles ("leader");
    they are aimed when the fault begins. One with `on` begins `after_s` after the `nth` event of
    that name (`harness.campaigns.scripts`) since `start_s`, by `until_s` if that is given, and may
    not begin at all. `scenario` is of which it is a step ("figure-8 2", or "script"): these share a
    cast, `roles` are whom of it this one strikes, `remember` is what they are called from then on
    (`harness.campaigns.scenarios`).
    """

    number: int
    fault: str
    plan: dict[str, Any]
    start_s: float
    duration_s: float
    on: str | None = None
    nth: int = 1
    after_s: float = 0.0
    until_s: float | None = None
    scenario: str = ""
    roles: str = ""
    remember: str = ""


SCRIPT = "script"
"""The scenario of all faults of a script: they have a cast of their own."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """One place of a lane: a fault in a turn of it, or a scenario's steps; how long, after what."""

    what: Fault | tuple[Step, ...]
    turn: int
    gap_s: float
    duration_s: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Deck:
    """What the slots of a lane are drawn from: in each round each fault once, and some scenarios.

    Scenarios have a deck of their own, from which each round takes so many, so that in the end
    each has come up as often as the others.
    """

    names: Sequence[str]
    scenarios: Sequence[Scenario]
    scenarios_a_round: int

    @property
    def size(self) -> int:
        """How many slots a round has."""
        return len(self.names) + self.scenarios_a_round


def schedule(campaign: Campaign, faults: Mapping[str, Fault]) -> list[Planned]:
    """Draw the faults of a resolved campaign: the same list for the same seed.

    Faults are drawn from a bag that is refilled when it is empty (in a sequence: taken in the
    order in which they are named), so that every fault asked for comes up in each round; a
    fault's turn is the number of the round. Between them come scenarios, as many as half of the
    faults, where the campaign has any. Each draw has a stream of its own, and so has each
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
    scenarios = chosen(campaign, names)
    between = [each for each in scenarios if not each.is_last]
    deck = _Deck(names, between, min(len(between), math.ceil(len(names) * SCENARIOS_SHARE)))
    room_s = campaign.time_limit_s - campaign.steady_s
    last = [_last(campaign, faults, each, room_s) for each in scenarios if each.is_last]
    planned = [one for steps in last for one in steps]
    room_s = min([room_s, *(one.start_s for one in planned)])
    for lane in range(campaign.faults_at_once if names else 0):
        planned += _lane(campaign, faults, deck, lane, room_s)
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
    campaign: Campaign, faults: Mapping[str, Fault], deck: _Deck, lane: int, room_s: float
) -> Iterator[Planned]:
    """Draw one lane: faults that follow each other until the chaos phase is full."""
    deck, squeeze = _fitted(campaign, faults, deck, lane, room_s)
    nodes = node_names(campaign)
    end_s = 0.0
    for number in range(FAULTS_PLANNED_MAX):
        slot = _slot(campaign, faults, deck, lane, number)
        start_s = end_s + slot.gap_s * squeeze
        end_s = start_s + _squeezed_s(slot, squeeze)
        if end_s > room_s + _ROUNDING_S:
            return
        if isinstance(slot.what, tuple):
            yield from _staged(campaign, faults, slot, start_s, squeeze)
            continue
        fault, turn = slot.what, slot.turn
        rng = draw(campaign.seed or "", "nemesis", "plan", fault.name, turn, *_of_lane(lane))
        yield Planned(
            number=number,
            fault=fault.name,
            plan=_plan(fault, rng, nodes, turn),
            start_s=round(start_s, 3),
            duration_s=round(end_s - start_s, 3),
        )


def _staged(
    campaign: Campaign, faults: Mapping[str, Fault], slot: _Slot, start_s: float, squeeze: float
) -> Iterator[Planned]:
    """Return the faults of a scenario that begins then, its times shrunk by a factor."""
    assert isinstance(slot.what, tuple), "the slot is that of a scenario"
    end_s = start_s + slot.duration_s * squeeze
    for entry, step in enumerate(slot.what, 1):
        after_s, duration_s = step.after * squeeze, step.duration * squeeze
        begins_s = start_s + (step.at or 0.0) * squeeze
        for turn in range(step.times):
            rng = draw(campaign.seed or "", "nemesis", "scenario", slot.name, entry, turn)
            drawn = _of_step(campaign, faults, step, rng, turn, slot.name)
            # An event counts from the scenario's beginning; what waits for it is over with it.
            yield msgspec.structs.replace(
                drawn,
                start_s=round(begins_s, 3),
                duration_s=round(duration_s, 3),
                after_s=round(after_s, 3),
                until_s=None if step.on is None else round(end_s - duration_s, 3),
            )


def _last(
    campaign: Campaign, faults: Mapping[str, Fault], scenario: Scenario, room_s: float
) -> list[Planned]:
    """Return the faults of a scenario that ends with the chaos phase; none if that is too short."""
    steps = _steps(campaign, faults, scenario, scenario.name)
    slot = _Slot(steps, 0, 0.0, span_s(steps), scenario.name)
    start_s = room_s - slot.duration_s
    if start_s < room_s * (1 - LAST_SHARE_MAX):
        return []
    return list(_staged(campaign, faults, slot, start_s, 1.0))


def _steps(
    campaign: Campaign, faults: Mapping[str, Fault], scenario: Scenario, name: str, lane: int = 0
) -> tuple[Step, ...]:
    """Draw the steps of a scenario, of the faults that the campaign draws from."""
    can = frozenset(name for name in campaign.faults if name in faults) | scenario.faults
    setting = Setting(campaign.nodes, can & faults.keys(), campaign.leases_ms)
    rng = draw(campaign.seed or "", "nemesis", "scenario", name, *_of_lane(lane))
    return tuple(scenario.steps(rng, setting))


def _plan(fault: Fault, rng: Random, nodes: Sequence[str], turn: int) -> dict[str, Any]:
    try:
        with blame.blamed():
            plan = fault.plan(rng, nodes, turn)
    except blame.PlugInError as error:
        raise HarnessError(f"fault {fault.name}: its plan fails: {error}") from error
    return _as_json(fault.name, plan)


def min_duration_s(fault: Fault, nodes: Sequence[str]) -> float:
    """How long a fault must hold at least, in seconds; 0 for one that does not say.

    Raises:
        HarnessError: it cannot be asked; one line names it and says why.
    """
    if not isinstance(fault, Acts):
        return 0.0
    try:
        with blame.blamed():
            return blame.seconds(fault.min_duration_s(nodes), "it returned")
    except blame.PlugInError as error:
        raise HarnessError(f"fault {fault.name}: its min_duration_s fails: {error}") from error


def _slot(
    campaign: Campaign, faults: Mapping[str, Fault], deck: _Deck, lane: int, number: int
) -> _Slot:
    """Draw which fault is the numbered one of a lane, the quiet time before it, its duration."""
    turn, place = divmod(number, deck.size)
    bag: list[str | int] = list(deck.names)
    if campaign.nemesis_schedule != "sequence":
        rng = draw(campaign.seed or "", "nemesis", "round", turn, *_of_lane(lane))
        bag = rng.sample(bag, len(bag))
    among = draw(campaign.seed or "", "nemesis", "scenarios", turn, *_of_lane(lane))
    for nth in range(deck.scenarios_a_round):
        bag.insert(among.randint(0, len(bag)), turn * deck.scenarios_a_round + nth)
    gap_s, duration_s = _timing(campaign, number, lane)
    drawn = bag[place]
    if isinstance(drawn, int):
        scenario = _scenario(campaign, deck, lane, drawn)
        name = " ".join([scenario.name, str(drawn + 1), *map(str, _of_lane(lane))])
        steps = _steps(campaign, faults, scenario, name)
        return _Slot(steps, turn, gap_s, span_s(steps), name)
    fault = faults[drawn]
    duration_s = max(duration_s, min_duration_s(fault, node_names(campaign)))
    return _Slot(fault, turn, gap_s, duration_s)


def _scenario(campaign: Campaign, deck: _Deck, lane: int, number: int) -> Scenario:
    """Return the numbered scenario of a lane, from a deck that is shuffled when it is empty."""
    shuffle, place = divmod(number, len(deck.scenarios))
    rng = draw(campaign.seed or "", "nemesis", "deck", shuffle, *_of_lane(lane))
    return rng.sample(list(deck.scenarios), len(deck.scenarios))[place]


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
    return (quiet_s if number else first_s), _between(rng, shortest_s, longest_s)


def _between(rng: Random, shortest_s: float, longest_s: float) -> float:
    """Draw a duration; each doubling is as likely, so that short ones are not rare."""
    return math.exp(rng.uniform(math.log(shortest_s), math.log(longest_s)))


def _of_lane(lane: int) -> tuple[str | int, ...]:
    """What the names of a lane's draws end in: nothing for the first, whatever others there are."""
    return ("lane", lane) if lane else ()


def _fitted(
    campaign: Campaign, faults: Mapping[str, Fault], deck: _Deck, lane: int, room_s: float
) -> tuple[_Deck, float]:
    """Return the deck and the factor (at most 1) by which times shrink so that one round fits.

    Scenarios make room first: a round that would shrink to less than half of itself has fewer.
    """
    for many in range(deck.scenarios_a_round, -1, -1):
        less = replace(deck, scenarios_a_round=many)
        slots = [_slot(campaign, faults, less, lane, number) for number in range(less.size)]
        squeeze = _squeeze(slots, room_s)
        if squeeze >= SQUEEZE_MIN or not many:
            break
    if squeeze <= 0.0:
        needed_s = sum(slot.gap_s + slot.duration_s for slot in slots)
        raise UsageError(
            f"time_limit {campaign.time_limit_s:g} s leaves {max(room_s, 0):g} s for faults, too "
            f"little to try each of {len(deck.names)} once: give "
            f"{math.ceil(campaign.steady_s + needed_s)} s, or fewer faults"
        )
    return less, squeeze


def _squeezed_s(slot: _Slot, squeeze: float) -> float:
    """Return how long a slot holds when times shrink; no single fault gets shorter than it may."""
    if isinstance(slot.what, tuple):
        return slot.duration_s * squeeze
    return max(slot.duration_s * squeeze, min(FAULT_DURATION_MIN_S, slot.duration_s))


def _squeeze(slots: Sequence[_Slot], room_s: float) -> float:
    """Return the largest factor, at most 1, by which these slots fit; 0 if none does."""
    for hundredths in range(100, 0, -1):
        squeeze = hundredths / 100
        if sum(slot.gap_s * squeeze + _squeezed_s(slot, squeeze) for slot in slots) <= room_s:
            return squeeze
    return 0.0


def _scripted(campaign: Campaign, faults: Mapping[str, Fault], first_number: int) -> list[Planned]:
    """Return the faults of the script, each with what its entry sets in place of what is drawn."""
    planned: list[Planned] = []
    for entry, step in enumerate(campaign.script, 1):
        where = f"script {entry}"
        if step.scenario:
            planned += _scripted_scenario(campaign, faults, step, where)
            continue
        if step.fault not in faults:
            continue
        _check_time(campaign, step, step.duration, where)
        for turn in range(step.times):
            rng = draw(campaign.seed or "", "nemesis", "script", entry, turn)
            planned.append(_of_step(campaign, faults, step, rng, turn, where))
    return [
        msgspec.structs.replace(one, number=first_number + number)
        for number, one in enumerate(planned)
    ]


def _scripted_scenario(
    campaign: Campaign, faults: Mapping[str, Fault], step: Step, where: str
) -> list[Planned]:
    """Return the faults of a scenario that a script names; none if it lacks one of them."""
    scenario = SCENARIOS[step.scenario]
    if not scenario.faults <= faults.keys():
        return []
    name = f"{scenario.name} of {where}"
    steps = _steps(campaign, faults, scenario, name)
    slot = _Slot(steps, 0, 0.0, span_s(steps), name)
    _check_time(campaign, step, slot.duration_s, where)
    return list(_staged(campaign, faults, slot, step.at or 0.0, 1.0))


def _of_step(
    campaign: Campaign,
    faults: Mapping[str, Fault],
    step: Step,
    rng: Random,
    turn: int,
    where: str,
) -> Planned:
    """Draw the fault of a step, with what the step sets in place of what is drawn.

    Raises:
        UsageError: its victims or its plan cannot be.
    """
    nodes, options = node_names(campaign), fault_options(campaign)
    try:
        roles = scenarios.roles_of(step.victims)
        fault = faults[step.fault]
        if step.victims:
            # Who plays a role is not known yet: the plan is one that names its victims.
            victims = ["leader"] if roles else list(step.victims)
            fault = blame.configured(fault, {**options, "victims": victims})
        plan = _plan(fault, rng, nodes, turn)
        _check_plan(step, plan)
        check_values(fault, plan, step.plan, nodes, options)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return Planned(
        number=0,
        fault=fault.name,
        plan={**plan, **step.plan},
        start_s=step.at or 0.0,
        duration_s=step.duration,
        on=step.on,
        nth=turn + 1,
        after_s=step.after,
        scenario=SCRIPT if where.startswith(SCRIPT) else where,
        roles=roles,
        remember=step.remember,
    )


def _check_time(campaign: Campaign, step: Step, duration_s: float, where: str) -> None:
    room_s = campaign.time_limit_s - campaign.steady_s
    if step.at is not None and step.at + duration_s > room_s + _ROUNDING_S:
        raise UsageError(
            f"{where}: {step} for {duration_s:g} s ends after the {max(room_s, 0):g} s"
            f" that time_limit {campaign.time_limit_s:g} s leaves for faults"
        )


def _check_plan(step: Step, plan: Mapping[str, Any]) -> None:
    for key in step.plan:
        if key not in plan:
            there_are = ", ".join(sorted(plan))
            raise UsageError(
                f"{key!r} is neither a key of a script nor one of the plan of "
                f"{step.fault} (there are: {there_are})"
            )


def _as_json(fault: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan as it comes back from schedule.json, so that a replay applies the same."""
    try:
        return msgspec.json.decode(msgspec.json.encode(plan), type=dict[str, Any])
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:  # msgspec's, too
        raise HarnessError(f"fault {fault}: its plan is no JSON: {error}") from error


# Which scenarios a campaign draws from, and why it does not draw from others.

ALL: Final = ("all",)
"""What `scenarios` says for all that can be made of the faults that a campaign draws from."""


def chosen(campaign: Campaign, faults: Collection[str]) -> list[Scenario]:
    """Return the scenarios that a campaign's schedule has, in the order of their names.

    Those named, as far as they can be made of the faults that are there; under "all" none where
    the campaign itself says whom to strike, or in which order and at which times.

    Args:
        campaign: resolved.
        faults: names of those that it draws from, and that there are.
    """
    if campaign.scenarios == ALL and (campaign.victims or campaign.nemesis_schedule != "random"):
        return []
    return [
        SCENARIOS[name]
        for name in sorted(_asked(campaign))
        if why_not(SCENARIOS[name], campaign, faults) is None
    ]


def why_not(scenario: Scenario, campaign: Campaign, faults: Collection[str]) -> str | None:
    """Say in a few words why a campaign cannot have a scenario; None if it can."""
    lacking = sorted(scenario.faults - set(faults))
    if lacking:
        return f"it needs {', '.join(lacking)}"
    if campaign.nodes < scenario.nodes_min:
        return f"it needs {scenario.nodes_min} nodes"
    target: Target = discovery.get("targets", campaign.target)
    if scenario.elects and not (
        target.promises.committed_prefix or isinstance(target, TransfersLeadership)
    ):
        return f"{target.name} elects no leader"
    if scenario.is_last and not scenario.faults <= target.promises.durable_under:
        return f"{target.name} promises nothing under {', '.join(sorted(scenario.faults))}"
    return None


def _asked(campaign: Campaign) -> Iterable[str]:
    return SCENARIOS if campaign.scenarios == ALL else campaign.scenarios

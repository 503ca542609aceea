"""Generate a campaign's schedule, its faults and their times, from its seed and nothing else.

Source: jepsen.generator (mix, stagger, cycle), but generated beforehand so that a run can be
repeated; TigerBeetle's one seed, one universe.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any, Final

import msgspec

from shaketable.harness import plugin_calls
from shaketable.harness.campaigns import scenarios
from shaketable.harness.campaigns.campaign import (
    FAULT_DURATION_MIN_S,
    Campaign,
    fault_options,
    node_names,
    target_of,
)
from shaketable.harness.campaigns.scenarios import SCENARIOS, Scenario, Setting, span_s
from shaketable.harness.campaigns.scripts import Step, check_values
from shaketable.harness.contracts.abilities import TransfersLeadership
from shaketable.harness.contracts.capabilities import Acts
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Fault
from shaketable.harness.contracts.rng import rng_for

FIRST_GAP_MAX_S = 1.0
"""The first fault starts within this time of the chaos phase."""
GAP_SPREAD = 0.25
"""Quiet times differ from `nemesis_interval_s` by this share at most."""
SCENARIOS_SHARE = 0.5
"""Scenarios in a round, for each of its faults."""
SQUEEZE_MIN = 0.5
"""A round that would have to be squeezed further than this gets fewer scenarios."""
LAST_SHARE_MAX = 0.1
"""A final scenario may take this share of the chaos phase at most; a longer one is left out."""
FAULTS_PLANNED_MAX = 100_000

_ROUNDING_S = 1e-6


class Planned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault of a schedule. schedule.json holds a list of these.

    Attributes:
        number: its position in the schedule.
        fault: the fault's name.
        plan: may still name roles ("leader"), which are resolved when the fault starts.
        start_s: seconds from the start of the chaos phase.
        duration_s: how long it lasts, in seconds.
        on: an event (`harness.campaigns.scripts`). The fault starts `after_s` after the `nth` such
            event since `start_s`, by `until_s` if given, and may not start at all.
        nth: see `on`.
        after_s: see `on`.
        until_s: see `on`.
        scenario: the scenario that it is a step of ("figure-8 2", or "script"); its steps share a
            cast.
        roles: the roles of the cast that it strikes (`harness.campaigns.scenarios`).
        remember: a name that its victims get in the cast.
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
"""The scenario of all faults of a script, which have a cast of their own."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """One slot of a lane: a fault, or a scenario's steps; its round, duration and preceding gap."""

    what: Fault | tuple[Step, ...]
    index: int
    gap_s: float
    duration_s: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Deck:
    """What the slots of a lane are chosen from: in each round each fault once, and some scenarios.

    Scenarios have a deck of their own, from which each round takes `scenarios_a_round`, so that
    each comes up as often as the others.
    """

    names: Sequence[str]
    scenarios: Sequence[Scenario]
    scenarios_a_round: int

    @property
    def size(self) -> int:
        """The number of slots in a round."""
        return len(self.names) + self.scenarios_a_round


def schedule(campaign: Campaign, faults: Mapping[str, Fault]) -> list[Planned]:
    """Return the faults of a resolved campaign: the same list for the same seed.

    Faults are taken from a bag that is refilled when empty (in a sequence: in the order in which
    they are named), so that every requested fault comes up once in each round. Scenarios come
    between them, half as many as there are faults, if the campaign has any. Each random choice has
    a stream of its own, and so has each of `faults_at_once` lanes. If the time limit is too short
    for one round, that round is squeezed. The chaos phase is filled, and no fault outlasts it.
    Faults of the script come last.

    Args:
        campaign: with its seed.
        faults: the plug-ins by name; a requested fault that is missing here is not available.

    Raises:
        UsageError: the time limit leaves no room to try each fault once; or the script is too long,
            or sets a key that a fault's plan does not have, or an invalid value.
        HarnessError: a fault's plan raises, or is not JSON.
    """
    assert campaign.seed is not None, "a schedule is drawn from a seed"
    names = [name for name in dict.fromkeys(campaign.faults) if name in faults]
    if campaign.nemesis_schedule != "sequence":
        names.sort()
    scenarios = scenarios_of(campaign, names)
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
    """Encode a schedule as the JSON of schedule.json."""
    return msgspec.json.format(msgspec.json.encode(list(planned)), indent=2) + b"\n"


def decode_schedule(data: bytes, where: str) -> list[Planned]:
    """Decode what `encode_schedule` wrote; `where` names the file in errors.

    Raises:
        UsageError: it is not a schedule.
    """
    try:
        return msgspec.json.decode(data, type=list[Planned])
    except msgspec.DecodeError as error:
        raise UsageError(f"{where}: no schedule of faults: {error}") from error


def _lane(
    campaign: Campaign, faults: Mapping[str, Fault], deck: _Deck, lane: int, room_s: float
) -> Iterator[Planned]:
    """Generate one lane: faults that follow each other until the chaos phase is full."""
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
        fault, index = slot.what, slot.index
        rng = rng_for(campaign.seed or "", "nemesis", "plan", fault.name, index, *_of_lane(lane))
        yield Planned(
            number=number,
            fault=fault.name,
            plan=_plan(fault, rng, nodes, index),
            start_s=round(start_s, 3),
            duration_s=round(end_s - start_s, 3),
        )


def _staged(
    campaign: Campaign, faults: Mapping[str, Fault], slot: _Slot, start_s: float, squeeze: float
) -> Iterator[Planned]:
    """Return the faults of a scenario that starts at `start_s`, with its times squeezed."""
    assert isinstance(slot.what, tuple), "the slot is that of a scenario"
    end_s = start_s + slot.duration_s * squeeze
    for entry, step in enumerate(slot.what, 1):
        after_s, duration_s = step.after * squeeze, step.duration * squeeze
        begins_s = start_s + (step.at or 0.0) * squeeze
        for index in range(step.times):
            rng = rng_for(campaign.seed or "", "nemesis", "scenario", slot.name, entry, index)
            generated = _of_step(campaign, faults, step, rng, index, slot.name)
            # Events count from the scenario's start; a step still waiting at its end is dropped.
            yield msgspec.structs.replace(
                generated,
                start_s=round(begins_s, 3),
                duration_s=round(duration_s, 3),
                after_s=round(after_s, 3),
                until_s=None if step.on is None else round(end_s - duration_s, 3),
            )


def _last(
    campaign: Campaign, faults: Mapping[str, Fault], scenario: Scenario, room_s: float
) -> list[Planned]:
    """Return the faults of a scenario at the end of the chaos phase; none if it does not fit."""
    steps = _steps(campaign, faults, scenario, scenario.name)
    slot = _Slot(steps, 0, 0.0, span_s(steps), scenario.name)
    start_s = room_s - slot.duration_s
    if start_s < room_s * (1 - LAST_SHARE_MAX):
        return []
    return list(_staged(campaign, faults, slot, start_s, 1.0))


def _steps(
    campaign: Campaign, faults: Mapping[str, Fault], scenario: Scenario, name: str, lane: int = 0
) -> tuple[Step, ...]:
    """Generate the steps of a scenario, made of the campaign's faults."""
    can = frozenset(name for name in campaign.faults if name in faults) | scenario.faults
    setting = Setting(campaign.nodes, can & faults.keys(), campaign.leases_ms)
    rng = rng_for(campaign.seed or "", "nemesis", "scenario", name, *_of_lane(lane))
    return tuple(scenario.steps(rng, setting))


def _plan(fault: Fault, rng: Random, nodes: Sequence[str], index: int) -> dict[str, Any]:
    try:
        with plugin_calls.as_plugin_error():
            plan = fault.plan(rng, nodes, index)
    except plugin_calls.PlugInError as error:
        raise HarnessError(f"fault {fault.name}: its plan fails: {error}") from error
    return _as_json(fault.name, plan)


def min_duration_s(fault: Fault, nodes: Sequence[str]) -> float:
    """Return the shortest useful duration of a fault, in seconds; 0 if it has none.

    Raises:
        HarnessError: the plug-in's `min_duration_s` fails; one line names it and tells why.
    """
    if not isinstance(fault, Acts):
        return 0.0
    try:
        with plugin_calls.as_plugin_error():
            return plugin_calls.seconds(fault.min_duration_s(nodes), "it returned")
    except plugin_calls.PlugInError as error:
        raise HarnessError(f"fault {fault.name}: its min_duration_s fails: {error}") from error


def _slot(
    campaign: Campaign, faults: Mapping[str, Fault], deck: _Deck, lane: int, number: int
) -> _Slot:
    """Choose the fault or scenario of a lane's slot, the quiet time before it, and its duration."""
    index, place = divmod(number, deck.size)
    bag: list[str | int] = list(deck.names)
    if campaign.nemesis_schedule != "sequence":
        rng = rng_for(campaign.seed or "", "nemesis", "round", index, *_of_lane(lane))
        bag = rng.sample(bag, len(bag))
    among = rng_for(campaign.seed or "", "nemesis", "scenarios", index, *_of_lane(lane))
    for _ in range(deck.scenarios_a_round):
        bag.insert(among.randint(0, len(bag)), 0)
    # In the deck's order: else a round that the end cuts short could leave out an earlier one.
    numbers = count(index * deck.scenarios_a_round)
    bag = [next(numbers) if isinstance(what, int) else what for what in bag]
    gap_s, duration_s = _timing(campaign, number, lane)
    generated = bag[place]
    if isinstance(generated, int):
        scenario = _scenario(campaign, deck, lane, generated)
        name = " ".join([scenario.name, str(generated + 1), *map(str, _of_lane(lane))])
        steps = _steps(campaign, faults, scenario, name)
        return _Slot(steps, index, gap_s, span_s(steps), name)
    fault = faults[generated]
    duration_s = max(duration_s, min_duration_s(fault, node_names(campaign)))
    return _Slot(fault, index, gap_s, duration_s)


def _scenario(campaign: Campaign, deck: _Deck, lane: int, number: int) -> Scenario:
    """Return the numbered scenario of a lane, from a deck that is reshuffled when empty."""
    shuffle, place = divmod(number, len(deck.scenarios))
    rng = rng_for(campaign.seed or "", "nemesis", "deck", shuffle, *_of_lane(lane))
    return rng.sample(list(deck.scenarios), len(deck.scenarios))[place]


def _timing(campaign: Campaign, number: int, lane: int) -> tuple[float, float]:
    """Choose (quiet time before, duration) of the numbered fault of a lane."""
    interval_s = campaign.nemesis_interval_s
    shortest_s, longest_s = campaign.fault_duration_min_s, campaign.fault_duration_max_s
    if campaign.nemesis_schedule == "periodic":
        first_s = interval_s * lane / campaign.faults_at_once  # lanes are staggered
        return (interval_s if number else first_s), (shortest_s + longest_s) / 2
    rng = rng_for(campaign.seed or "", "nemesis", "timing", number, *_of_lane(lane))
    quiet_s = interval_s * rng.uniform(1 - GAP_SPREAD, 1 + GAP_SPREAD)
    first_s = min(FIRST_GAP_MAX_S, interval_s) * rng.random()
    return (quiet_s if number else first_s), _between(rng, shortest_s, longest_s)


def _between(rng: Random, shortest_s: float, longest_s: float) -> float:
    """Choose a duration log-uniformly, so that short ones are not rare."""
    return math.exp(rng.uniform(math.log(shortest_s), math.log(longest_s)))


def _of_lane(lane: int) -> tuple[str | int, ...]:
    """Return the suffix of a lane's stream names: none for the first lane."""
    return ("lane", lane) if lane else ()


def _fitted(
    campaign: Campaign, faults: Mapping[str, Fault], deck: _Deck, lane: int, room_s: float
) -> tuple[_Deck, float]:
    """Return the deck and the factor (at most 1) that squeezes one round into the time.

    Scenarios are dropped first: a round that would be squeezed to less than half has fewer of them.
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
    """Return a slot's squeezed duration; no single fault gets shorter than its minimum."""
    if isinstance(slot.what, tuple):
        return slot.duration_s * squeeze
    return max(slot.duration_s * squeeze, min(FAULT_DURATION_MIN_S, slot.duration_s))


def _squeeze(slots: Sequence[_Slot], room_s: float) -> float:
    """Return the largest factor, at most 1, with which these slots fit; 0 if there is none."""
    for hundredths in range(100, 0, -1):
        squeeze = hundredths / 100
        if sum(slot.gap_s * squeeze + _squeezed_s(slot, squeeze) for slot in slots) <= room_s:
            return squeeze
    return 0.0


def _scripted(campaign: Campaign, faults: Mapping[str, Fault], first_number: int) -> list[Planned]:
    """Return the faults of the script; what an entry sets overrides the generated plan."""
    planned: list[Planned] = []
    for entry, step in enumerate(campaign.script, 1):
        where = f"script {entry}"
        if step.scenario:
            planned += _scripted_scenario(campaign, faults, step, where)
            continue
        if step.fault not in faults:
            continue
        _check_time(campaign, step, step.duration, where)
        for index in range(step.times):
            rng = rng_for(campaign.seed or "", "nemesis", "script", entry, index)
            planned.append(_of_step(campaign, faults, step, rng, index, where))
    return [
        msgspec.structs.replace(one, number=first_number + number)
        for number, one in enumerate(planned)
    ]


def _scripted_scenario(
    campaign: Campaign, faults: Mapping[str, Fault], step: Step, where: str
) -> list[Planned]:
    """Return the faults of a scenario that a script names; none if a fault is missing."""
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
    index: int,
    where: str,
) -> Planned:
    """Generate the fault of a step; what the step sets overrides the generated plan.

    Raises:
        UsageError: its victims or its plan are invalid.
    """
    nodes, options = node_names(campaign), fault_options(campaign)
    try:
        roles = scenarios.roles_of(step.victims)
        fault = faults[step.fault]
        if step.victims:
            # Roles are resolved later, so make a plan that names its victims.
            victims = ["leader"] if roles else list(step.victims)
            fault = plugin_calls.configured(fault, {**options, "victims": victims})
        plan = _plan(fault, rng, nodes, index)
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
        nth=index + 1,
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
    """Return the plan as schedule.json will return it, so that a replay applies the same plan."""
    try:
        return msgspec.json.decode(msgspec.json.encode(plan), type=dict[str, Any])
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:  # msgspec's, too
        raise HarnessError(f"fault {fault}: its plan is no JSON: {error}") from error


# Which scenarios a campaign uses, and why it does not use others.

ALL: Final = ("all",)
"""The value of `scenarios` for all that can be made of the campaign's faults."""


def scenarios_of(campaign: Campaign, faults: Collection[str]) -> list[Scenario]:
    """Return the scenarios of a campaign's schedule, sorted by name.

    Those that are named and whose faults are available. With "all", none if the campaign itself
    sets the victims, the order or the times of faults.

    Args:
        campaign: resolved.
        faults: names of its available faults.
    """
    if campaign.scenarios == ALL and (campaign.victims or campaign.nemesis_schedule != "random"):
        return []
    return [
        SCENARIOS[name]
        for name in sorted(_requested(campaign))
        if why_not(SCENARIOS[name], campaign, faults) is None
    ]


def why_not(scenario: Scenario, campaign: Campaign, faults: Collection[str]) -> str | None:
    """Return a short reason why a campaign cannot use a scenario; None if it can."""
    lacking = sorted(scenario.faults - set(faults))
    if lacking:
        return f"it needs {', '.join(lacking)}"
    if campaign.nodes < scenario.nodes_min:
        return f"it needs {scenario.nodes_min} nodes"
    target = target_of(campaign)
    if scenario.elects and not (
        target.promises.committed_prefix or isinstance(target, TransfersLeadership)
    ):
        return f"{target.name} does not promise one log through elections"
    if scenario.is_last and not scenario.faults <= target.promises.durable_under:
        return f"{target.name} promises nothing under {', '.join(sorted(scenario.faults))}"
    return None


def _requested(campaign: Campaign) -> Iterable[str]:
    return SCENARIOS if campaign.scenarios == ALL else campaign.scenarios

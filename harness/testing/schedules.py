"""Hypothesis strategies for fault schedules: which faults, when, how long, with which plan.

    @given(schedules(discovery.find("faults"), ("n0", "n1", "n2")))
    def test_my_system_survives(planned):
        ...

Schedules are drawn directly, not from a campaign's seed, so that a failing one shrinks: to fewer
faults, the first of those given, at round times. `harness.campaigns.schedule.encode_schedule`
encodes one in the format of a run.

Source: Hypothesis; FoundationDB's and TigerBeetle's random fault schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from shaketable.harness.campaigns.schedule import Planned
from shaketable.harness.contracts.plugins import Fault
from shaketable.harness.contracts.rng import rng_for as stream

FAULTS_MAX = 5
PLANS = 8
"""The number of seeds that the plan of a fault is generated from."""


@st.composite
def schedules(
    draw: DrawFn,
    /,
    faults: Mapping[str, Fault],
    nodes: Sequence[str],
    *,
    chaos_s: float = 30.0,
    faults_max: int = FAULTS_MAX,
    lanes: int = 1,
) -> list[Planned]:
    """Draw a schedule, sorted by start time.

    Args:
        draw: given by Hypothesis.
        faults: the configured faults to choose from, by name.
        nodes: the group.
        chaos_s: all faults start and end within this time.
        faults_max: most faults of a schedule.
        lanes: most faults in force at a time.
    """
    free_ms = [0] * lanes
    end_ms = int(chaos_s * 1000)
    indexes: dict[str, int] = {}
    found: list[Planned] = []
    for _ in range(draw(st.integers(0, faults_max))):
        lane = draw(st.integers(0, lanes - 1))
        start_ms = free_ms[lane] + draw(st.integers(0, end_ms // 4))
        stop_ms = start_ms + draw(st.integers(1, end_ms // 4))
        if stop_ms > end_ms:
            continue
        free_ms[lane] = stop_ms
        name = draw(st.sampled_from(sorted(faults)))
        index = indexes[name] = indexes.get(name, -1) + 1
        rng = stream(str(draw(st.integers(0, PLANS - 1))), "plan", name, index)
        plan = faults[name].plan(rng, nodes, index)
        duration_s = (stop_ms - start_ms) / 1000
        found.append(
            Planned(number=0, fault=name, plan=plan, start_s=start_ms / 1000, duration_s=duration_s)
        )
    found.sort(key=lambda planned: planned.start_s)
    return [
        Planned(
            number=number,
            fault=planned.fault,
            plan=planned.plan,
            start_s=planned.start_s,
            duration_s=planned.duration_s,
        )
        for number, planned in enumerate(found)
    ]

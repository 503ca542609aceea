"""Hypothesis strategies that draw schedules of faults: which, when, for how long, with which plan.

    @given(schedules(discovery.find("faults"), ("n0", "n1", "n2")))
    def test_my_system_survives(planned):
        ...

Drawn directly, not from a campaign's seed, so that a failing schedule shrinks: fewer faults, the
first ones of those given, at round times. `harness.campaigns.schedule.encode_schedule` writes one
as a run keeps it.

Source: Hypothesis; FoundationDB's and TigerBeetle's drawn fault schedules.
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
"""From so many seeds the plan of a fault is drawn."""


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
    """Draw a schedule, in the order of its times.

    Args:
        draw: given by Hypothesis.
        faults: what to draw from, by name, configured.
        nodes: the group.
        chaos_s: within this time all faults begin and end.
        faults_max: the longest schedule.
        lanes: so many faults hold at a time at most.
    """
    free_ms = [0] * lanes
    end_ms = int(chaos_s * 1000)
    turns: dict[str, int] = {}
    found: list[Planned] = []
    for _ in range(draw(st.integers(0, faults_max))):
        lane = draw(st.integers(0, lanes - 1))
        start_ms = free_ms[lane] + draw(st.integers(0, end_ms // 4))
        stop_ms = start_ms + draw(st.integers(1, end_ms // 4))
        if stop_ms > end_ms:
            continue
        free_ms[lane] = stop_ms
        name = draw(st.sampled_from(sorted(faults)))
        turn = turns[name] = turns.get(name, -1) + 1
        rng = stream(str(draw(st.integers(0, PLANS - 1))), "plan", name, turn)
        plan = faults[name].plan(rng, nodes, turn)
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

"""Drawn schedules of faults keep to their limits, and every fault can be aimed."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness import discovery
from shaketable.harness.campaigns.schedule import Planned, encode_schedule
from shaketable.harness.testing.schedules import schedules

NODES = ("n0", "n1", "n2")
FAULTS = {name: discovery.get("faults", name) for name in ("kill", "pause", "partition")}


@given(st.integers(1, 3).flatmap(lambda n: st.tuples(
    st.just(n), schedules(FAULTS, NODES, chaos_s=20.0, lanes=n))))  # fmt: skip
def test_no_more_faults_hold_at_a_time_than_there_are_lanes(
    drawn: tuple[int, list[Planned]],
) -> None:
    lanes, planned = drawn
    assert [one.number for one in planned] == list(range(len(planned)))
    for one in planned:
        assert 0 <= one.start_s < one.start_s + one.duration_s <= 20.0
        together = [
            other
            for other in planned
            if other.start_s <= one.start_s < other.start_s + other.duration_s - 1e-9
        ]
        assert len(together) <= lanes


@given(schedules(FAULTS, NODES))
def test_every_fault_of_it_can_be_aimed_and_kept(planned: list[Planned]) -> None:
    assert len(json.loads(encode_schedule(planned))) == len(planned)
    for one in planned:
        fault = FAULTS[one.fault]
        for leader in (*NODES, None):
            assert fault.describe(fault.aim(one.plan, NODES, leader))

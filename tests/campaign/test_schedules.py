"""Draws and schedules: the same for the same seed in every process, each draw independent."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shaketable.harness.campaigns.campaign import FAULT_DURATION_MIN_S, Campaign, loads
from shaketable.harness.campaigns.schedule import decode_schedule, encode_schedule, schedule
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.rng import new_seed, rng_for
from shaketable.harness.discovery import find
from shaketable.workloads.log import LogWorkload


class FakeFault:
    """Plans what it was given, and one draw."""

    def __init__(self, name: str) -> None:
        self.name = name

    def plan(self, rng, nodes, turn):
        return {"turn": turn, "draw": rng.random(), "nodes": tuple(nodes)}


FAULTS = {name: FakeFault(name) for name in ("kill", "pause", "partition", "clock", "disk")}
CAMPAIGN = Campaign(
    seed="7",
    time_limit_s=120.0,
    faults=("kill", "pause", "partition"),
    scenarios=(),
    nemesis_interval_s=3.0,
    fault_duration_min_s=1.5,
    fault_duration_max_s=3.5,
)

SEEDS = st.text(st.characters(codec="utf-8"), max_size=5)
NAMES = st.lists(SEEDS | st.integers(0, 99), max_size=3)


# ---- draws -------------------------------------------------------------------------------


@given(SEEDS, NAMES, NAMES)
def test_streams_are_independent_and_repeatable(seed: str, names: list, others: list) -> None:
    values = [rng_for(seed, *names).random() for _ in range(2)]
    assert values[0] == values[1]
    if names != others:
        assert rng_for(seed, *others).random() != values[0]


def test_names_are_not_run_together() -> None:
    streams = [("a", "b"), ("ab",), ("a,b",), ("a", "b", ""), (1,), ("1",), (11,), (1, 1)]
    assert len({rng_for("s", *names).random() for names in streams}) == len(streams)
    assert rng_for("s", "x").random() != rng_for("sx").random()


def test_fresh_seeds_differ() -> None:
    assert len({new_seed() for _ in range(20)}) == 20


PRINT_DRAWS = """
import itertools, json
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.discovery import find
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.campaigns.schedule import encode_schedule, schedule
from shaketable.workloads.log import LogWorkload
faults = find("faults")
everything = Campaign(seed="s\\u00e4", nodes=5, faults=tuple(faults), time_limit_s=600)
planned = schedule(everything, faults)
operations = itertools.islice(LogWorkload(3).operations("7", 2, 5), 200)
text = encode_schedule(planned).decode()
print(json.dumps([rng_for("s", "x", 1).random(), str(list(operations)), text]))
"""


def test_all_processes_draw_the_same() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", PRINT_DRAWS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    ]
    assert told[0] == told[1] == told[2]
    assert json.loads(told[0])[0] == rng_for("s", "x", 1).random()


# ---- schedules ---------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert schedule(CAMPAIGN, FAULTS) == schedule(CAMPAIGN, FAULTS)
    other = msgspec.structs.replace(CAMPAIGN, seed="8")
    assert schedule(other, FAULTS) != schedule(CAMPAIGN, FAULTS)


def test_the_order_in_which_faults_are_named_says_nothing() -> None:
    turned = msgspec.structs.replace(CAMPAIGN, faults=CAMPAIGN.faults[::-1])
    assert schedule(turned, FAULTS) == schedule(CAMPAIGN, FAULTS)


def test_a_longer_run_begins_as_the_shorter_one() -> None:
    longer = msgspec.structs.replace(CAMPAIGN, time_limit_s=240.0)
    short, long = schedule(CAMPAIGN, FAULTS), schedule(longer, FAULTS)
    assert len(long) > len(short) > 9
    assert long[: len(short)] == short


@settings(max_examples=60)
@given(
    names=st.sets(st.sampled_from(sorted(FAULTS)), min_size=1),
    time_limit_s=st.floats(40, 300),
    interval_s=st.floats(0, 10),
    seed=st.integers(0, 10**6).map(str),
)
def test_every_fault_comes_up_in_each_round_and_nothing_overlaps(
    names: set[str], time_limit_s: float, interval_s: float, seed: str
) -> None:
    campaign = msgspec.structs.replace(
        CAMPAIGN,
        seed=seed,
        time_limit_s=time_limit_s,
        faults=tuple(names),
        nemesis_interval_s=interval_s,
    )
    planned = schedule(campaign, FAULTS)
    assert [fault.number for fault in planned] == list(range(len(planned)))
    count = len(names)
    assert {fault.fault for fault in planned[:count]} == names
    for begin in range(0, len(planned), count):
        one_round = planned[begin : begin + count]
        assert len({fault.fault for fault in one_round}) == len(one_round)
        assert {fault.plan["turn"] for fault in one_round} == {begin // count}
    room_s = time_limit_s - campaign.steady_s
    end_s = 0.0
    for fault in planned:
        assert fault.start_s >= end_s - 0.002
        assert fault.duration_s >= FAULT_DURATION_MIN_S - 0.002
        end_s = fault.start_s + fault.duration_s
    assert end_s <= room_s + 0.002
    longest_s = 1.25 * interval_s + campaign.fault_duration_max_s
    assert room_s - end_s <= longest_s, "the chaos phase is filled"


def test_quiet_times_let_the_group_heal() -> None:
    planned = schedule(CAMPAIGN, FAULTS)
    pairs = pairwise(planned)
    quiet = [after.start_s - before.start_s - before.duration_s for before, after in pairs]
    assert min(quiet) >= 0.75 * CAMPAIGN.nemesis_interval_s - 0.002
    assert max(quiet) <= 1.25 * CAMPAIGN.nemesis_interval_s + 0.002


def test_a_short_run_squeezes_one_round_in() -> None:
    short = msgspec.structs.replace(CAMPAIGN, time_limit_s=12.0, faults=tuple(FAULTS))
    planned = schedule(short, FAULTS)
    assert {fault.fault for fault in planned} == set(FAULTS)
    assert planned[-1].start_s + planned[-1].duration_s <= 7.002


def test_a_short_run_has_fewer_scenarios_before_its_faults_shrink_to_half() -> None:
    faults = find("faults")
    names = ("kill", "pause", "partition", "power")
    counts = []
    for limit_s in (10.0, 20.0, 60.0):
        planned = schedule(changed(time_limit_s=limit_s, faults=names, scenarios=("all",)), faults)
        assert {one.fault for one in planned if not one.scenario} == set(names)
        counts.append(len({one.scenario for one in planned} - {"", "final-power-loss"}))
    assert counts[0] == 0
    assert counts[0] < counts[1] < counts[2]


def test_a_run_too_short_for_its_faults_is_refused() -> None:
    for limit_s in (5.0, 5.5):
        short = msgspec.structs.replace(CAMPAIGN, time_limit_s=limit_s)
        with pytest.raises(UsageError, match=r"too little to try each of 3 once: give \d+ s"):
            schedule(short, FAULTS)


# ---- other schedules ---------------------------------------------------------------------


def changed(**fields) -> Campaign:
    return msgspec.structs.replace(CAMPAIGN, **fields)


def test_a_sequence_goes_round_in_the_order_in_which_faults_are_named() -> None:
    named = ("pause", "kill", "disk")
    planned = schedule(changed(nemesis_schedule="sequence", faults=named), FAULTS)
    assert len(planned) > 6
    for one in planned:
        assert one.fault == named[one.number % 3]
        assert one.plan["turn"] == one.number // 3


def test_a_periodic_schedule_keeps_regular_times() -> None:
    planned = schedule(changed(nemesis_schedule="periodic", nemesis_interval_s=4.0), FAULTS)
    assert [one.start_s for one in planned[:3]] == [0.0, 6.5, 13.0]
    assert {one.duration_s for one in planned} == {2.5}
    assert len({one.fault for one in planned[:3]}) == 3


def test_each_lane_is_drawn_for_itself_and_the_first_as_if_it_were_alone() -> None:
    alone, three = schedule(CAMPAIGN, FAULTS), schedule(changed(faults_at_once=3), FAULTS)
    assert [one.number for one in three] == list(range(len(three)))
    assert [one.start_s for one in three] == sorted(one.start_s for one in three)
    places = {(one.fault, one.start_s, str(one.plan)) for one in three}
    assert {(one.fault, one.start_s, str(one.plan)) for one in alone} <= places
    assert len(places) == len(three) > 2 * len(alone)
    at_once = max(
        sum(other.start_s <= one.start_s < other.start_s + other.duration_s for other in three)
        for one in three
    )
    assert at_once == 3


def test_a_fault_that_needs_its_time_gets_it_where_there_is_room() -> None:
    class Long(FakeFault):
        def min_duration_s(self, nodes):
            return 4.0 * len(nodes)

        async def act(self, plan, undo, world, note):
            raise NotImplementedError

    faults = {**FAULTS, "kill": Long("kill")}
    planned = schedule(CAMPAIGN, faults)
    assert {one.duration_s for one in planned if one.fault == "kill"} == {12.0}
    assert max(one.duration_s for one in planned if one.fault != "kill") <= 3.5


SCRIPT = """
seed = 7
[[script]]
fault = "kill"
on = "leader-elected"
after = 0.5
times = 2
victims = "n1"
[[script]]
fault = "pause"
at = 12.5
duration = 1
order = ["n2", "n0", "n1"]
"""


def test_a_script_is_all_there_is_unless_faults_are_asked_for() -> None:
    campaign = loads(SCRIPT, "file")
    first, second, third = schedule(campaign, find("faults"))
    assert (first.on, first.nth, first.after_s, second.nth) == ("leader-elected", 1, 0.5, 2)
    assert first.plan["variant"] == second.plan["variant"] == "n1"
    assert (third.start_s, third.duration_s, third.on) == (12.5, 1.0, None)
    assert third.plan["order"] == ["n2", "n0", "n1"]
    assert decode_schedule(encode_schedule([first, third]), "schedule.json") == [first, third]
    both = loads('faults = "partition"\n' + SCRIPT, "file")
    planned = schedule(both, find("faults"))
    assert {one.fault for one in planned[:-3]} == {"partition"}
    assert [one.number for one in planned] == list(range(len(planned)))
    assert [one.plan for one in planned[-3:]] == [first.plan, second.plan, third.plan]


def test_a_script_that_sets_what_no_plan_has_is_refused() -> None:
    campaign = loads(SCRIPT + "lenght = 3", "file")
    with pytest.raises(UsageError, match=r"script 2: 'lenght' is neither .* pause \(there are: o"):
        schedule(campaign, find("faults"))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("fault = 'kill'\norder = 5", "order of kill cannot be 5"),
        ("fault = 'kill'\norder = []", "expected all of n0"),
        ("fault = 'kill'\nvariant = 'leadr'", "leader"),
        ("fault = 'clock'\nchange = 'fast'", "change of clock cannot be 'fast'"),
        ("fault = 'clock'\nchange = {rat = 1.0}", "rat"),
        ("fault = 'clock'\nchange = {rate = nan}", "rate: expected 0 to 1000, not nan"),
        ("fault = 'partition'\nheal = 'x'", "cannot be done with heal = 'x'"),
        ("fault = 'partition'\nshape = 'nope'", "unknown shape 'nope'"),
        ("fault = 'delay'\ndirection = 'up'", "cannot be done with direction = 'up'"),
        ("fault = 'delay'\nlink_shape = {delay_ms = 'slow'}", "delay_ms"),
        ("fault = 'delay'\nlink_shape = {loss = 1.5}", "loss: expected 0 to 1, not 1.5"),
        ("fault = 'memory'\nresources = {bytes = 1}", "bytes"),
        ("fault = 'disk-slow'\ndisk_fault = {delay_ms = -5}", "delay_ms: expected 0"),
        ("fault = 'disk-errors'\ndisk_fault = {error = 'EPERM'}", "expected one of EIO, ENOSPC"),
        ("fault = 'flap'\ndown_ms = 0\nup_ms = 0", "down_ms: expected 1"),
        ("fault = 'crash-loop'\nlives_s = []", "one number at least"),
    ],
)
def test_a_script_that_sets_what_a_fault_cannot_take_is_refused(entry: str, why: str) -> None:
    campaign = loads(f"seed = 7\n[[script]]\nat = 1\n{entry}", "file")
    with pytest.raises(UsageError, match=f"script 1: .*{re.escape(why)}") as told:
        schedule(campaign, find("faults"))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "entry",
    [
        "fault = 'clock'\nchange = {offset_ms = -500, which = 'wall'}",
        "fault = 'delay'\nlink_shape = {delay_ms = 20}\ndirection = 'in'",
        "fault = 'disk-errors'\ndisk_fault = {error = 'EIO', op = 'sync', nth = 3}",
        "fault = 'flap'\ndown_ms = 5\nup_ms = 7\nvariant = 'n1'",
        "fault = 'memory'\nresources = {memory_spare_bytes = 1000000}",
        "fault = 'partition'\nshape = 'one-way'",
    ],
)
def test_a_script_may_set_what_a_fault_can_take(entry: str) -> None:
    campaign = loads(f"seed = 7\n[[script]]\nat = 1\n{entry}", "file")
    (planned,) = schedule(campaign, find("faults"))
    assert planned.plan.items() >= campaign.script[0].plan.items()


def test_a_script_that_outlasts_its_run_is_refused() -> None:
    text = "seed = 7\ntime_limit = 20\nsteady = 5\n[[script]]\nfault = 'kill'\nat = {}"
    assert schedule(loads(text.format(13), "file"), find("faults"))
    with pytest.raises(UsageError, match=r"script 1: kill at 13\.5 for 2 s ends after the 15 s"):
        schedule(loads(text.format(13.5), "file"), find("faults"))


def test_no_faults_is_an_empty_schedule() -> None:
    assert schedule(msgspec.structs.replace(CAMPAIGN, faults=()), FAULTS) == []


def test_a_schedule_is_json_and_comes_back_the_same() -> None:
    planned = schedule(CAMPAIGN, FAULTS)
    assert decode_schedule(encode_schedule(planned), "schedule.json") == planned
    assert planned[0].plan["nodes"] == ["n0", "n1", "n2"], "as JSON gives it back"
    with pytest.raises(UsageError, match=r"^schedule\.json: no schedule of faults: "):
        decode_schedule(b'[{"number": "x"}]', "schedule.json")


def test_a_plan_that_is_no_json_is_told() -> None:
    class Bad(FakeFault):
        def plan(self, rng, nodes, turn):
            return {"what": object()}

    with pytest.raises(HarnessError, match="fault kill: its plan is no JSON"):
        schedule(CAMPAIGN, {**FAULTS, "kill": Bad("kill")})


def test_leaving_a_draw_out_shifts_no_other() -> None:
    """A fault that draws more from its stream changes its own plans only."""

    class Greedy(FakeFault):
        def plan(self, rng, nodes, turn):
            rng.random()
            return super().plan(rng, nodes, turn)

    planned = schedule(CAMPAIGN, FAULTS)
    changed = schedule(CAMPAIGN, {**FAULTS, "kill": Greedy("kill")})
    for before, after in zip(planned, changed, strict=True):
        assert (before == after) == (before.fault != "kill")
        assert (before.start_s, before.fault) == (after.start_s, after.fault)


def test_operations_do_not_depend_on_how_many_were_taken() -> None:
    workload = LogWorkload(4)
    one, other = workload.operations("7", 3, 12), workload.operations("7", 3, 12)
    taken = [next(one) for _ in range(50)]
    assert taken == [next(other) for _ in range(50)]

"""Scenarios: plain faults in a telling order, and strikes that hit the one who gets that far."""

from __future__ import annotations

import msgspec
import pytest

from shaketable.system import mutants
from shaketable.system.sim.schedules.faults import (
    LEADER,
    OTHERS,
    Crash,
    CrashAtOperation,
    CrashAtTruncation,
    Cut,
    Pause,
    RemoveMember,
    ReplaceMember,
    Strike,
    Wipe,
)
from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.sim.schedules.scenarios import (
    CHAINS,
    LATEST_MS,
    SCENARIOS,
    Group,
    draw_scenarios,
)
from shaketable.system.sim.schedules.schedule import (
    Call,
    Options,
    Schedule,
    Settings,
    draw_schedule,
)
from shaketable.system.sim.world import run_seed

THREE = Group(("n0", "n1", "n2"), 250, has_lease=True)
LEADER_OFF = ((LEADER, "*"), ("*", LEADER))


def run(*faults, members=3):
    """Run a group under steady load, with these faults and none other."""
    calls = tuple(
        Call(at_ms, at_ms // 50 % 3, "batch", 0, 6, 0, 100) for at_ms in range(500, 10_000, 50)
    )
    settings = Settings(members=members, run_ms=12_000)
    result = run_seed(5, schedule=Schedule(seed=5, settings=settings, faults=faults, calls=calls))
    assert result.violation is None
    return result.counts


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_a_few_faults_that_begin_when_it_does(name):
    for seed in range(50):
        faults = SCENARIOS[name](RandomStreams(seed).stream("scenario"), THREE, 5000)
        assert 1 <= len(faults) <= 8
        assert all(fault.start_ms >= 4000 and fault.duration_ms > 0 for fault in faults)
        assert max(fault.end_ms for fault in faults) <= 5000 + LATEST_MS


def test_scenarios_follow_one_another_and_end_in_time():
    for seed in range(200):
        rng = RandomStreams(seed).stream("scenarios")
        faults = draw_scenarios(rng, THREE, from_ms=1500, until_ms=23_000, ack="page-cache")
        assert all(fault.end_ms <= 23_000 for fault in faults)
        assert not any(isinstance(fault, Crash) and fault.loses_unsynced for fault in faults)
    alone = Group(("n0",), 250, has_lease=False)
    assert draw_scenarios(rng, alone, from_ms=1500, until_ms=23_000, ack="fsync") == ()


def test_chains_lose_no_more_than_one_disk_and_none_that_another_fault_has_lost():
    lost = []
    for seed in range(300):
        rng = RandomStreams(seed).stream("chains")
        asked = {"from_ms": 1500, "until_ms": 23_000, "ack": "page-cache", "among": CHAINS}
        faults = draw_scenarios(rng, THREE, **asked, may_lose_disk=seed % 2 == 0)
        lost.append(sum(isinstance(fault, Wipe) for fault in faults))
        crashes = [f for f in faults if isinstance(f, Crash | CrashAtOperation | CrashAtTruncation)]
        assert not any(fault.loses_unsynced for fault in crashes)
    assert max(lost[::2]) == 1
    assert max(lost[1::2]) == 0


def without_limits(settings: Settings) -> Settings:
    """Return the settings as they are before the limits of seeds with chains are drawn."""
    names = (
        "pull_messages_max",
        "pull_bytes_max",
        "queue_tail_max",
        "expired_files_max",
        "filtered_units_max",
    )
    usual = Settings()
    return msgspec.structs.replace(
        settings, crowded=False, **{name: getattr(usual, name) for name in names}
    )


def test_chains_are_drawn_beside_what_a_seed_had_without_them():
    more = replaced = 0
    for seed in range(60):
        before, after = (draw_schedule(seed, Options(chains=chains)) for chains in (False, True))
        if before.settings == without_limits(after.settings):
            later = {"commit", "fetch", "delay"}
            same = tuple(
                call
                for call in after.calls
                if call.kind not in later and call.queue < after.settings.queues
            )
            assert before.calls == same
            gone = set(map(repr, before.faults)) - set(map(repr, after.faults))
            replaced += bool(gone)  # a later scenario takes the place of what is in its way
            more += len(after.faults) > len(before.faults)
    assert more >= 15
    assert 0 < replaced < 20


def test_many_seeds_have_scenarios():
    struck = [
        seed
        for seed in range(100)
        if any(isinstance(fault, Strike) for fault in draw_schedule(seed).faults)
    ]
    assert len(struck) >= 5


def test_whoever_is_elected_is_struck():
    away = Cut(start_ms=3000, duration_ms=1000, links=LEADER_OFF)
    counts = run(away, Strike(start_ms=3100, duration_ms=2500, moment="elected"))
    assert counts.faults == {"cut": 1, "strike": 1}
    assert counts.elections >= 3  # the successor of the first leader is lost at once
    assert run(Strike(start_ms=3100, duration_ms=1000, moment="elected")).faults == {}


def test_whoever_stands_is_struck_and_may_come_back_with_a_higher_term():
    quiet = Cut(start_ms=3000, duration_ms=450, links=LEADER_OFF)
    counts = run(quiet, Strike(start_ms=3000, duration_ms=1500, moment="stands"))
    assert counts.faults == {"cut": 1, "strike": 1}
    assert counts.elections >= 2


def test_who_truncates_loses_power_at_an_operation_from_there_on():
    away = Cut(start_ms=3000, duration_ms=1500, links=LEADER_OFF)
    counts = run(away, CrashAtTruncation(start_ms=4400, duration_ms=800, operations=3))
    assert counts.faults == {"cut": 1, "crash_at_truncation": 1, "crash_at_operation": 1}
    assert counts.truncations >= 1
    quiet = run(CrashAtTruncation(start_ms=4400, duration_ms=800, operations=3))
    assert (quiet.faults, quiet.truncations) == ({}, 0)


def test_a_fault_of_the_others_is_one_of_all_but_the_leader_and_a_follower():
    counts = run(Crash(start_ms=3000, duration_ms=1, node=OTHERS), members=5)
    assert counts.faults == {"crash": 3}


def test_a_fault_of_a_member_that_was_replaced_is_one_of_its_replacement():
    replaced = ReplaceMember(start_ms=2000, duration_ms=100, node="n1")
    counts = run(replaced, Pause(start_ms=7000, duration_ms=300, node="n1"))
    assert counts.faults == {"replace_member": 1, "pause": 1}


def test_none_stands_in_for_a_member_that_is_to_be_removed():
    replaced = ReplaceMember(start_ms=2000, duration_ms=100, node="n1")
    later = RemoveMember(start_ms=7000, duration_ms=100, node="n1")
    assert run(replaced, later, members=5).faults == {"replace_member": 1}


AIMED = {
    "figure_8": ("commit-by-counting", "committed-stays-committed"),
    "two_changes_under_partition": ("change-before-term-start", "committed-stays-committed"),
    "overlooked_promise": ("lease-after-restart", "restarts-keep-leases"),
    "power_loss_at_truncation": ("truncation-in-memory", "node-starts"),
    "target_goes_away": ("transfer-never-given-up", "transfers-are-given-up"),
    "dead_disk": ("leads-with-dead-disk", "stalled-disk-leads-not"),
}
"""Chains, each with the planted bug that it is for, and the invariant that this breaks."""


@pytest.mark.parametrize("name", AIMED)
def test_a_chain_shows_what_it_is_for_and_accuses_nobody_else(name):
    mutant, invariant = AIMED[name]
    broken = set()
    for seed in range(8):
        drawn = draw_schedule(seed, Options(chains=False, members=3, run_ms=16_000))
        group = Group(THREE.members, int(drawn.settings.election_timeout_min_ms), has_lease=True)
        settings = msgspec.structs.replace(
            drawn.settings, lease_ms=drawn.settings.election_timeout_min_ms - 50, ack="fsync"
        )
        rng = RandomStreams(seed).stream("aimed")
        faults = (*SCENARIOS[name](rng, group, 3000), *SCENARIOS[name](rng, group, 6000))
        schedule = msgspec.structs.replace(
            drawn, settings=settings, faults=tuple(sorted(faults, key=lambda f: f.start_ms))
        )
        assert run_seed(seed, schedule=schedule).violation is None
        found = run_seed(seed, schedule=schedule, mutant=mutants.load(mutant)).violation
        broken.add(found and found.invariant)
        if invariant in broken:
            return
    raise AssertionError(f"{mutant} broke {broken}, not {invariant}")

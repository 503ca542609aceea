"""Streams of draws, virtual time, and schedules as data."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from shaketable.system.sim.event_heap import EventHeap
from shaketable.system.sim.schedules.faults import (
    ALL,
    FOLLOWER,
    LEADER,
    Cut,
    expand_links,
    stand_ins,
)
from shaketable.system.sim.schedules.random_faults import KINDS
from shaketable.system.sim.schedules.random_streams import RandomStreams, stream_seed
from shaketable.system.sim.schedules.schedule import STORE_KINDS, Options, Schedule, draw_schedule


def test_a_stream_depends_on_its_seed_and_name_alone():
    one, other = RandomStreams(7), RandomStreams(7)
    other.stream("another").random()
    first = [one.stream("link/n0/n1").random() for _ in range(5)]
    assert first == [other.stream("link/n0/n1").random() for _ in range(5)]
    assert first != [RandomStreams(8).stream("link/n0/n1").random() for _ in range(5)]
    assert first != [RandomStreams(7).stream("link/n1/n0").random() for _ in range(5)]
    assert len(set(first)) == 5


def test_a_stream_goes_on_where_it_was():
    rngs = RandomStreams(1)
    assert rngs.stream("a") is rngs.stream("a")
    assert rngs.stream("a").random() != rngs.stream("a").random()


def test_stream_seeds_are_the_same_in_every_process():
    assert stream_seed(1, "disk/n0") == 2818090060080733551
    assert stream_seed(-3, "x") == 3282355555668861505
    for hash_seed in ("0", "1"):
        found = subprocess.run(
            [
                sys.executable,
                "-c",
                "from shaketable.system.sim.schedules.random_streams import stream_seed;"
                "print(stream_seed(5, 'q'))",
            ],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        )
        assert int(found.stdout) == stream_seed(5, "q")


def test_events_come_by_time_and_then_in_the_order_they_were_given():
    heap, seen = EventHeap(), []
    for at_ms, name in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b"), (9.0, "late")):
        heap.push(at_ms, seen.append, name)
    while event := heap.pop(5.0):
        action, args = event
        action(*args)
    assert seen == ["a", "b", "c", "d"]
    assert (heap.now_ms, len(heap), heap.popped) == (2.0, 1, 4)
    with pytest.raises(AssertionError):
        heap.push(1.0, seen.append, "past")


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_survives_json(seed):
    schedule = draw_schedule(seed)
    assert schedule == draw_schedule(seed)
    data = msgspec.json.encode(schedule)
    assert msgspec.json.decode(data, type=Schedule) == schedule


def test_schedules_have_what_was_promised_of_them():
    schedules = [draw_schedule(seed) for seed in range(150)]
    kinds = {fault.kind for schedule in schedules for fault in schedule.faults}
    assert kinds >= {*KINDS, *STORE_KINDS}
    assert {schedule.settings.members for schedule in schedules} == {1, 2, 3, 4, 5, 6, 7}
    for schedule in schedules:
        settings = schedule.settings
        operations = sum(call.count for call in schedule.calls)
        assert operations >= 200 * settings.run_ms / 1000
        assert len(schedule.faults) >= 5
        assert all(fault.start_ms > 0 and fault.duration_ms > 0 for fault in schedule.faults)
        assert max(fault.end_ms for fault in schedule.faults) <= settings.run_ms - 7000
        calls_end_ms = settings.run_ms - settings.idle_ms
        assert all(call.at_ms < calls_end_ms for call in schedule.calls)
    mixes = {frozenset(fault.kind for fault in schedule.faults) for schedule in schedules}
    assert len(mixes) > 100  # swarm: hardly two seeds have the same mix


def test_faults_can_be_chosen():
    none = draw_schedule(3, Options(faults=()))
    assert none.faults == ()
    crashes = draw_schedule(3, Options(faults=("crash",), members=4))
    assert {fault.kind for fault in crashes.faults} == {"crash"}
    assert crashes.settings.members == 4


def test_machines_that_answer_from_the_page_cache_keep_it():
    for seed in range(200):
        schedule = draw_schedule(seed)
        if schedule.settings.ack == "page-cache":
            assert not any(getattr(f, "loses_unsynced", False) for f in schedule.faults)


def test_links_stand_for_pairs():
    members = ("n0", "n1", "n2")
    both = expand_links(((LEADER, ALL), (ALL, LEADER)), members, "n1")
    assert set(both) == {("n1", "n0"), ("n1", "n2"), ("n0", "n1"), ("n2", "n1")}
    assert expand_links(((FOLLOWER, LEADER),), members, "n0") == (("n1", "n0"),)
    assert expand_links((("n0", "n0"),), members, None) == ()
    now = ("n0", "n2", "n3")
    instead = stand_ins(members, now)
    assert instead == {"n1": "n3"}
    assert expand_links((("n1", LEADER),), now, "n0", instead) == (("n3", "n0"),)
    assert expand_links((("n1", LEADER),), now, "n0") == (("n1", "n0"),)
    assert stand_ins(members, ("n0", "n2")) == stand_ins(members, (*members, "n3")) == {}
    cut = Cut(start_ms=0, duration_ms=50, links=(("n0", "n1"),))
    assert (cut.kind, cut.end_ms) == ("cut", 50)

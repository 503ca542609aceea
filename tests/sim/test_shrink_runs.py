"""Failing runs get small: faults, operations, times; the broken invariant stays the same."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from shaketable.system import mutants
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.schedules.faults import Crash, CrashAtOperation, Pause
from shaketable.system.sim.schedules.schedule import (
    Call,
    Options,
    Schedule,
    Settings,
    draw_schedule,
    raft_config,
)
from shaketable.system.sim.shrinking import (
    BadShrunkFile,
    Limits,
    NothingToShrink,
    Progress,
    RunNumbers,
    count_events,
    load,
    runs_of,
    save,
    shrink,
)

BROKEN = Violation("one-leader-a-term", "n0 and n1", 4100.0, "n0")


def large() -> Schedule:
    """Eight faults and 600 calls, of which two and two matter to `fails`."""
    calls = [Call(10 * n, n % 4, "append", n % 2, count=1 + n % 3) for n in range(600)]
    faults = [Pause(start_ms=at, duration_ms=500, node="n1") for at in range(500, 3500, 500)]
    return Schedule(
        seed=7,
        settings=Settings(members=5, run_ms=8000, clients=4),
        faults=(
            *faults,
            Crash(start_ms=3500, duration_ms=900, node="leader"),
            CrashAtOperation(start_ms=3600, duration_ms=300, node="n2", operations=40),
        ),
        calls=tuple(calls),
    )


def fails(schedule: Schedule) -> Violation | None:
    """Needs both crashes, three operations on the disk, one call of each queue, in this order."""
    crashes = [fault for fault in schedule.faults if isinstance(fault, Crash)]
    others = [fault for fault in schedule.faults if isinstance(fault, CrashAtOperation)]
    if not (crashes and others and others[0].operations >= 3 and crashes[0].duration_ms >= 200):
        return None
    before = [call for call in schedule.calls if call.at_ms < crashes[0].start_ms]
    queues = {call.queue for call in before}
    at_ms = float(others[0].start_ms + 500)
    if queues != {0, 1} or schedule.settings.run_ms < at_ms:
        return None
    return replace(BROKEN, at_ms=at_ms)


def test_what_does_not_matter_goes() -> None:
    shrunk = shrink(large(), fails)
    assert shrunk.events == count_events(shrunk.schedule) == 4
    assert [type(fault) for fault in shrunk.schedule.faults] == [Crash, CrashAtOperation]
    assert sorted(call.queue for call in shrunk.schedule.calls) == [0, 1]
    crash, at_operation = shrunk.schedule.faults
    assert crash.duration_ms == 200
    assert isinstance(at_operation, CrashAtOperation)
    assert at_operation.operations == 3
    assert shrunk.schedule.settings.members == 3
    assert shrunk.schedule.settings.run_ms < 700
    assert shrunk.is_finished
    assert shrunk.violation.invariant == BROKEN.invariant
    assert fails(shrunk.schedule) == shrunk.violation


def test_the_same_run_shrinks_to_the_same() -> None:
    first, second = shrink(large(), fails), shrink(large(), fails)
    assert first.schedule == second.schedule
    assert first.runs == second.runs


def test_another_invariant_does_not_count() -> None:
    def either(schedule: Schedule) -> Violation | None:
        return fails(schedule) or Violation("node-starts", "easier to break", 1.0, "n2")

    shrunk = shrink(large(), either)
    assert shrunk.violation.invariant == BROKEN.invariant
    assert shrunk.events == 4


def test_no_settings_are_tried_under_which_no_node_starts() -> None:
    def with_a_lease(schedule: Schedule) -> Violation | None:
        raft_config(schedule.settings)  # raises for a lease as long as an election timeout
        slow = schedule.settings.heartbeat_interval_ms > 90
        return fails(schedule) if slow else None

    begin = replace(
        large().settings,
        election_timeout_min_ms=800.0,
        election_timeout_max_ms=1000.0,
        heartbeat_interval_ms=100.0,
        lease_ms=750.0,
    )
    shrunk = shrink(replace(large(), settings=begin), with_a_lease)
    assert shrunk.schedule.settings.heartbeat_interval_ms == 100.0
    assert shrunk.schedule.settings.lease_ms == 0.0


def test_limits_end_it_with_the_best_so_far() -> None:
    shrunk = shrink(large(), fails, limits=Limits(runs_max=12))
    assert shrunk.runs == 12
    assert not shrunk.is_finished
    assert fails(shrunk.schedule) == shrunk.violation
    assert shrunk.events < count_events(large())
    at_once = shrink(large(), fails, limits=Limits(seconds_max=0.0))
    assert at_once.runs == 1
    assert at_once.schedule == large()


def test_progress_tells_of_every_run() -> None:
    seen: list[Progress] = []
    shrunk = shrink(large(), fails, progress=seen.append)
    assert [progress.runs for progress in seen] == list(range(2, shrunk.runs + 1))
    assert seen[-1].events == shrunk.events
    assert all(a.events >= b.events for a, b in pairwise(seen))


def test_a_run_that_is_fine_cannot_shrink() -> None:
    with pytest.raises(NothingToShrink, match="seed 7 breaks nothing"):
        shrink(large(), lambda schedule: None)


def test_a_run_stuck_under_its_seed_is_tried_under_others() -> None:
    def stubborn(schedule: Schedule) -> Violation | None:
        enough = 100 if schedule.seed == 7 else 2
        return BROKEN if sum(call.count for call in schedule.calls) >= enough else None

    shrunk = shrink(large(), stubborn)
    assert shrunk.seed != 7
    assert shrunk.events == 2


def test_known_numbers_give_back_the_schedule() -> None:
    schedule = draw_schedule(3, Options(run_ms=12_000))
    numbers = RunNumbers(schedule)
    assert numbers.build(numbers.known) == schedule
    assert all(number >= 0 for number in numbers.known)


def test_a_shorter_pause_moves_what_follows() -> None:
    schedule = replace(
        large(),
        faults=(Pause(start_ms=1000, duration_ms=500, node="n1"),),
        calls=(Call(400, 0, "append", 0), Call(1500, 0, "append", 0)),
    )
    numbers = RunNumbers(schedule)
    changed = numbers.build([0, *numbers.known[1:]])
    assert [call.at_ms for call in changed.calls] == [0, 1100]
    assert changed.faults[0].start_ms == 600
    assert changed.settings.run_ms == 8000 - 400


def test_a_planted_bug_shrinks_and_fails_again_from_its_file(tmp_path: Path) -> None:
    mutant = mutants.load("ack-before-quorum")
    run = runs_of(mutant)
    schedule = draw_schedule(0, Options(run_ms=12_000, operations_per_s=60))
    shrunk = shrink(schedule, run, mutant=mutant.name)
    assert shrunk.events < 25
    assert shrunk.events < count_events(schedule) / 10
    path = tmp_path / "shrunk.json"
    save(shrunk, path)
    loaded = load(path)
    assert loaded == shrunk
    assert run(loaded.schedule) == shrunk.violation
    assert runs_of()(loaded.schedule) is None, "the same run is fine without the bug"


def test_a_bad_file_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadShrunkFile, match="is no shrunk run"):
        load(tmp_path / "nothing.json")
    path = tmp_path / "shrunk.json"
    path.write_text('{"schedule": 3}')
    with pytest.raises(BadShrunkFile, match="is no shrunk run"):
        load(path)

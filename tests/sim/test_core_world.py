"""The core world: clean seeds are clean, the same seed is the same run, and faults take hold."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from shaketable.system.broker.deliveries import DelayDelivery
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.groups.group_offsets import OffsetTable
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.member_state import DiskHealth
from shaketable.system.sim import world
from shaketable.system.sim.schedules.faults import (
    ALL,
    LEADER,
    AddMember,
    BitRot,
    Crash,
    Cut,
    Expire,
    FailFsync,
    FullDisk,
    RemoveMember,
    ReplaceMember,
    SlowDisk,
    Transfer,
    Wipe,
)
from shaketable.system.sim.schedules.schedule import Call, Options, Schedule, Settings
from shaketable.system.sim.world import run_seed

SHORT = Options(run_ms=12_000, operations_per_s=100)


def test_a_whole_seed_does_what_was_promised_of_it():
    result = run_seed(1)
    assert result.violation is None
    assert result.counts.operations >= 200 * 30
    assert sum(result.counts.faults.values()) >= 3
    assert len(result.history) == result.counts.operations


@pytest.mark.parametrize("seed", [3, 8])
def test_a_seed_is_one_run_in_every_process(seed):
    lines: list[str] = []
    here = run_seed(seed, SHORT, trace=lines.append)
    assert run_seed(seed, SHORT).digest == here.digest
    program = (
        "import hashlib; from shaketable.system.sim.world import run_seed; "
        "from shaketable.system.sim.schedules.schedule import Options; lines = []; "
        f"r = run_seed({seed}, Options(run_ms=12_000, operations_per_s=100), trace=lines.append); "
        "print(r.digest); print('\\n'.join(lines))"
    )
    for hash_seed in ("1", "77"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        )
        digest, _, trace = done.stdout.partition("\n")
        assert digest == here.digest
        assert trace == "\n".join(lines) + "\n"


def test_other_seeds_are_other_runs():
    assert len({run_seed(seed, SHORT).digest for seed in range(4)}) == 4


def scene(*faults, members=3, run_ms=14_000, **settings) -> Schedule:
    """A small group under steady load, with these faults and none other."""
    calls = tuple(
        Call(at_ms, at_ms // 50 % 3, "batch", 0, 6, 0, 100)
        for at_ms in range(500, run_ms - 1500, 50)
    )
    reads = tuple(
        Call(at_ms, at_ms // 250 % 3, "pull", 0, 1, 20) for at_ms in range(600, run_ms - 1500, 250)
    )
    ordered = tuple(sorted(calls + reads, key=lambda call: call.at_ms))
    chosen = Settings(members=members, run_ms=run_ms, data_file_bytes=8192, **settings)
    return Schedule(seed=11, settings=chosen, faults=faults, calls=ordered)


def run(*faults, **settings):
    result = run_seed(0, schedule=scene(*faults, **settings))
    assert result.violation is None
    return result.counts


def test_without_faults_everything_is_acknowledged():
    counts = run()
    assert (counts.unknown, counts.crashes, counts.elections, counts.truncations) == (0, 0, 1, 0)
    assert counts.acknowledged + counts.reads + counts.refused == counts.operations
    assert counts.checkpoints > 0


def test_a_leader_cut_off_one_way_is_replaced_and_truncated():
    cut = Cut(start_ms=3000, duration_ms=2000, links=((LEADER, ALL),))
    counts = run(cut)
    assert counts.faults == {"cut": 1}
    assert counts.elections >= 2
    assert counts.truncations >= 1


def test_a_whole_group_that_loses_power_keeps_what_it_acknowledged():
    faults = [Crash(start_ms=4000, duration_ms=800, node=f"n{n}") for n in range(3)]
    counts = run(*faults)
    assert (counts.crashes, counts.restarts) == (3, 3)


def test_a_follower_behind_the_retained_log_gets_a_snapshot():
    down = Crash(start_ms=2000, duration_ms=4000, node="follower", loses_unsynced=False)
    counts = run(down, Expire(start_ms=4500, duration_ms=1000))
    assert counts.compactions > 0
    assert counts.snapshot_installs >= 1


def test_a_wiped_node_comes_back_under_a_new_id():
    counts = run(Wipe(start_ms=3000, duration_ms=100, node="n1"))
    assert counts.membership_changes == 2
    counts = run(
        Expire(start_ms=3000, duration_ms=1500), Wipe(start_ms=4600, duration_ms=100, node=LEADER)
    )
    assert counts.membership_changes == 2
    assert counts.snapshot_installs >= 1


def test_a_rotten_log_is_found_and_its_node_replaced():
    for place in (0.1, 0.5, 0.9):
        counts = run(BitRot(start_ms=3000, duration_ms=500, node="n2", place=place, bit=3))
        assert counts.faults == {"bit_rot": 1}
        assert counts.membership_changes == 2
    empty = BitRot(start_ms=50, duration_ms=50, node="n2", place=0.5, bit=3)
    assert run(empty).faults == {}  # nothing to rot: nothing happens


def test_a_disk_that_fails_where_a_bit_is_to_rot_ends_its_node_and_not_the_run():
    failing = FailFsync(start_ms=3040, duration_ms=500, node="n2")
    rot = BitRot(start_ms=3040, duration_ms=500, node="n2", place=0.5, bit=3)
    counts = run(failing, rot, mark_lag_ms=5000)
    assert counts.faults == {"fail_fsync": 1}
    assert counts.stopped_by_disk == 1


def test_a_disk_that_fails_at_the_first_write_after_a_start_lets_the_node_start_again():
    crash = Crash(start_ms=3000, duration_ms=1000, node="n0")
    failing = FailFsync(start_ms=4100, duration_ms=500, node="n0")
    counts = run(crash, failing, members=1)
    assert (counts.stopped_by_disk, counts.restarts) == (1, 2)


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        (AddMember(start_ms=3000, duration_ms=500), 1),
        (RemoveMember(start_ms=3000, duration_ms=500, node=LEADER), 1),
        (RemoveMember(start_ms=3000, duration_ms=500, node="n1"), 1),
        (ReplaceMember(start_ms=3000, duration_ms=500, node=LEADER), 2),
    ],
)
def test_members_change(fault, changes):
    assert run(fault).membership_changes == changes


def test_leadership_is_handed_over():
    counts = run(Transfer(start_ms=3000, duration_ms=500, to="follower"))
    assert (counts.transfers, counts.elections) == (1, 2)
    assert counts.unknown == 0


def test_a_full_disk_refuses_definitely_and_heals():
    counts = run(FullDisk(start_ms=3000, duration_ms=1500, node=LEADER, spare_bytes=0))
    assert counts.faults == {"full_disk": 1}
    assert counts.acknowledged > 0.6 * counts.operations


@pytest.mark.parametrize("members", [1, 2, 5])
def test_groups_of_every_size(members):
    counts = run(Crash(start_ms=4000, duration_ms=700, node="n0"), members=members)
    assert counts.restarts == 1


def test_faults_that_find_nothing_to_do_are_not_counted():
    counts = run(
        Crash(start_ms=3000, duration_ms=1000, node="n0"),
        Crash(start_ms=3500, duration_ms=100, node="n0"),
        Wipe(start_ms=3000, duration_ms=100, node="n9"),
    )
    assert counts.faults == {"crash": 1}


def with_delays(*faults):
    """Like `scene`, with a delayed message each 300 ms for the first half."""
    schedule = scene(*faults, run_ms=24_000, checkpoint_interval_ms=1_000.0)
    delayed = [Call(at_ms, at_ms // 300 % 3, "delay", 1) for at_ms in range(700, 9_000, 300)]
    calls = tuple(sorted((*schedule.calls, *delayed), key=lambda call: call.at_ms))
    return msgspec.structs.replace(schedule, calls=calls)


NEW_LEADERS = (
    Crash(start_ms=4000, duration_ms=700, node=LEADER),
    Crash(start_ms=7000, duration_ms=700, node=LEADER),
    Crash(start_ms=16_000, duration_ms=700, node="follower"),
)


def test_delayed_messages_are_delivered_once():
    result = run_seed(0, schedule=with_delays(*NEW_LEADERS))
    assert result.violation is None
    outcomes = [each.outcome for each in result.history if each.kind == "delay"]
    assert outcomes.count("ok") > 15


def forget_all(monkeypatch):
    monkeypatch.setattr(DelayDelivery, "_deliver_level", lambda *_: (0, 0))


def deliver_again(monkeypatch):
    monkeypatch.setattr(DelayDelivery, "_done", lambda *_: 0)


def keep_old_state(monkeypatch):
    states: dict[int, object] = {}
    state = OffsetTable.state
    monkeypatch.setattr(
        OffsetTable, "state", lambda table: states.setdefault(id(table), state(table))
    )


def load_no_offsets(monkeypatch):
    monkeypatch.setattr(OffsetTable, "restore", lambda *_: None)


@pytest.mark.parametrize(
    ("bug", "invariant"),
    [
        (forget_all, "delayed-is-delivered"),
        (deliver_again, "stored-once"),
        (keep_old_state, "saved-state-is-the-state"),
        (load_no_offsets, "equal-logs-give-equal-states"),
    ],
)
def test_wrong_deliveries_and_wrong_progress_are_found(monkeypatch, bug, invariant):
    bug(monkeypatch)
    found = run_seed(0, schedule=with_delays(*NEW_LEADERS)).violation
    assert found is not None
    assert found.invariant == invariant


class NeverQuiteThere(DiskHealth):
    """Waits for the last write that was handed out, and not for those that waited first."""

    def written(self, write_seq, now_ms):
        super().written(write_seq, now_ms)
        self._waiting_seq = write_seq


def test_a_slow_disk_does_not_count_as_stalled(monkeypatch):
    slow = SlowDisk(start_ms=3000, duration_ms=4500, node=LEADER, factor=100.0)
    assert run(slow).faults == {"slow_disk": 1}
    monkeypatch.setattr(RaftCore, "disk_type", NeverQuiteThere)
    found = run_seed(0, schedule=scene(slow)).violation
    assert found is not None
    assert found.invariant == "slow-is-not-stalled"


def test_an_offset_is_acknowledged_when_it_is_committed(monkeypatch):
    """Also where it is the same as the one that is being committed."""
    schedule = scene(run_ms=9_000)
    more = [Call(at_ms, at_ms // 20 % 3, "commit", 0) for at_ms in range(600, 6_000, 20)]
    calls = tuple(sorted((*schedule.calls, *more), key=lambda call: call.at_ms))
    schedule = msgspec.structs.replace(schedule, calls=calls)
    assert run_seed(0, schedule=schedule).violation is None
    monkeypatch.setattr(EventLog, "answer_when_acknowledged", answer_at_once)
    found = run_seed(0, schedule=schedule).violation
    assert found is not None
    assert found.invariant == "acknowledged-is-committed"


def answer_at_once(events, connection, request, now_ms, ext=None):
    del now_ms
    events._outbox.answer(connection, request, ext=ext)


def test_what_has_expired_on_a_member_that_is_wiped_later_need_not_be_delivered(monkeypatch):
    """It expired there before it was delivered, while the others were away and kept it."""
    away = [
        Crash(start_ms=5000, duration_ms=200, node=name, loses_unsynced=False)
        for name in ("n0", "n1")
    ]
    wiped = Wipe(start_ms=11_000, duration_ms=500, node="n2")
    faults = (*away, Expire(start_ms=5050, duration_ms=600), wiped)
    schedule = scene(*faults, run_ms=22_000, checkpoint_interval_ms=300.0)
    delayed = [Call(at_ms, at_ms // 130 % 3, "delay", 1) for at_ms in range(700, 9_000, 130)]
    calls = tuple(sorted((*schedule.calls, *delayed), key=lambda call: call.at_ms))
    schedule = msgspec.structs.replace(schedule, calls=calls)
    assert run_seed(0, schedule=schedule).violation is None
    judge = world.check_delivered
    monkeypatch.setattr(
        world, "check_delivered", lambda *args, **more: judge(*args, **{**more, "from_position": 0})
    )
    found = run_seed(0, schedule=schedule).violation
    assert found is not None
    assert found.invariant == "delayed-is-delivered"

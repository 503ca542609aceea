"""Damaged files, stops in order, key queries and refused changes: clean as it is, found if not."""

from __future__ import annotations

from contextlib import suppress

import pytest

from shaketable.system.raft import leadership, membership
from shaketable.system.sim.broken_starts import broken_folders, broken_hints
from shaketable.system.sim.group_operator import UNKNOWN_MEMBER
from shaketable.system.sim.initial_disks.plain_messages import SHAPES
from shaketable.system.sim.schedules.faults import (
    ALWAYS_DETECTED,
    REBUILT,
    WAYS,
    AnyFault,
    ClockOffset,
    DamageFile,
    RefusedChange,
    Stop,
)
from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.sim.schedules.schedule import Options, Schedule, Settings, draw_calls
from shaketable.system.sim.world import SeedResult, run_seed
from shaketable.system.store import commit_log, state_files
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint, CheckpointFiles
from shaketable.system.store.consume_queue_files import ConsumeQueueFiles
from shaketable.system.store.disk import DiskFailed
from shaketable.system.store.key_index import KeyFileWriter, KeyIndex
from shaketable.system.store.segment_files import OpenFiles

KEYED = {"key_items_max": 100, "key_slots": 50, "key_file_items": 200, "keyed": 1.0}


def scene(*faults: AnyFault, **changed: object) -> Schedule:
    settings = Settings(run_ms=9000, idle_ms=1500, checkpoint_interval_ms=1000.0, **changed)
    calls = draw_calls(RandomStreams(4).stream("calls"), settings, 60)
    return Schedule(seed=4, settings=settings, faults=faults, calls=calls)


def run(*faults: AnyFault, **changed: object) -> SeedResult:
    return run_seed(4, schedule=scene(*faults, **changed))


def broken_by(*faults: AnyFault, **changed: object) -> str:
    violation = run(*faults, **changed).violation
    assert violation is not None
    return violation.invariant


def damage(file: str, way: str, place: float = 0.4) -> DamageFile:
    return DamageFile(start_ms=3500, duration_ms=400, node="n1", file=file, way=way, place=place)


@pytest.mark.parametrize(("file", "way"), [(file, way) for file in REBUILT for way in WAYS[file]])
def test_what_can_be_rebuilt_is_rebuilt(file, way):
    result = run(damage(file, way), **KEYED)
    assert result.violation is None
    assert result.counts.files_damaged == 1
    assert result.counts.membership_changes == 0


@pytest.mark.parametrize("way", WAYS["currterm"])
@pytest.mark.parametrize("file", ["currterm", "syncedto"])
def test_a_node_without_its_vote_or_mark_is_replaced(file, way):
    result = run(damage(file, way))
    assert result.violation is None
    assert file in ALWAYS_DETECTED
    assert result.counts.damage_noticed == 1
    assert result.counts.membership_changes == 2


def test_a_vote_whose_damage_is_passed_over_is_found(monkeypatch):
    def unchecked(data):
        lines = data.rpartition(b"crc32=")[0].decode().splitlines()
        return dict(line.split("=") for line in lines)

    monkeypatch.setattr(state_files, "_parse_properties", unchecked)
    assert broken_by(damage("currterm", "bit", 0.95)) == "damage-is-noticed"


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("ack", ["fsync", "page-cache"])
def test_a_stop_in_order_loses_nothing(loses_power, ack):
    stop = Stop(start_ms=3500, duration_ms=400, node="n1", loses_power=loses_power)
    result = run(stop, ack=ack)
    assert result.violation is None
    assert result.counts.stops == 1


def test_a_stop_that_is_taken_for_a_crash_is_found(monkeypatch):
    monkeypatch.setattr(commit_log, "mark_stopped", lambda *_: None)
    stop = Stop(start_ms=3500, duration_ms=400, node="n1")
    assert broken_by(stop) == "abort-marks-a-crash"


def test_a_stop_without_a_sync_is_found(monkeypatch):
    def close_unsynced(self):
        commit_log.mark_stopped(self._disk, self._root)

    monkeypatch.setattr(commit_log.CommitLog, "close", close_unsynced)
    monkeypatch.setattr(commit_log.CommitLog, "advance_watermark", lambda _: None)
    stops = [
        Stop(start_ms=at_ms, duration_ms=200, node="n1", loses_power=True)
        for at_ms in range(2000, 6000, 500)
    ]
    assert broken_by(*stops, ack="page-cache") in ("stop-keeps-all", "durable-survives")


@pytest.mark.parametrize("why", ["unknown", "present", "nameless", "no_voter"])
@pytest.mark.parametrize("members", [1, 3])
def test_a_change_that_makes_no_sense_is_refused(why, members):
    result = run(RefusedChange(start_ms=3500, duration_ms=100, why=why), members=members)
    assert result.violation is None
    assert result.counts.changes_refused == 1


def test_a_change_that_is_not_checked_is_found(monkeypatch):
    right = membership.changed

    def unchecked(membership, change):
        return membership if change.member == UNKNOWN_MEMBER else right(membership, change)

    monkeypatch.setattr(leadership, "changed", unchecked)
    why = RefusedChange(start_ms=3500, duration_ms=100, why="unknown")
    assert broken_by(why) == "changes-are-checked"


def test_messages_are_found_by_their_keys():
    result = run(**KEYED)
    assert result.violation is None
    assert result.counts.keys_found > 0


def test_a_key_that_finds_too_little_is_found(monkeypatch):
    right = KeyIndex.candidates

    def all_but_the_newest(self, *asked):
        yield from list(right(self, *asked))[1:]

    monkeypatch.setattr(KeyIndex, "candidates", all_but_the_newest)
    assert broken_by(**KEYED) == "keys-find-messages"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_plain_log_stays_readable_under_the_group(shape):
    result = run(plain_log=shape, data_file_bytes=16_384)
    assert result.violation is None
    assert result.counts.acknowledged > 0


def test_a_damaged_batch_that_is_taken_is_found(monkeypatch):
    monkeypatch.setattr("shaketable.system.sim.world.BROKEN", 1.0)
    assert run_seed(2, Options(run_ms=9000, operations_per_s=60)).violation is None
    monkeypatch.setattr(broken_folders, "verify_batch", lambda *_: None)
    assert broken_by() == "broken-is-refused"


class Believer(CheckpointFiles):
    """Goes on with what it has where nothing fits."""

    def load(self, log):
        return super().load(log) or BrokerCheckpoint(-1, 0, -1, b"")


def hints_alone(monkeypatch: pytest.MonkeyPatch, way: str, queries: float = 0.0) -> None:
    """Have but one way to break hints, at the end of every run."""
    monkeypatch.setattr("shaketable.system.sim.world.BROKEN", 1.0)
    monkeypatch.setattr(broken_hints, "QUERIES", queries)
    monkeypatch.setattr(broken_hints, "_WAYS", (getattr(broken_hints, f"_{way}"),))


@pytest.mark.parametrize("way", [way.__name__[1:] for way in broken_hints._WAYS])
def test_hints_that_do_not_fit_are_passed_over(monkeypatch, way):
    hints_alone(monkeypatch, way)
    assert run(**KEYED).violation is None
    monkeypatch.setattr(broken_hints, "CheckpointFiles", Believer)
    assert broken_by(**KEYED) == "hints-are-checked"


@pytest.mark.parametrize("way", ["a_slot_of_no_item", "a_negative_slot", "a_short_key_file"])
def test_a_damaged_key_file_that_is_gone_on_with_is_found(monkeypatch, way):
    hints_alone(monkeypatch, way)
    monkeypatch.setattr(KeyFileWriter, "cut", lambda _: True)
    assert broken_by(**KEYED) == "hints-are-checked"


@pytest.mark.parametrize("way", ["a_lost_queue_file", "a_short_queue_file"])
def test_a_queue_file_that_is_believed_in_unread_is_found(monkeypatch, way):
    hints_alone(monkeypatch, way)
    monkeypatch.setattr(ConsumeQueueFiles, "holds", lambda *_: True)
    assert broken_by(**KEYED) == "hints-are-checked"


def test_a_start_that_ends_on_a_lost_queue_file_is_found(monkeypatch):
    hints_alone(monkeypatch, "a_lost_queue_file")
    monkeypatch.setattr(OpenFiles, "has", lambda *_: True)
    assert broken_by(**KEYED) == "hints-are-checked"


def test_a_query_that_hides_a_failing_disk_is_found(monkeypatch):
    hints_alone(monkeypatch, "a_lost_key_file", queries=1.0)
    assert run(**KEYED).violation is None
    right = KeyIndex._read_file

    def hidden(self, *place):
        with suppress(DiskFailed):
            return right(self, *place)

    monkeypatch.setattr(KeyIndex, "_read_file", hidden)
    assert broken_by(**KEYED) == "hints-are-checked"


def test_a_log_that_answers_from_outside_of_it_is_found(monkeypatch):
    monkeypatch.setattr("shaketable.system.sim.world.BROKEN", 1.0)
    right = commit_log.CommitLog.read_entries

    def clamped(self, first_index, bytes_max):
        return right(self, min(max(first_index, self.first_index), self.end.index), bytes_max)

    monkeypatch.setattr(commit_log.CommitLog, "read_entries", clamped)
    assert broken_by() == "broken-is-refused"


def test_a_damaged_message_that_is_taken_is_found(monkeypatch):
    monkeypatch.setattr("shaketable.system.sim.world.BROKEN", 1.0)
    monkeypatch.setattr(broken_folders, "decode_message", lambda *_: None)
    assert broken_by() == "broken-is-refused"


def test_what_a_clock_that_is_behind_stores_and_no_query_finds_is_found(monkeypatch):
    back = ClockOffset(start_ms=2000, duration_ms=4000, node="leader", offset_ms=-60_000)
    one_file = {**KEYED, "key_file_items": 2000}
    assert run(back, **one_file).violation is None
    right = KeyIndex._written
    monkeypatch.setattr(
        KeyIndex,
        "_written",
        lambda self, writer: right(self, writer)._replace(earliest_ms=writer.header.begin_ms),
    )
    assert broken_by(back, **one_file) == "keys-find-messages"

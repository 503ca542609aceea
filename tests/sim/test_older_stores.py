"""Groups that begin with what stood there before: clean as it is, found where some is lost."""

from __future__ import annotations

from itertools import islice

import pytest

from shaketable.system.broker import reput
from shaketable.system.broker.reput import Reput
from shaketable.system.broker.topic_tables import taken_over
from shaketable.system.sim.initial_disks.apache_log import SHAPES
from shaketable.system.sim.schedules.faults import Crash
from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.sim.schedules.schedule import Schedule, Settings, draw_calls
from shaketable.system.sim.trio_world.world import run_seed as run_node_seed
from shaketable.system.sim.world import SeedResult, run_seed
from shaketable.system.store.foreign_log import ForeignLog

FAULTS = (Crash(start_ms=2000, duration_ms=400, node="leader", loses_unsynced=True),)


def scene(seed: int, **changed: object) -> Schedule:
    settings = Settings(run_ms=8000, idle_ms=1500, data_file_bytes=16_384, **changed)
    calls = draw_calls(RandomStreams(seed).stream("calls"), settings, 30)
    return Schedule(seed=seed, settings=settings, faults=FAULTS, calls=calls)


def broken_by(**changed: object) -> str:
    violation = run_seed(4, schedule=scene(4, **changed)).violation
    assert violation is not None
    return violation.invariant


def assert_clean(result: SeedResult) -> None:
    assert result.violation is None
    assert result.counts.acknowledged > 0


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_group_goes_on_behind_an_imported_log(shape: str, seed: int) -> None:
    """Also where a term began that nobody knew to be committed: no entry stands for its start."""
    members = 3 + seed % 2 * 2
    changed = {"apache_log": shape, "older_config": seed % 2 == 0, "members": members}
    assert_clean(run_seed(seed, schedule=scene(seed, **changed)))


@pytest.mark.parametrize("shape", SHAPES)
def test_whole_nodes_go_on_behind_an_imported_log(shape: str) -> None:
    assert_clean(run_node_seed(4, schedule=scene(4, apache_log=shape, older_config=True)))


@pytest.mark.parametrize("shape", ["", "torn_first", "full"])
def test_whole_nodes_take_over_what_stood_in_config(shape: str) -> None:
    assert_clean(run_node_seed(5, schedule=scene(5, plain_log=shape, older_config=True)))


def test_an_import_that_leaves_something_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ForeignLog._entries

    monkeypatch.setattr(ForeignLog, "_committed_index", lambda _: -1)
    monkeypatch.setattr(ForeignLog, "_entries", lambda log: islice(right(log), 3))
    assert broken_by(apache_log="even") == "older-log-stays"


def test_topics_that_are_not_taken_over_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = taken_over.apply

    class NoTopics:
        def is_known(self, name: str) -> bool:
            return True

        def get(self, name: str) -> str:
            return name

    monkeypatch.setattr(
        taken_over, "apply", lambda body, _, offsets: right(body, NoTopics(), offsets)
    )
    assert broken_by(older_config=True) == "older-config-stays"


def test_a_leader_that_serves_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shaketable.system.broker.appender.Appender.is_migration_pending", False)
    monkeypatch.setattr(reput.taken_over, "apply", lambda *_: None)
    assert broken_by(older_config=True) == "older-config-stays"


@pytest.mark.parametrize("key_items_max", [0, 400])
def test_events_that_are_passed_over_are_found(
    monkeypatch: pytest.MonkeyPatch, key_items_max: int
) -> None:
    """With the index of keys and without it, entries are dispatched in two ways."""
    monkeypatch.setattr(Reput, "_apply_event", lambda *_: None)
    assert broken_by(older_config=True, key_items_max=key_items_max) == "appends-succeed"

"""What a broker saved of offsets is loaded again, whatever ended its process."""

from __future__ import annotations

import pytest
import trio

from shaketable.harness.targets import master_slave_brokers
from shaketable.harness.targets.multi_master import PLUGIN as MASTERS
from shaketable.harness.targets.simulated_group import BrokerGroup
from shaketable.system import mutants
from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.invariants.saved_files import SavedFiles, older_offset
from shaketable.system.invariants.violated import Violated
from shaketable.system.master_slave.config_files import TOPICS, encode_tables, load_tables
from shaketable.system.store.disk import DiskFailed, StoreError
from shaketable.system.store.group_events import TOPIC_QUEUE
from tests.sim.test_master_slave_invariants import play, send, tried

SAVE_S = 11.0
"""Offsets are written every 5 s, delays every 10."""


async def commit_and_lose_power(
    group: BrokerGroup, client: master_slave_brokers.MasterSlaveClient
) -> None:
    await send(group, client)
    for offset in range(1, 4):  # checkpoints have offsets, too: what was saved is newer
        await client.commit("t/0", offset)
        await client.commit("t/1", offset)
        await trio.sleep(SAVE_S)
    for node in ("n0", "n1"):
        group.kill(node)
        group.start(node)
        await trio.sleep(1)
        await tried(client, 100)
        group.lose_power(node)
        group.start(node)
    await trio.sleep(1)


@pytest.mark.parametrize("bug", ["offsets-not-loaded", "config-file-in-place"])
def test_offsets_that_are_not_there_again_are_told(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    broken = play(monkeypatch, MASTERS, commit_and_lose_power, mutants.load(bug))
    assert "saved-is-loaded" in broken


def test_a_sound_broker_begins_with_what_it_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    assert play(monkeypatch, MASTERS, commit_and_lose_power) == []


def test_a_file_that_cannot_be_read_is_told_unless_the_disk_fails() -> None:
    saved = SavedFiles()
    saved.unreadable(StoreError("bad JSON"))  # nothing was saved: somebody else's file
    saved.replacing("consumerOffset", b'{"offsetTable":{"t@g":{"0":5}}}')
    saved.unreadable(StoreError("bad JSON"))  # nor was it ever replaced
    saved.done("consumerOffset")
    saved.unreadable(DiskFailed("EIO"))
    with pytest.raises(Violated, match="bad JSON"):
        saved.unreadable(StoreError("bad JSON"))


@pytest.mark.parametrize(
    ("saved", "loaded", "said"),
    [
        ({"t@g": {"0": 5}}, {"t@g": {"0": 5}}, ""),
        ({"t@g": {"0": 5}}, {"t@g": {"0": 6, "1": 1}}, ""),
        (
            {"t@g": {"0": 5}},
            {"t@g": {"0": 4}},
            "it begins at 4 in queue 0 of t@g, 5 had",
        ),
        ({"t@g": {"0": 5}}, {}, "it begins with none in queue 0 of t@g, 5 had"),
        ({"2": 7}, {"2": 6}, "it begins at 6 in level 2, 7 had"),
    ],
)
def test_the_offset_that_is_older_is_named(saved: object, loaded: object, said: str) -> None:
    assert older_offset(loaded, saved) == (f"{said} been saved" if said else "")


def test_a_count_of_changes_that_falls_is_told() -> None:
    tables = BrokerTables(BrokerConfig(), BrokerState({}, {}, {}))
    tables.versions[TOPIC_QUEUE] = 3
    saved = SavedFiles()
    data = encode_tables(TOPICS, tables, 0)
    saved.replacing(TOPICS, data)
    saved.check(BrokerTables(BrokerConfig(), BrokerState({}, {}, {})))  # nobody knows yet
    saved.done(TOPICS)
    saved.check(tables)
    begun = BrokerTables(BrokerConfig(), BrokerState({}, {}, {}))
    with pytest.raises(Violated, match="begins at change 0, change 3 had been saved"):
        saved.check(begun)
    load_tables(TOPICS, data, begun)  # which says nothing new, but how often it was changed
    saved.check(begun)

"""Masters and slaves of the master-slave modes: who is what, also when a disk is lost."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from shaketable.harness import discovery
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import BUILT_IN, Campaign, load, repeat_command
from shaketable.harness.contracts.abilities import LosesDisks, NamesBrokers
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Address, Launch, NodeLayout, NodeStatus
from shaketable.harness.contracts.simulation import SimulatesGroups
from shaketable.harness.runtime import availability
from shaketable.harness.targets import master_slave_brokers
from shaketable.system.master_slave.core import BrokerRole
from shaketable.system.node.config import parse

MODES = ("async-replication", "multi-master", "sync-double-write")


def fresh(name: str) -> master_slave_brokers.MasterSlaveTarget:
    known = discovery.get("targets", name)
    return master_slave_brokers.MasterSlaveTarget(
        name, known._role, known.promises, has_slaves=known._has_slaves
    )


def laid_out(folder: Path, size: int) -> dict[str, NodeLayout]:
    nodes = [f"n{number}" for number in range(size)]
    layouts = {}
    for number, node in enumerate(nodes):
        (folder / node).mkdir()
        layouts[node] = NodeLayout(
            node,
            folder / node,
            Address("127.0.0.1", 1000 + number),
            Address("127.0.0.1", 1100 + number),
            {other: Address("127.0.0.1", 1200 + 10 * number + n)
             for n, other in enumerate(nodes) if other != node},
            name_servers=(Address("127.0.0.1", 2000),),
        )  # fmt: skip
    return layouts


def settings(launches: dict[str, Launch]) -> dict[str, tuple]:
    found = {}
    for node, launch in launches.items():
        master_slave = parse(launch.files["broker.conf"]).master_slave
        assert master_slave is not None
        found[node] = (
            master_slave.broker_name,
            master_slave.config.role,
            master_slave.broker_id,
            master_slave.master,
        )
    return found


def test_every_mode_offers_what_the_queue_workload_and_lost_disks_need() -> None:
    for name in MODES:
        target = discovery.get("targets", name)
        assert isinstance(target, NamesBrokers)
        assert isinstance(target, LosesDisks)
        assert target.promises.documented


def test_all_are_masters_or_the_first_ones_with_slaves_in_turn(tmp_path: Path) -> None:
    for name, masters in (("multi-master", 4), ("sync-double-write", 2)):
        folder = tmp_path / name
        folder.mkdir()
        layouts, target = laid_out(folder, 4), fresh(name)
        found = settings({node: target.prepare(layout) for node, layout in layouts.items()})
        for number, node in enumerate(layouts):
            broker, role, broker_id, master = found[node]
            assert broker == f"broker-{number % masters}"
            assert (role is BrokerRole.SLAVE) == (number >= masters) == (broker_id > 0)
            if number >= masters:  # by the link that can be cut
                assert master == ("127.0.0.1", 1200 + 10 * number + number - masters)


def test_the_slave_that_has_most_goes_on_as_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts, target = laid_out(tmp_path, 3), fresh("sync-double-write")
    for layout in layouts.values():
        target.prepare(layout)
    ends = {"n1": 100, "n2": 250}

    async def status(layout: NodeLayout, timeout_s: float) -> NodeStatus:
        await trio.lowlevel.checkpoint()
        end = ends[layout.node]
        return NodeStatus(layout.node, "follower", 0, None, end, end)

    monkeypatch.setattr(target, "status", status)
    assert target.why_not_now("n0", ["n1"]) == "n1 is not back yet"
    assert target.why_not_now("n0", []) is None
    launches = trio.run(target.renew, layouts, "n0", {"n0": 1})
    assert list(launches) == ["n2", "n1", "n0"], "the new master first"
    found = settings(launches)
    assert found["n2"][1:] == (BrokerRole.SYNC_MASTER, 0, None)
    assert found["n0"][1:] == (BrokerRole.SLAVE, 1, ("127.0.0.1", 1202))
    assert found["n1"][1:] == (BrokerRole.SLAVE, 2, ("127.0.0.1", 1212))
    again = trio.run(target.renew, layouts, "n1", {"n0": 1, "n1": 1})
    assert settings(again) == {"n1": found["n1"]}


def test_a_master_alone_comes_back_with_nothing(tmp_path: Path) -> None:
    layouts, target = laid_out(tmp_path, 2), fresh("multi-master")
    before = settings({node: target.prepare(layout) for node, layout in layouts.items()})
    assert target.why_not_now("n0", ["n1"]) is None
    assert settings(trio.run(target.renew, layouts, "n0", {"n0": 1})) == {"n0": before["n0"]}


def test_promises_are_raised_by_hand_and_kept_in_the_campaign() -> None:
    campaign = Campaign(target="async-replication", promise="dledger", faults=("wipe",))
    target = discovery.get("targets", "async-replication")
    raised = campaigns.promises_of(campaign, target)
    assert raised is not None
    assert "wipe" in raised.durable_under - target.promises.durable_under
    assert "offset-went-back" in raised.excludes - target.promises.excludes
    assert (raised.copies, raised.committed_prefix) == (1, False), "how it is built stays"
    assert raised.note.startswith("Raised by hand to what dledger promises.")
    assert campaigns.loads(campaigns.to_toml(campaign), "x") == campaign
    assert campaigns.promises_of(Campaign(target="async-replication"), target) is None
    with pytest.raises(UsageError, match="unknown target 'dleger'; did you mean 'dledger'"):
        campaigns.resolve(Campaign(promise="dleger"))


def test_every_mode_is_simulated_and_says_what_it_is_shaken_by() -> None:
    for name in MODES:
        target = discovery.get("targets", name)
        assert isinstance(target, SimulatesGroups)
        for world in ("process", "netns", "sim"):
            asked = {"target": name, "workload": "queue", "world": world}
            campaign = campaigns.resolve(campaigns.loads("", "x.toml", asked))
            choice = availability.choose(campaign)
            assert {"kill", "pause", "wipe", "disk-full", "disk-stall"} <= choice.faults.keys()
            assert choice.unavailable == {}
    dledger = campaigns.resolve(Campaign(faults=("default", "clock", "kill")))
    own = discovery.get("targets", "dledger").default_faults
    assert dledger.faults == tuple(dict.fromkeys((*own, "clock", "kill")))


def test_a_repeated_run_has_the_same_faults() -> None:
    asked = msgspec.structs.replace(
        load(BUILT_IN),
        target="sync-double-write",
        faults=("kill", "pause", "partition"),
        seed="7",
    )
    command = repeat_command(asked, Path("run"))
    assert command.endswith("--target sync-double-write --faults kill,pause,partition --seed 7")


def test_masters_alone_have_no_links_to_strike() -> None:
    asked = Campaign(target="multi-master", faults=("partition", "delay", "wipe"))
    choice = availability.choose(campaigns.resolve(asked))
    why = "nodes of multi-master do not talk to each other"
    assert choice.unavailable == {"partition": why, "delay": why}
    assert list(choice.faults) == ["wipe"]


def test_a_promotion_waits_for_slaves_that_have_just_been_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both had restarted a second before; the one promoted lacked what the other had, for good."""
    target, layouts = fresh("async-replication"), laid_out(tmp_path, 3)
    for layout in layouts.values():
        target.prepare(layout)
    serves_at_s = {"n1": 2.5, "n2": 1.0}

    async def status(layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        await trio.lowlevel.checkpoint()
        if trio.current_time() < since + serves_at_s[layout.node]:
            await trio.sleep(timeout_s)
            return None
        end = {"n1": 966_716, "n2": 962_042}[layout.node]
        return NodeStatus(layout.node, "follower", 0, None, end, end)

    async def main() -> dict[str, Launch]:
        nonlocal since
        since = trio.current_time()
        return dict(await target.renew(layouts, "n0", {"n0": 1}))

    since = 0.0
    monkeypatch.setattr(target, "status", status)
    launches = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert list(launches) == ["n1", "n2", "n0"]

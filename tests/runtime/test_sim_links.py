"""Links of the simulated world: late, lossy, narrow, reset, half open; exact and repeatable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import permutations
from pathlib import Path

import pytest
import trio

from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.capabilities import LinkShape
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.promises import FAULTS_OF_LINKS
from shaketable.harness.runtime import availability
from shaketable.harness.runtime.group_status import wait_until
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.simulated.world import SimulatedWorld
from shaketable.harness.targets.dledger import DLedgerTarget
from shaketable.harness.targets.simulated_group import BrokerGroup

NODES = ("n0", "n1", "n2")
OPTIONS = {
    "seed": "7",
    "mutant": None,
    "disk": "volatile",
    "ack": "fsync",
    "leases_ms": 0,
    "data_file_bytes": 1 << 20,
    "index_file_bytes": 1 << 18,
}
PATIENCE_S = 20.0
SECONDS = 3.0
Scenario = Callable[[SimulatedWorld], Awaitable[None]]


def play(tmp_path: Path, scenario: Scenario) -> None:
    group = BrokerGroup(DLedgerTarget(), NODES, OPTIONS)
    lines = Lines(tmp_path / "status.jsonl")

    async def main() -> None:
        world = SimulatedWorld(NODES, group, lines, SilentObserver())
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                await nursery.start(world.run)
                world.start_all()
                await ready(world)
                await scenario(world)
                nursery.cancel_scope.cancel()

    group.run(main)
    lines.close()
    assert group.broken == []


async def ready(world: SimulatedWorld) -> None:
    since = trio.current_time()
    is_ready = world.group_status.is_ready
    assert await wait_until(lambda: is_ready(since), PATIENCE_S), world.group_status.why_not_ready()


def did(tmp_path: Path, shape: LinkShape, seconds: float = SECONDS) -> dict:
    """What a shape of the leader's links did in a few seconds of heartbeats."""
    found = {}

    async def scenario(world: SimulatedWorld) -> None:
        leader = await world.leader()
        links = [link for link in permutations(NODES, 2) if leader in link]
        name = await world.shape(links, shape)
        await trio.sleep(seconds)
        found.update(world.shaped(name))
        await world.unshape(name)
        await world.unshape(name)
        after = world.shaped(name)
        await ready(world)
        await trio.sleep(1.0)
        assert world.shaped(name) == after, "gone, it counts no more"
        assert world.restore() == ()

    play(tmp_path, scenario)
    return found


def test_a_delay_is_as_long_as_asked(tmp_path: Path) -> None:
    found = did(tmp_path, LinkShape(delay_ms=60, jitter_ms=20, seed="1"))
    assert found["chunks"] == found["delayed"] > 20
    assert 40 <= found["delay_ms_mean"] <= 80
    assert not found["dropped"] + found["reordered"] + found["resets"] + found["half_open"]


@pytest.mark.parametrize(
    ("shape", "counted"),
    [
        (LinkShape(loss=0.3), "dropped"),
        (LinkShape(corrupt=0.3), "corrupted"),
        (LinkShape(reorder=0.3), "reordered"),
        (LinkShape(rate_bytes_s=2000), "delayed"),
        (LinkShape(mtu_bytes=200), "dropped"),
        (LinkShape(reset_every_ms=500), "resets"),
        (LinkShape(half_open=True), "unread"),
    ],
)
def test_each_shape_counts_what_it_did_and_the_group_is_well_after_it(
    tmp_path: Path, shape: LinkShape, counted: str
) -> None:
    found = did(tmp_path, shape)
    assert found[counted] > 0, found
    assert found == did(tmp_path, shape), "the same seed, the same run"


def test_a_shape_that_asks_for_nothing_does_nothing(tmp_path: Path) -> None:
    found = did(tmp_path, LinkShape(), seconds=0.5)
    assert not any(much for name, much in found.items() if name not in ("bytes", "chunks")), found


def test_what_a_cut_held_is_known_after_it_too(tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        leader = await world.leader()
        cut = await world.cut([link for link in permutations(NODES, 2) if leader in link])
        await trio.sleep(1.0)
        held = world.held(cut)
        assert held["bytes"] > 0
        await world.heal(cut, "deliver")
        await world.heal(cut, "deliver")
        assert world.held(cut) == held
        assert not any(world.held("cut-of-another-life").values())

    play(tmp_path, scenario)


def test_what_is_still_in_force_at_the_end_is_taken_away_and_told(tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        name = await world.shape([("n0", "n1")], LinkShape(delay_ms=900))
        assert world.restore() == (f"{name} was still in force",)
        assert world.restore() == ()
        assert not world.shaped("shape-of-another-life")

    play(tmp_path, scenario)


def test_a_simulation_without_such_links_is_told() -> None:
    world = object.__new__(SimulatedWorld)
    world._group = object()  # type: ignore[assignment]
    with pytest.raises(HarnessError, match="no links that could be shaped"):
        trio.run(world.shape, [("n0", "n1")], LinkShape(delay_ms=1))


def test_only_doubles_are_lacking_and_said_so() -> None:
    campaign = Campaign(world="sim", workload="queue", faults=tuple(FAULTS_OF_LINKS))
    choice = availability.choose(campaign)
    assert list(choice.unavailable) == ["duplicate"]
    assert "TCP drops what comes twice" in choice.unavailable["duplicate"]

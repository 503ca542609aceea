"""Seeds that once broke an invariant, each with what was wrong; they stay clean.

The schedules of the first ones are those of before seeds had chains (`Options.chains`), which broke
them. Of those that came with chains the faults are kept in `found`: they stay, whatever is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from shaketable.system.sim.schedules.faults import AnyFault
from shaketable.system.sim.schedules.schedule import (
    Call,
    Options,
    Schedule,
    Settings,
    draw_schedule,
)
from shaketable.system.sim.trio_world.world import OPERATIONS_PER_S
from shaketable.system.sim.trio_world.world import run_seed as run_node_seed
from shaketable.system.sim.world import SeedResult, run_seed


def kept_schedule(world: str, seed: int, options: Options) -> Schedule:
    """Return a seed's schedule with the faults that it had when it broke an invariant."""
    kept = Path(__file__).with_name("found") / f"{world}-{seed}.json"
    faults = msgspec.json.decode(kept.read_bytes(), type=tuple[AnyFault, ...])
    return msgspec.structs.replace(draw_schedule(seed, options), faults=faults)


BEFORE_CHAINS = Options(chains=False)
FOUND = {
    26: "with small pushes one entry went out a round trip, with hundreds waiting",
    34: "a key index did not find by its time what a leader with a clock that was behind stored",
    65: "a crash behind the removal of the abort marker was taken for one that left no marker",
    82: "an invariant read the log of a member whose disk was dead",
    92: "the same: no append was acknowledged in time after the last fault",
    113: "a queue that had wholly expired before an upgrade was expected to go on at its old end",
    134: "bit rot that found nothing to rot left its node down for good",
    145: "the same, in a storm",
    161: "an invariant read the log of a member that had been stopped in order",
    519: "a new member with room for 60 keys took too many checkpoints to catch up in time",
    726: "a member that stood still and then won a term long over was asked for what came later",
    845: "messages that a fault had made seconds late kept followers loyal to a leader long dead",
    20005: "a failing fsync while bits rotted ended the whole campaign",
    700083: "an invariant read a log from before a crash, and its reader never started again",
    30018: "a restarted member was compared with the failed log of its last process",
}


@pytest.mark.parametrize("seed", FOUND, ids=str)
def test_a_seed_that_was_mended_stays_clean(seed: int) -> None:
    schedule = draw_schedule(seed, BEFORE_CHAINS)
    assert run_seed(seed, schedule=schedule).violation is None, FOUND[seed]


FOUND_IN_WHOLE_NODES = {
    3: "a cut held the reset of a closed socket for ever, so that nobody connected anew",
    48: "the same, with the end of a crashed process",
}


@pytest.mark.parametrize("seed", FOUND_IN_WHOLE_NODES, ids=str)
def test_a_seed_of_whole_nodes_that_was_mended_stays_clean(seed: int) -> None:
    before_chains = Options(chains=False, operations_per_s=OPERATIONS_PER_S)
    schedule = draw_schedule(seed, before_chains)
    assert run_node_seed(seed, schedule=schedule).violation is None, FOUND_IN_WHOLE_NODES[seed]


FOUND_IN_CHAINS = {
    1000178: "a full disk left open each file of the key index that it did not let be restored",
    1023071: "zeros after a queue's end, of a process that was killed, counted as not durable",
    1023269: "a bit was to rot in a file that the killed process was about to replace",
    1020449: "a disk that failed for a second cost a node that had once been damaged its place",
    1010369: "late responses told of entries that a follower had, and of others that it lacked",
    1040158: "a view of where a file ends returned a message that had just been truncated",
    1066051: "a killed process left a unit, of an entry long expired, that no checkpoint covers",
    1066120: "the same, in another queue",
    1000277: "a leader that stepped down was expected to hold pulls as long as it may",
}


@pytest.mark.parametrize("seed", FOUND_IN_CHAINS, ids=str)
def test_a_seed_with_chains_that_was_mended_stays_clean(seed: int) -> None:
    schedule = kept_schedule("core", seed, Options())
    assert run_seed(seed, schedule=schedule).violation is None, FOUND_IN_CHAINS[seed]


FOUND_IN_CHAINS_OF_WHOLE_NODES = {
    447181491360000000: "a bit rotted after the durable watermark, where it passes for a torn tail",
    1000883: "a member was removed while another one lay down with a damaged vote",
    1000125: "clients found their connections broken, one by one, and that was all they had asked",
    994312115987000003: "bit rot that found nothing to rot left its node down for good",
    1000205: "a member that had joined made a snapshot without members, and let others join by it",
    1000353: "a member that was taking on a snapshot was said to have given a false status",
    1000007: "a leader whose disk failed as it read entries was expected to send them",
    1083045: "a client was held to what it could not know yet as its call began",
    1083173: "a client forgot who had left, and turned to the one that had not answered",
}


@pytest.mark.parametrize("seed", FOUND_IN_CHAINS_OF_WHOLE_NODES, ids=str)
def test_a_seed_of_whole_nodes_with_chains_that_was_mended_stays_clean(seed: int) -> None:
    schedule = kept_schedule("node", seed, Options(operations_per_s=OPERATIONS_PER_S))
    found = run_node_seed(seed, schedule=schedule).violation
    assert found is None, FOUND_IN_CHAINS_OF_WHOLE_NODES[seed]


@pytest.mark.parametrize("run", [run_seed, run_node_seed], ids=["core", "node"])
def test_what_is_committed_at_the_last_moment_need_not_be_everywhere(
    run: Callable[..., SeedResult],
) -> None:
    """Core seed 1115520: the operator's last change ended 0.3 ms before the run did."""
    until_the_end = (*range(500, 8_000, 50), *range(7_900, 8_000))
    calls = tuple(Call(at_ms, at_ms % 3, "append", 0, 1, 0, 100) for at_ms in until_the_end)
    settings = Settings(members=3, run_ms=8_000, link_delay_ms=8.0)
    schedule = Schedule(
        seed=5,
        settings=settings,
        faults=(),
        calls=tuple(sorted(calls, key=lambda call: call.at_ms)),
    )
    assert run(5, schedule=schedule).violation is None

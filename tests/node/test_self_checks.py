"""Real members that check their own steps: a planted bug ends one, and a healthy group goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from shaketable.system.node.process import EXIT_INVARIANT
from tests.support.node_group import NodeGroup, Writer, until

pytestmark = pytest.mark.e2e

READERS = 8


@pytest.fixture
def group_with(tmp_path: Path) -> Iterator[Callable[[str], NodeGroup]]:
    """Make a group of three that check their steps, with a planted bug or ""."""
    made: list[NodeGroup] = []

    def make(bug: str) -> NodeGroup:
        made.append(
            NodeGroup(tmp_path, "n0", "n1", "n2", shaketableInvariants="true", shaketableMutant=bug)
        )
        made[-1].start("n0", "n1", "n2")
        return made[-1]

    try:
        yield make
    finally:
        for group in made:
            for process in group.processes.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
            group.close()


async def a_transfer_to_who_is_silent(group: NodeGroup) -> None:
    """Ask the leader to hand over to a member that does not run."""
    await Writer(group.client()).send_some("t", 5)
    leader = await group.leader()
    target = next(name for name in group.processes if name != leader)
    group.processes[target].send_signal(signal.SIGSTOP)
    with suppress(OutcomeUnknownError, RefusedError):
        await group.admin(leader).transfer_leadership(target)
    await trio.sleep(1.0)
    group.processes[target].send_signal(signal.SIGCONT)


async def many_reads(group: NodeGroup) -> None:
    """Read side by side, so that reads come while others are confirmed."""
    await Writer(group.client()).send_some("t", 5)
    leader = await group.leader()

    async def read() -> None:
        client = group.client(leader)
        for _ in range(100):
            try:
                await client.max_offset("t", 0)
            except (OutcomeUnknownError, RefusedError):
                return

    async with trio.open_nursery() as nursery:
        for _ in range(READERS):
            nursery.start_soon(read)


@pytest.mark.parametrize(
    ("bug", "story", "said"),
    [
        ("transfer-never-given-up", a_transfer_to_who_is_silent, "transfers-are-given-up: "),
        ("read-joins-open-round", many_reads, "reads-wait-for-an-echo: it served a read"),
    ],
    ids=["transfer", "read"],
)
def test_a_planted_bug_ends_the_member_that_has_it(
    group_with: Callable[[str], NodeGroup],
    bug: str,
    story: Callable[[NodeGroup], object],
    said: str,
) -> None:
    group = group_with(bug)

    async def ends() -> str:
        await story(group)  # type: ignore[misc]

        async def ended() -> str | None:
            codes = {name: process.poll() for name, process in group.processes.items()}
            return next((name for name, code in codes.items() if code is not None), None)

        return await until(ended, "a member ends")

    name = group.tell(ends)
    assert group.processes[name].wait(10) == EXIT_INVARIANT
    assert said in group.log(name).splitlines()[-1]


@pytest.mark.parametrize(
    "story", [a_transfer_to_who_is_silent, many_reads], ids=["transfer", "read"]
)
def test_a_healthy_group_goes_on(
    group_with: Callable[[str], NodeGroup], story: Callable[[NodeGroup], object]
) -> None:
    group = group_with("")

    async def goes_on() -> None:
        await story(group)  # type: ignore[misc]
        writer = Writer(group.client())
        await writer.send_some("t", 5)

    group.tell(goes_on)
    assert {process.poll() for process in group.processes.values()} == {None}

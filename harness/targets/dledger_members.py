"""Members of a DLedger group that come and go, by its leader's word.

A node that lost its disk comes back as a member that is new to the group: it is added without a
vote, gets one when it has caught up, and takes the place of what it was. One that was taken out
comes back as it is.

Source: DESIGN.md decision 2; Ongaro's dissertation, section 4.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio

from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import NodeLayout
from shaketable.system.client import (
    AdminClient,
    BrokerGroupClient,
    OutcomeUnknownError,
    RefusedError,
)

CALL_TIMEOUT_S = 3.0
AGAIN_AFTER_S = 0.1


async def readmit(
    layouts: Mapping[str, NodeLayout], node: str, lost: Mapping[str, int], timeout_s: float
) -> None:
    """Have the group take a node that lost its disk again, in the place of what it was.

    Returns when its new member votes and the old one is out of the group. What is done already is
    not done again.

    Raises:
        IndefiniteError: it did not come about in time.
    """
    size = len(layouts)
    members = {member_of(each, lost.get(each, 0), size): each for each in layouts}
    new = member_of(node, lost[node], size)
    old = member_of(node, lost[node] - 1, size)
    addresses = {
        member: (layouts[each].client_address.host, layouts[each].client_address.port)
        for member, each in members.items()
    }
    client = BrokerGroupClient(addresses, timeout_s=CALL_TIMEOUT_S, rng=Random(0))
    admin = AdminClient(client)
    said = "nobody answered"
    try:
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    await _step(admin, old, new, str(layouts[node].peer_address), timeout_s)
                except (RefusedError, OutcomeUnknownError) as error:
                    said = str(error)
                    await trio.sleep(AGAIN_AFTER_S)
                else:
                    return
    finally:
        client.close()
    raise IndefiniteError(f"{new} did not take the place of {old} within {timeout_s:g} s: {said}")


MemberOf = Callable[[NodeLayout], str]
"""Says which member a node is now."""


async def remove(
    layouts: Mapping[str, NodeLayout], member_of: MemberOf, node: str, timeout_s: float
) -> tuple[str, ...]:
    """Take a node out of its group; return the nodes that are members then.

    Where a removal was asked for and nobody answered, the members say whether it happened; while
    the node is one of them, it is asked for again.

    Raises:
        DefiniteError: it is no member.
        RefusedError: the leader refuses, or nobody leads.
        OutcomeUnknownError: it may have happened, or may yet.
    """
    size = len(layouts)
    is_asked = False
    unknown: OutcomeUnknownError | None = None
    async with _admin(layouts, member_of, timeout_s) as admin:
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    group = await admin.membership()
                    members = (*group.voters, *group.learners)
                    of_node = [each for each in members if node_of(each, size) == node]
                    if not of_node and is_asked:
                        return _nodes(members, size)
                    if not of_node:
                        raise DefiniteError(f"{node} is no member")
                    for member in of_node:
                        is_asked = True
                        await admin.remove_member(member)
                except OutcomeUnknownError as error:
                    unknown = error
                except RefusedError:
                    if unknown is None:
                        raise
                if unknown is not None:
                    if not is_asked:
                        raise unknown
                    await trio.sleep(AGAIN_AFTER_S)
    raise unknown or OutcomeUnknownError(f"{node} was not seen to be out within {timeout_s:g} s")


async def restore(
    layouts: Mapping[str, NodeLayout], member_of: MemberOf, node: str, timeout_s: float
) -> tuple[str, ...]:
    """Have a node that was taken out in its group again, with a vote, by the id that it has.

    Raises:
        IndefiniteError: it has no vote in time.
    """
    size, layout = len(layouts), layouts[node]
    member = member_of(layout)
    said = "nobody answered"
    with trio.move_on_after(timeout_s):
        async with _admin(layouts, member_of, CALL_TIMEOUT_S) as admin:
            while True:
                try:
                    group = await admin.membership()
                    if member not in (*group.voters, *group.learners):
                        await admin.add_member(member, str(layout.peer_address))
                    await admin.wait_until_voter(member, timeout_s)
                    return _nodes((await admin.membership()).voters, size)
                except (RefusedError, OutcomeUnknownError) as error:
                    said = str(error)
                    await trio.sleep(AGAIN_AFTER_S)
    raise IndefiniteError(f"{member} has no vote again within {timeout_s:g} s: {said}")


@asynccontextmanager
async def _admin(
    layouts: Mapping[str, NodeLayout], member_of: MemberOf, timeout_s: float
) -> AsyncIterator[AdminClient]:
    """Ask the group as its members are now: a node may be another member than at first."""
    addresses = {
        member_of(layout): (layout.client_address.host, layout.client_address.port)
        for layout in layouts.values()
    }
    client = BrokerGroupClient(addresses, timeout_s=timeout_s, rng=Random(0))
    try:
        yield AdminClient(client)
    finally:
        client.close()


def _nodes(members: Sequence[str], size: int) -> tuple[str, ...]:
    return tuple(sorted({node_of(member, size) for member in members}))


async def _step(admin: AdminClient, old: str, new: str, address: str, timeout_s: float) -> None:
    group = await admin.membership()
    if new not in (*group.voters, *group.learners):
        await admin.add_member(new, address)
    await admin.wait_until_voter(new, timeout_s)
    if old in (*group.voters, *group.learners):
        await admin.remove_member(old)


# Ids of a DLedger group's members: a node that lost its disk comes back under a new one.
#
# In a group of n nodes, node k is member n<k> at first and n<k + g*n> after its g-th lost disk, so
# that an id says which node it is. Nothing here talks to anybody: readers of files import it too.
#
# Source: DESIGN.md decision 2.

GENERATIONS_MAX = 16
"""So often a node may lose its disk in one run."""
SELF_ID = "dLegerSelfId="


def member_of(node: str, generation: int, size: int) -> str:
    """Return the id of a node's member."""
    return f"n{_number(node) + generation * size}"


def node_of(member: str, size: int) -> str:
    """Return the node whose member that is, or was. A node alone, or of unknown size, stays one."""
    if size == 1:
        return member
    return f"n{_number(member) % size}"


def last_member(directory: Path, node: str) -> str:
    """Return the member that a node was last: of others it keeps no files."""
    conf = directory / "broker.conf"
    if not conf.is_file():
        return node
    said = [line for line in conf.read_text().splitlines() if line.startswith(SELF_ID)]
    return said[0].removeprefix(SELF_ID) if said else node


def reach(layout: NodeLayout) -> str:
    """Return where a node finds all members that other nodes may become, as DLedger lists peers."""
    size = len(layout.peers) + 1
    return ";".join(
        f"{member_of(peer, generation, size)}-{at.host}:{at.port}"
        for peer, at in sorted(layout.peers.items())
        for generation in range(1, GENERATIONS_MAX + 1)
    )


def _number(member: str) -> int:
    return int(member.removeprefix("n"))

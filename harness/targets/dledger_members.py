"""Membership changes of a DLedger group, through its leader.

A node that lost its disk comes back as a new member: it is added as a learner, gets a vote when it
has caught up, and replaces its old member. A node that was removed comes back as the same member.

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
    """Replace the member of a node that lost its disk by a new one.

    Returns once the new member votes and the old one is removed. Steps that are done are not
    repeated.

    Raises:
        IndefiniteError: that did not happen in time.
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
    last_error = "no node answered"
    try:
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    await _step(admin, old, new, str(layouts[node].peer_address), timeout_s)
                except (RefusedError, OutcomeUnknownError) as error:
                    last_error = str(error)
                    await trio.sleep(AGAIN_AFTER_S)
                else:
                    return
    finally:
        client.close()
    raise IndefiniteError(
        f"{new} did not take the place of {old} within {timeout_s:g} s: {last_error}"
    )


MemberOf = Callable[[NodeLayout], str]
"""Returns the current member id of a node."""


async def remove(
    layouts: Mapping[str, NodeLayout], member_of: MemberOf, node: str, timeout_s: float
) -> tuple[str, ...]:
    """Remove a node from its group; return the remaining member nodes.

    If a removal was requested and not answered, the membership tells whether it happened; while the
    node is a member, the removal is requested again.

    Raises:
        DefiniteError: it is not a member.
        RefusedError: the leader refuses, or there is no leader.
        OutcomeUnknownError: it may have happened, or may still happen.
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
    """Add a removed node to its group again, as a voter, under its current member id.

    Raises:
        IndefiniteError: it is not a voter in time.
    """
    size, layout = len(layouts), layouts[node]
    member = member_of(layout)
    last_error = "no node answered"
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
                    last_error = str(error)
                    await trio.sleep(AGAIN_AFTER_S)
    raise IndefiniteError(f"{member} has no vote again within {timeout_s:g} s: {last_error}")


@asynccontextmanager
async def _admin(
    layouts: Mapping[str, NodeLayout], member_of: MemberOf, timeout_s: float
) -> AsyncIterator[AdminClient]:
    """Connect to the group under the current member ids, which may differ from the initial ones."""
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


# Member ids of a DLedger group. A node that lost its disk must not come back under its old id: it
# would vote without the entries and the vote that it has forgotten.
#
# In a group of n nodes, node k is member n<k> at first and n<k + g*n> after its g-th lost disk, so
# an id identifies its node. Nothing here does network I/O: readers of files import it too.
#
# Source: DESIGN.md decision 2.

GENERATIONS_MAX = 16
"""How often a node may lose its disk in one run."""
SELF_ID = "dLegerSelfId="


def member_of(node: str, generation: int, size: int) -> str:
    """Return the member id of a node after `generation` lost disks."""
    return f"n{_number(node) + generation * size}"


def node_of(member: str, size: int) -> str:
    """Return the node of a member id.

    In a group of one, or of unknown size, it is the id itself.
    """
    if size == 1:
        return member
    return f"n{_number(member) % size}"


def last_member(directory: Path, node: str) -> str:
    """Return the node's last member id, by its configuration file."""
    conf = directory / "broker.conf"
    if not conf.is_file():
        return node
    found = [line for line in conf.read_text().splitlines() if line.startswith(SELF_ID)]
    return found[0].removeprefix(SELF_ID) if found else node


def reach(layout: NodeLayout) -> str:
    """Return the addresses of all members that other nodes may become, as in dLegerPeers."""
    size = len(layout.peers) + 1
    return ";".join(
        f"{member_of(peer, generation, size)}-{at.host}:{at.port}"
        for peer, at in sorted(layout.peers.items())
        for generation in range(1, GENERATIONS_MAX + 1)
    )


def _number(member: str) -> int:
    return int(member.removeprefix("n"))

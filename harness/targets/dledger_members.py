"""Members of a DLedger group that come and go, by its leader's word.

A node that lost its disk comes back as a member that is new to the group: it is added without a
vote, gets one when it has caught up, and takes the place of what it was. One that was taken out
comes back as it is.

Source: DESIGN.md decision 2; Ongaro's dissertation, section 4.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random

import trio

from harness.errors import DefiniteError, IndefiniteError
from harness.plugins import NodeLayout
from harness.targets.dledger_ids import last_member, member_of, node_of
from system.client import AdminClient, BrokerGroupClient, OutcomeUnknownError, RefusedError

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


async def remove(layouts: Mapping[str, NodeLayout], node: str, timeout_s: float) -> tuple[str, ...]:
    """Take a node out of its group; return the nodes that are members then.

    Raises:
        DefiniteError: it is no member.
        RefusedError: the leader refuses, or nobody leads.
        OutcomeUnknownError: it may have happened, or may yet.
    """
    size = len(layouts)
    async with _admin(layouts, timeout_s) as admin:
        group = await admin.membership()
        of_node = [
            member for member in (*group.voters, *group.learners) if node_of(member, size) == node
        ]
        if not of_node:
            raise DefiniteError(f"{node} is no member")
        for member in of_node:
            await admin.remove_member(member)
        group = await admin.membership()
        return _nodes((*group.voters, *group.learners), size)


async def restore(
    layouts: Mapping[str, NodeLayout], node: str, timeout_s: float
) -> tuple[str, ...]:
    """Have a node that was taken out in its group again, with a vote, by the id that it has.

    Raises:
        IndefiniteError: it has no vote in time.
    """
    size, layout = len(layouts), layouts[node]
    member = last_member(layout.directory, node)
    said = "nobody answered"
    with trio.move_on_after(timeout_s):
        async with _admin(layouts, CALL_TIMEOUT_S) as admin:
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
async def _admin(layouts: Mapping[str, NodeLayout], timeout_s: float) -> AsyncIterator[AdminClient]:
    """Ask the group as its members are now: a node may be another member than at first."""
    addresses = {
        last_member(layout.directory, node): (
            layout.client_address.host,
            layout.client_address.port,
        )
        for node, layout in layouts.items()
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

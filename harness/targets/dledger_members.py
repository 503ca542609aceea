"""Has a DLedger group take a node again that lost its disk: as a member that is new to it.

It is added without a vote, gets one when it has caught up, and takes the place of what it was.

Source: DESIGN.md decision 2; Ongaro's dissertation, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import trio

from harness.errors import IndefiniteError
from harness.plugins import NodeLayout
from harness.targets.dledger_ids import member_of
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


async def _step(admin: AdminClient, old: str, new: str, address: str, timeout_s: float) -> None:
    group = await admin.membership()
    if new not in (*group.voters, *group.learners):
        await admin.add_member(new, address)
    await admin.wait_until_voter(new, timeout_s)
    if old in (*group.voters, *group.learners):
        await admin.remove_member(old)

"""Remove a member from the group while clients work, and add it again at the end.

Its process keeps running: it may not know yet that it was removed, and must not vote, acknowledge,
or disturb the remaining members.

Source: jepsen.nemesis.membership; Ongaro's dissertation, sections 4.2.2 and 4.2.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.abilities import ChangesMembers
from shaketable.harness.contracts.capabilities import Capability, MovesMembers
from shaketable.harness.contracts.plugins import Evidence, Json, Target, World
from shaketable.harness.faults.victims import SINGLE, NodeFault, who_leads

ASK_FOR_S = 3.0
"""Retry for this long while there is no leader, or the leader refuses."""
ASK_AGAIN_AFTER_S = 0.2
UNDO_TIMEOUT_S = 10.0


class Members(NodeFault):
    """Remove a member from the group and add it back: the leader or any other."""

    name = "members"
    family = capabilities.MEMBERSHIP
    needs = frozenset({Capability.MEMBERS})
    variants = SINGLE
    can = SINGLE

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a target with membership changes, and a group that can do without a member."""
        if not isinstance(target, ChangesMembers):
            return f"the target {target.name} has no members that come and go"
        return target.why_no_member_may_go(nodes)

    def verb(self, plan: Json) -> str:
        """Return "take out of the group"."""
        return "take out of the group"

    async def apply(self, plan: Json, world: World) -> Json:
        """Remove the member; return the result."""
        assert isinstance(world, MovesMembers), "the fault was not available"
        (victim,) = plan["victims"]
        try:
            return {"node": victim, **await _remove(victim, world)}
        except BaseException:  # cancelled: it may have been removed already
            with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_TIMEOUT_S):
                await world.add_member(victim)
            raise

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if the leader reported the members without it."""
        victim, members = undo["node"], undo["members"]
        if undo["took_ms"] is None or victim in members:
            why = f": {undo['error']}" if undo["error"] is not None else ""
            return Evidence(False, f"{victim} was not taken out{why}")
        what = f"{victim} was out after {undo['took_ms']:.0f} ms, members {', '.join(members)}"
        return Evidence(True, f"{what}; {await who_leads(world)}", {"took_ms": undo["took_ms"]})

    async def undo(self, undo: Json, world: World) -> None:
        """Add the member to the group again, as a voter."""
        assert isinstance(world, MovesMembers), "the fault was not available"
        await world.add_member(undo["node"])


async def _remove(victim: str, world: MovesMembers) -> Json:
    """Remove the member; retry for a while if there is no leader, or it refuses."""
    again_until_s = trio.current_time() + ASK_FOR_S
    answer = await world.remove_member(victim)
    while answer["took_ms"] is None and trio.current_time() < again_until_s:
        await trio.sleep(ASK_AGAIN_AFTER_S)
        answer = await world.remove_member(victim)
    return answer


PLUGIN = Members()

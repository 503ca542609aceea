"""Transfer leadership to another node while clients work.

A transfer loses nothing: the old leader refuses appends until the new one leads, and everything
that it acknowledged is in the new leader's log.

Source: Raft dissertation section 3.10; DLedger's `preferredLeaderId`; redpanda-data/chaos (`leader
transfer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.abilities import TransfersLeadership
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World

NODES_MIN = 2
ASK_FOR_S = 6.0
"""Retry for this long while there is no leader, or it refuses, or is itself the destination."""
ASK_AGAIN_AFTER_S = 0.2


class Transfer:
    """Ask the leader to hand leadership to another node, drawn at random."""

    name = "transfer"
    family = capabilities.PROCESS
    needs = frozenset({Capability.TRANSFER})

    def configured(self, options: Json) -> Fault:
        """Return itself: it has no options."""
        return self

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a target with leadership transfer, and a second node."""
        if not isinstance(target, TransfersLeadership):
            return f"the target {target.name} cannot be asked to transfer its leadership"
        if len(nodes) < NODES_MIN:
            return f"a group of {len(nodes)} has no other member to take the leadership"
        return None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw the order in which nodes are considered."""
        return {"order": rng.sample(list(nodes), len(nodes))}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Choose the first node in the order that does not lead."""
        order = [node for node in plan["order"] if node in nodes]
        others = [node for node in order if node != leader]
        return {**plan, "to": (others or order)[0], "leader": leader}

    def describe(self, plan: Json) -> str:
        """Describe the plan: "transfer leadership from n1 to n2"."""
        if "to" not in plan:
            return "transfer leadership"
        who = f"from {plan['leader']} " if plan["leader"] is not None else ""
        return f"transfer leadership {who}to {plan['to']}"

    async def apply(self, plan: Json, world: World) -> Json:
        """Request the transfer, wait for the outcome, and return it.

        The chosen node may already lead by now, or be down: then the next one is chosen.
        """
        again_until_s = trio.current_time() + ASK_FOR_S
        order = [plan["to"], *(node for node in plan["order"] if node != plan["to"])]
        for to in cycle(order):
            answer = await world.transfer(to)
            if not _is_to_be_asked_again(answer, to) or trio.current_time() >= again_until_s:
                return {**answer, "to": to}
            await trio.sleep(ASK_AGAIN_AFTER_S)
        raise AssertionError("a cycle ends")

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if leadership moved from another node to the requested one."""
        await trio.lowlevel.checkpoint()
        was, to, took_ms = undo["from"], undo["to"], undo["took_ms"]
        if was is not None and was != to and took_ms is not None:
            what = f"leadership went from {was} to {to} in {took_ms:.0f} ms"
            return Evidence(True, what, {"took_ms": took_ms})
        if was is None:
            return Evidence(False, "there was no leader that could be asked")
        if was == to:
            return Evidence(False, f"{to} led already")
        why = f": {undo['error']}" if undo["error"] is not None else ""
        return Evidence(False, f"{to} did not come to lead after {was}{why}")

    async def undo(self, undo: Json, world: World) -> None:
        """Nothing to undo: the group is whole with any leader."""
        await trio.lowlevel.checkpoint()


def _is_to_be_asked_again(answer: Json, to: str) -> bool:
    """True if there was no leader, or it refused, or was the destination itself."""
    is_refused = answer["from"] in (None, to) or answer["error"] is not None
    return answer["took_ms"] is None and is_refused


PLUGIN = Transfer()

"""The budget of faults: how many nodes they may take out of a group together.

Under the budget "quorum", faults in force never stop or cut off more than (n - 1) / 2 nodes, so a
quorum is left. A fault that would exceed that strikes fewer nodes, or waits until others are
undone.

Source: Chaos Mesh and TigerBeetle's liveness mode (a core that is always left to work).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from shaketable.harness import plugin_calls
from shaketable.harness.contracts.capabilities import TakesOut
from shaketable.harness.contracts.plugins import Fault, Json
from shaketable.harness.plugin_calls import PlugInError, as_plugin_error


class Budget:
    """The budget of one run.

    Args:
        nodes: the nodes of the group.
        keeps_quorum: False: grant every request.
    """

    def __init__(self, nodes: Sequence[str], keeps_quorum: bool) -> None:
        self._nodes = tuple(nodes)
        self._keeps_quorum = keeps_quorum
        self._out: dict[int, frozenset[str]] = {}
        self._changed = trio.Event()

    @property
    def out(self) -> frozenset[str]:
        """Return the nodes that faults in force have taken out."""
        return frozenset().union(*self._out.values())

    def take(self, number: int, fault: Fault, plan: Json) -> Json | None:
        """Reserve the nodes that an aimed plan takes out, for fault `number`.

        Returns the plan to apply (with fewer victims, if all would be too many); None if there is
        no room for any of it now.

        Raises:
            PlugInError: the fault's `taken_out` or `narrowed` failed, or it narrowed too little.
        """
        taken = self._taken_out(fault, plan)
        if taken is None:
            return plan
        asked = [node for node in taken if node not in self.out]
        # Without at most (n - 1) // 2 nodes, a majority of all n is left.
        room = (len(self._nodes) - 1) // 2 - len(self.out)
        if self._keeps_quorum and len(asked) > room:
            narrowed = self._narrowed(fault, plan, (*self.out, *asked[max(room, 0) :]))
            if room <= 0 or narrowed is None:
                return None
            plan, taken = narrowed, self._taken_out(fault, narrowed) or ()
            if len(set(taken) - self.out) > room:
                raise PlugInError(
                    f"its narrowed returned a plan that takes out {', '.join(taken)}:"
                    f" {room} more can be out"
                )
        self._out[number] = frozenset(taken)
        return plan

    def give_back(self, number: int) -> None:
        """Release the nodes of fault `number` (idempotent)."""
        if self._out.pop(number, None) is not None:
            self._changed.set()
            self._changed = trio.Event()

    async def changed(self) -> None:
        """Wait until nodes were released."""
        await self._changed.wait()

    def __str__(self) -> str:
        return f"{', '.join(sorted(self.out)) or 'none'} of {len(self._nodes)} is out"

    def _taken_out(self, fault: Fault, plan: Json) -> tuple[str, ...] | None:
        """Return the nodes that a plan takes out; None for a fault that takes out none."""
        with as_plugin_error():
            if not isinstance(fault, TakesOut):
                return None
            return tuple(
                plugin_calls.text(node, "its taken_out returned")
                for node in fault.taken_out(plan, self._nodes)
            )

    def _narrowed(self, fault: Fault, plan: Json, spare: Sequence[str]) -> Json | None:
        with as_plugin_error():
            assert isinstance(fault, TakesOut), "it was asked which nodes it takes"
            narrowed = fault.narrowed(plan, self._nodes, spare)
            if narrowed is None:
                return None
            return plugin_calls.json_object(narrowed, "its narrowed returned")

"""What must hold when a run of whole nodes is over: what clients saw, and that all came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from system.sim.clients import stored_numbers
from system.sim.history import APPEND, OK, check_history, check_refusals
from system.sim.violation import Violated
from system.sim.world import SETTLE_MS_MAX

if TYPE_CHECKING:
    from system.sim.trio_world.world import TrioWorld


def check_end(world: TrioWorld) -> None:
    """What clients saw is right, and the group came back. Raises Violated."""
    history = world.clients.history
    check_history(history)
    check_refusals(history, stored_numbers(world.native.newer(world.invariants.queues)))
    _check_live(world)


def _check_live(world: TrioWorld) -> None:
    """After the last fault is mended the group acknowledges, and everybody catches up."""
    due_ms = world.healed_ms + SETTLE_MS_MAX
    if due_ms > world.settings.run_ms - world.settings.idle_ms:
        return  # a schedule that leaves no time to settle promises nothing
    asked = [
        operation
        for operation in world.clients.history
        if operation.kind == APPEND and world.healed_ms <= operation.invoke_ms <= due_ms
    ]
    if asked and not any(op.outcome == OK and op.end_ms <= due_ms for op in asked):
        raise Violated(
            "appends-succeed",
            f"none was acknowledged within {SETTLE_MS_MAX:.0f} ms after the last fault",
        )
    world.operator.check_done()
    committed = world.invariants.committed_index
    for host in world.members.values():
        if host.is_gone:
            continue
        if host.node is None:
            raise Violated("everybody-runs", "still down at the end", host.name)
        index = host.node.broker.applied_index
        if index != committed:
            raise Violated(
                "everybody-catches-up",
                f"applied {index} of {committed} committed entries at the end",
                host.name,
            )

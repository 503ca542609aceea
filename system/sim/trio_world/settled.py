"""What must hold when a run of whole nodes is over: what clients saw, and that all came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shaketable.system.sim.before.broken_confs import check_refused
from shaketable.system.sim.clients import stored_numbers
from shaketable.system.sim.history import APPEND, OK, UNKNOWN, check_history, check_refusals
from shaketable.system.sim.violation import Violated
from shaketable.system.sim.world import SETTLE_MS_MAX

if TYPE_CHECKING:
    from shaketable.system.sim.trio_world.world import TrioWorld


def check_end(world: TrioWorld) -> None:
    """What clients saw is right, and the group came back. Raises Violated."""
    history = world.clients.history
    check_history(history)
    check_refusals(history, stored_numbers(world.older.newer(world.invariants.queues)))
    _check_live(world)
    world.counts.broken += check_refused(world.bootstrap[0])


def _check_live(world: TrioWorld) -> None:
    """After the last fault is mended the group acknowledges, and everybody catches up."""
    due_ms = world.healed_ms + SETTLE_MS_MAX
    if due_ms > world.settings.run_ms - world.settings.idle_ms:
        return  # a schedule that leaves no time to settle promises nothing
    _check_acknowledged(world, due_ms)
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
        world.older.config.check(host.node.broker, host.name)
    world.older.check_kept(world.invariants.queues)


def _check_acknowledged(world: TrioWorld, due_ms: float) -> None:
    """Appends that were called since the last fault was mended succeed, one in time at least.

    A client finds its connection to a node that had crashed broken when it uses it the next time.
    That says nothing of the group, unless it never says anything else.
    """
    timeout_ms = world.settings.client_timeout_ms
    since = [
        operation
        for operation in world.clients.history
        if operation.kind == APPEND and operation.invoke_ms >= world.healed_ms
    ]
    asked = [operation for operation in since if operation.invoke_ms <= due_ms]
    if not asked or any(op.outcome == OK and op.end_ms <= due_ms for op in asked):
        return
    is_told = any(op.outcome != UNKNOWN or op.end_ms - op.invoke_ms >= timeout_ms for op in asked)
    if is_told or not any(op.outcome == OK for op in since):
        raise Violated(
            "appends-succeed",
            f"none was acknowledged within {SETTLE_MS_MAX:.0f} ms after the last fault",
        )

"""Checks what RocketMQ clients of a worker process do within their calls, as simulations do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from shaketable.harness.contracts.abilities import Broken
from shaketable.system.invariants.violated import Violated


def checked_clients(
    report: Callable[[Broken], None], now_ns: Callable[[], int]
) -> AbstractContextManager[None]:
    """Check them; see `ChecksClients`. Each invariant is reported once."""
    # Imported late: those who only start nodes need none of it.
    from shaketable.system.sim.rules.call_invariants import watched_calls  # noqa: PLC0415
    from shaketable.system.sim.stories.promises import promise_of  # noqa: PLC0415

    known: set[str] = set()

    def violated(found: Violated) -> None:
        if found.invariant not in known:
            known.add(found.invariant)
            promise = promise_of(found.invariant)
            report(
                Broken(
                    found.invariant, found.finding, found.node, now_ns(),
                    promise.statement, promise.impact,
                )
            )  # fmt: skip

    return watched_calls(violated, is_timely=False)

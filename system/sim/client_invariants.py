"""What must hold of clients' calls and connections: they end in time, and nothing is left open.

Who calls with a timeout plans with it, and whoever opens sockets and forgets them runs out of
descriptors after weeks: no history of a short run shows either. No simulated time goes by while a
client computes, so what is late here is late by itself.
Source: RocketMQ's sendMsgTimeout (all attempts of a send together end within it); DESIGN.md
section 6.
"""

from __future__ import annotations

from collections.abc import Mapping

from system.sim.violation import Violated

LATE_MAX_MS = 50.0
"""How much longer than its timeout a call may take: a step or two that were under way."""


def check_in_time(what: str, took_ms: float, timeout_ms: float) -> None:
    """Raise Violated for a call that outlasted its own timeout."""
    if took_ms > timeout_ms + LATE_MAX_MS:
        raise Violated(
            "calls-end-in-time", f"{what} took {took_ms:.0f} ms, its timeout is {timeout_ms:g} ms"
        )


def check_left(host: str, to: Mapping[str, int]) -> None:
    """Raise Violated where clients that have all closed still have sockets, by the other side."""
    if to:
        named = ", ".join(f"{count} to {name}" for name, count in sorted(to.items()))
        raise Violated("clients-leave-nothing-open", f"sockets that nobody closed: {named}", host)

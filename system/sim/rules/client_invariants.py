"""Invariants of clients' calls: they end in time, with an expected outcome, and leak nothing.

Callers rely on the timeout, and a client that leaks sockets runs out of descriptors after weeks: no
history of a short run shows either. No simulated time passes while a client computes, so a late
call is the client's own fault. Source: RocketMQ's sendMsgTimeout (all attempts of a send together
end within it); DESIGN.md section 6.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio

from shaketable import system
from shaketable.system.sim.rules.violation import Violated

SYSTEM: Final = Path(system.__path__[0])
LIBRARIES: Final = (Path(sysconfig.get_path("stdlib")), Path(trio.__path__[0]))

LATE_MAX_MS = 50.0
"""How much longer than its timeout a call may take: a step or two that were in progress."""


def check_in_time(what: str, took_ms: float, timeout_ms: float) -> None:
    """Raise Violated for a call that outlasted its own timeout."""
    if took_ms > timeout_ms + LATE_MAX_MS:
        raise Violated(
            "calls-end-in-time", f"{what} took {took_ms:.0f} ms, its timeout is {timeout_ms:g} ms"
        )


def check_expected(what: str, error: Exception) -> None:
    """Raise Violated for an unexpected error that the clients' code raised or let through.

    Errors of a workload or a plug-in say nothing about the system.
    """
    begin = f"{what} ended with"
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    while isinstance(error, ExceptionGroup):
        begin = f"a consumer had ended by itself, which {what} showed:"
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    while frames and any(each in Path(frames[-1].filename).parents for each in LIBRARIES):
        frames.pop()  # the library's caller is responsible
    if frames and SYSTEM in (place := Path(frames[-1].filename)).parents:
        where = f"{place.relative_to(SYSTEM.parent)}, line {frames[-1].lineno}"
        told = f"{begin} {type(error).__name__}: {error} ({where}){notes}"
        raise Violated("calls-end-as-promised", told)


def check_all_closed(host: str, to: Mapping[str, int]) -> None:
    """Raise Violated where closed clients still have open sockets, listed by remote end."""
    if to:
        named = ", ".join(f"{count} to {name}" for name, count in sorted(to.items()))
        raise Violated("clients-leave-nothing-open", f"sockets that nobody closed: {named}", host)

"""Checks what RocketMQ clients of a worker process do within their calls, as simulations do."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from shaketable.harness.contracts.abilities import Broken, OnUnexpected
from shaketable.system.invariants.violated import Violated

OF_THE_MACHINE: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)
"""Errors that say that the clients' machine has no more of something."""


@contextmanager
def checked_clients(
    report: Callable[[Broken], None], now_ns: Callable[[], int]
) -> Iterator[OnUnexpected]:
    """Check them; see `ChecksClients`. Each invariant is reported once."""
    # Imported late: those who only start nodes need none of it.
    from shaketable.system.sim.rules.call_invariants import watched_calls  # noqa: PLC0415
    from shaketable.system.sim.rules.client_history import check_expected  # noqa: PLC0415
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

    def unexpected(what: str, error: Exception) -> None:
        if any(is_of_the_machine(each) for each in causes(error)):
            return
        try:
            check_expected(what, error)
        except Violated as found:
            violated(found)

    with watched_calls(violated, is_timely=False):
        yield unexpected


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that it consists of."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from causes(part)


def is_of_the_machine(error: BaseException) -> bool:
    """Return whether an error says that the machine has no more of something."""
    if isinstance(error, RuntimeError):
        return "can't start new thread" in str(error)  # for a look-up of a host's name
    is_refused = isinstance(error, OSError) and error.errno in OF_THE_MACHINE
    return is_refused or isinstance(error, MemoryError)

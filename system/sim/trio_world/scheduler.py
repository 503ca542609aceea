"""trio.run under a seed: its run queue is shuffled by our draws, the same way every time.

trio shuffles the tasks that are ready by a module-level Random, and in a deterministic order
only if a module flag is set. Both are private, so trio is pinned, and both are set back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TypeVar

import trio
from trio._core import _run

from shaketable.system.sim.trio_world.heap_clock import HeapClock

Result = TypeVar("Result")


def run_seeded(main: Callable[[], Awaitable[Result]], clock: HeapClock, draws: Random) -> Result:
    """Run `main` on virtual time, tasks in an order drawn from `draws`.

    Raises what `main` raises.
    """
    with _scheduling_drawn_from(draws):
        return trio.run(main, clock=clock, strict_exception_groups=True)


@contextmanager
def _scheduling_drawn_from(draws: Random) -> Iterator[None]:
    private = vars(_run)
    before = {name: private[name] for name in ("_r", "_ALLOW_DETERMINISTIC_SCHEDULING")}
    private.update(_r=draws, _ALLOW_DETERMINISTIC_SCHEDULING=True)
    try:
        yield
    finally:
        private.update(before)

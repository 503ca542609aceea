"""A process' disk work in a simulated world: inline, after a virtual delay.

`system.sim.disk` does everything at once; how long it takes is drawn here. What is done becomes
true at the delay's end, so a crash within the delay finds the work not begun or half done.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import trio

from shaketable.system.node.machine import Result
from shaketable.system.sim.disk import PowerLoss, SimDisk
from shaketable.system.sim.draws import Stream
from shaketable.system.sim.trio_world.heap_clock import HeapClock
from shaketable.system.sim.trio_world.process import Park, Process
from shaketable.system.store.disk import StoreError

OPERATIONS_BEFORE_CRASH_MAX = 12
"""How far disk work under way gets at most when the process dies."""


class DiskSpeed(Protocol):
    """How fast a host's disk is at present. Times in virtual milliseconds."""

    stalled_until_ms: float
    """Nothing ends before."""
    slow_factor: float
    slow_until_ms: float
    """When the last fault ends that makes it slow."""

    def work_ms(self) -> float:
        """Return how long the next piece of work takes on a disk that is well."""
        ...


class TimedDiskWork:
    """One process' `system.node.machine.DiskWork`.

    As with the thread of a real process, work that has begun is waited for, even by a node
    that is told to stop; only its death ends it. `on_power_loss` hears of a disk that stopped
    in the middle of an operation.
    """

    def __init__(
        self,
        clock: HeapClock,
        speed: DiskSpeed,
        process: Process,
        on_power_loss: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._speed = speed
        self._process = process
        self._on_power_loss = on_power_loss
        self._number = 0
        self._begun: dict[int, Callable[[], object]] = {}

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Run `work` when its time has passed. Raises what it raises."""
        process = self._process
        self._number += 1
        number = self._number
        with trio.CancelScope(shield=True) as scope:
            process.shielded[number] = scope
            self._begun[number] = work
            try:
                await self._let_time_pass()
                del self._begun[number]
                return work()
            except PowerLoss:
                self._on_power_loss()
                raise
            finally:
                self._begun.pop(number, None)
                process.shielded.pop(number, None)
        raise PowerLoss

    def die(self, disk: SimDisk, draws: Stream) -> None:
        """The process dies: what was under way is done up to a disk operation that is drawn."""
        begun, self._begun = self._begun, {}
        for number in sorted(begun):
            if disk.is_dead:
                return
            platter = disk.platter
            platter.stop_at = platter.operations + draws.randint(1, OPERATIONS_BEFORE_CRASH_MAX)
            with suppress(PowerLoss, StoreError):
                begun[number]()

    async def _let_time_pass(self) -> None:
        clock, speed = self._clock, self._speed
        work_ms = speed.work_ms()
        due_ms = clock.now_ms + work_ms * speed.slow_factor
        # The rest is done at the usual pace: slow disks beside each other would take minutes more.
        due_ms = min(due_ms, max(clock.now_ms, speed.slow_until_ms) + work_ms)
        park = Park(self._process)
        while (left_ms := max(due_ms, speed.stalled_until_ms) - clock.now_ms) > 0:
            timer = clock.timer(left_ms, park.wake)
            try:
                await park.wait()
            finally:
                timer.cancel()

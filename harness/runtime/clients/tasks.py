"""Clients of a run as tasks of this process: the same `Worker` as in a process of its own.

Its messages stay in memory. For simulated worlds, and for runs that are too short for processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any, Final

import trio

from shaketable.harness.contracts.abilities import Broken
from shaketable.harness.contracts.clients import ANSWER_GRACE_S
from shaketable.harness.runtime.clients.worker import Worker, WorkerPlan
from shaketable.harness.runtime.clients.workers import FINALS_GRACE_S, STALLS_MAX
from shaketable.harness.runtime.observer import Counts

WORDS_MAX: Final = 16
"""Limit of messages that the worker has not received yet."""
POLL_S: Final = 0.02


class TaskWorkers:
    """Implements `harness.runtime.rig.RunWorkers` with one worker that has all clients.

    `clock_ns` is the clock of the plan's times. `run` is a service of the run.
    """

    def __init__(self, plan: WorkerPlan, clock_ns: Callable[[], int] = monotonic_ns) -> None:
        self._plan = plan
        self._clock_ns = clock_ns
        self._to, self._coming = trio.open_memory_channel[tuple[Any, ...]](WORDS_MAX)
        self._messages: dict[str, list[Any]] = {}
        self._counts = Counts()
        self._stalls: list[tuple[int, int]] = []
        self._worker: Worker | None = None

    def worker(self) -> Worker:
        """Create the worker."""
        self._worker = Worker(self._plan, self, self._clock_ns)
        return self._worker

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the worker until it is told to close; then wait to be cancelled."""
        worker = self.worker()
        task_status.started()
        await worker.run()
        await trio.sleep_forever()

    @property
    def operations(self) -> int:
        """Return how many operations have ended, by now."""
        return 0 if self._worker is None else self._worker.operations

    @property
    def succeeded(self) -> int:
        """Return how many of them were done."""
        return 0 if self._worker is None else self._worker.succeeded

    # ---- the worker's end of the connection --------------------------------------------

    def send(self, message: tuple[Any, ...]) -> None:
        """Take a message from the worker."""
        word, *arguments = message
        if word == "counts":
            self._counts = Counts(*arguments)
        elif word == "stalled":
            if len(self._stalls) < STALLS_MAX:
                self._stalls.append((arguments[0], arguments[1]))
        else:
            self._messages[word] = arguments

    async def receive(self) -> tuple[Any, ...]:
        """Return the next message to the worker."""
        return await self._coming.receive()

    # ---- the supervisor's end ----------------------------------------------------------

    async def start(self, timeout_s: float = 30.0) -> None:
        """Wait until the clients are ready."""
        await self._awaited("ready", timeout_s)

    async def generate(self) -> None:
        """Start the workload; it runs until `stop`."""
        await self._to.send(("generate",))

    async def stop(self) -> None:
        """Let clients start no further operations. Idempotent."""
        await self._to.send(("stop",))

    def counts(self) -> Counts:
        """Return the counts of operations so far."""
        return self._counts

    def problems(self) -> tuple[str, ...]:
        """Return (): a worker that fails ends the run."""
        return ()

    def stalls(self) -> list[tuple[int, int]]:
        """Return when (from, to, in ns of the run) they stalled: never in virtual time."""
        return sorted(self._stalls)

    def violated(self) -> list[Broken]:
        """Return nothing: the simulated world itself checks its clients."""
        return []

    def recorded(self) -> Mapping[str, int | None]:
        """Return nothing: such a run is over before it is worth following."""
        return {}

    def waiting(self) -> tuple[str, ...]:
        """Return what clients wait for, or gave up, a line each."""
        return () if self._worker is None else self._worker.waiting()

    def pids(self) -> Mapping[str, int]:
        """Return none: the clients are tasks of this process."""
        return {}

    async def finish_main(self, timeout_s: float | None = None) -> bool:
        """Stop clients; True if no operation is still open in time."""
        await self.stop()
        default_s = self._plan.op_timeout_s + 2 * ANSWER_GRACE_S
        return await self._awaited("generated", default_s if timeout_s is None else timeout_s)

    async def run_finals(self, timeout_s: float) -> bool:
        """Run the final operations; True if all were done in time."""
        await self._to.send(("finals", self._clock_ns() + int(timeout_s * 1e9)))
        in_time = await self._awaited("finals", timeout_s + FINALS_GRACE_S)
        return in_time and self._messages["finals"] == [0]

    async def close(self, timeout_s: float = 10.0) -> dict[str, int | None]:
        """Close the segment; return file name -> events written."""
        await self._to.send(("close",))
        await self._awaited("closed", timeout_s)
        return {self._plan.segment.name: next(iter(self._messages.get("closed", [])), None)}

    async def kill(self) -> None:
        """Do nothing: the clients are tasks of the run, and end with it."""
        await trio.lowlevel.checkpoint()

    async def _awaited(self, word: str, timeout_s: float) -> bool:
        with trio.move_on_after(timeout_s):
            while word not in self._messages:  # noqa: ASYNC110 - the worker knows no Event of ours
                await trio.sleep(POLL_S)
        return word in self._messages

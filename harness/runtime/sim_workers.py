"""The clients of a campaign in a simulated world: tasks of this very process, on its time.

The same `Worker` as in a client process; only the talk with it goes through memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import trio

from shaketable.harness.runtime.observer import Counts
from shaketable.harness.runtime.worker import ANSWER_GRACE_S, Worker, WorkerPlan
from shaketable.harness.runtime.workers import FINALS_GRACE_S
from shaketable.harness.simulation import SimulatedGroup

WORDS_MAX: Final = 16
"""Words to a worker that it has not taken yet."""
POLL_S: Final = 0.02


class SimulatedWorkers:
    """Implements `harness.runtime.rig.RunWorkers` with one worker that has all clients."""

    def __init__(self, plan: WorkerPlan, group: SimulatedGroup) -> None:
        self._plan = plan
        self._group = group
        self._to, self._coming = trio.open_memory_channel[tuple[Any, ...]](WORDS_MAX)
        self._said: dict[str, list[Any]] = {}
        self._counts = Counts()
        self._worker: Worker | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be the worker until it is told to close; then wait to be cancelled."""
        self._group.be_client()
        self._worker = Worker(self._plan, self, self._group.now_ns)
        self._worker.on_ended = self._group.operation_ended
        self._worker.on_unforeseen = self._group.operation_raised
        self._worker.gives_up = False  # nothing is slow here: who is never answered shows it
        task_status.started()
        await self._worker.run()
        self._group.clients_left()
        await trio.sleep_forever()

    # ---- the worker's end of the talk --------------------------------------------------

    def send(self, message: tuple[Any, ...]) -> None:
        """The worker tells."""
        word, *arguments = message
        if word == "counts":
            self._counts = Counts(*arguments)
        else:
            self._said[word] = arguments

    async def receive(self) -> tuple[Any, ...]:
        """The worker waits for the next word."""
        return await self._coming.receive()

    # ---- the supervisor's end ----------------------------------------------------------

    async def start(self, timeout_s: float = 30.0) -> None:
        """Wait until the clients are ready."""
        await self._awaited("ready", timeout_s)

    async def generate(self) -> None:
        """Let clients begin; they go on until `stop`."""
        await self._to.send(("generate",))

    async def stop(self) -> None:
        """Have clients begin no further operations. Idempotent."""
        await self._to.send(("stop",))

    def counts(self) -> Counts:
        """Operations so far."""
        return self._counts

    def problems(self) -> tuple[str, ...]:
        """None: a worker that fails ends the run."""
        return ()

    def stalls(self) -> list[tuple[int, int]]:
        """None: no simulated time goes by while clients compute."""
        return []

    def waiting(self) -> tuple[str, ...]:
        """What clients wait for, or gave up, a line for each."""
        return () if self._worker is None else self._worker.waiting()

    def pids(self) -> Mapping[str, int]:
        """None: the clients are tasks of this very process."""
        return {}

    async def finish_main(self, timeout_s: float | None = None) -> bool:
        """Stop clients; True if no operation is open in time."""
        await self.stop()
        default_s = self._plan.op_timeout_s + 2 * ANSWER_GRACE_S
        return await self._awaited("generated", default_s if timeout_s is None else timeout_s)

    async def run_finals(self, timeout_s: float) -> bool:
        """Do the final operations; True if all were done in time."""
        await self._to.send(("finals", self._group.now_ns() + int(timeout_s * 1e9)))
        in_time = await self._awaited("finals", timeout_s + FINALS_GRACE_S)
        return in_time and self._said["finals"] == [0]

    async def close(self, timeout_s: float = 10.0) -> dict[str, int | None]:
        """Close the segment: file name -> events written."""
        await self._to.send(("close",))
        await self._awaited("closed", timeout_s)
        return {self._plan.segment.name: next(iter(self._said.get("closed", [])), None)}

    async def kill(self) -> None:
        """Nothing: the clients are tasks of the run, and end with it."""
        await trio.lowlevel.checkpoint()

    async def _awaited(self, word: str, timeout_s: float) -> bool:
        with trio.move_on_after(timeout_s):
            while word not in self._said:  # noqa: ASYNC110 - the worker knows no Event of ours
                await trio.sleep(POLL_S)
        return word in self._said

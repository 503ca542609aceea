"""The client workers as the supervisor (trio) sees them: processes, or tasks of this process.

Worker processes are started by spawn, die with the thread that started them (PR_SET_PDEATHSIG), and
have a pipe each. A worker that dies is noticed by the end of its pipe, and never holds up the
others.

As tasks, the same workers keep their messages in memory. That is for simulated worlds, and for runs
that are too short for processes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic_ns
from types import ModuleType
from typing import Any, Final

import multiprocess
import trio

from shaketable.harness.campaigns.campaign import Campaign, clients, workload_options
from shaketable.harness.contracts.abilities import Broken
from shaketable.harness.contracts.clients import ANSWER_GRACE_S
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.runtime.clients.worker import Worker, WorkerPlan, run_worker
from shaketable.harness.runtime.observer import Counts

__all__ = ["Counts", "WorkerGroup", "WorkerPlan", "plan_workers"]

POLL_S: Final = 0.02
"""How often the pipes are polled while something is awaited."""
EXIT_TIMEOUT_S: Final = 3.0
"""How long a worker that closed, or was killed, may take to exit."""
FINALS_GRACE_S: Final = 1.0
"""How long after its deadline a worker may still report on its final operations."""
VIOLATED_MAX: Final = 20
"""How many broken rules of a worker's clients are kept."""
STALLS_MAX: Final = 1_000
"""How many stalls of a worker are kept."""


def plan_workers(
    campaign: Campaign,
    folder: RunFolder,
    addresses: Mapping[str, Address],
    start_ns: int,
    run: str = "",
) -> list[WorkerPlan]:
    """Distribute a resolved campaign's clients over its workers; segments are worker-0.seg, ...

    `addresses` are the nodes' client addresses; `start_ns` is the run's start on CLOCK_MONOTONIC.
    `run` is the name of the run, for a group with keys of other runs. Call it in the process that
    will start the workers.
    """
    assert campaign.seed is not None, "operations are drawn from a seed"
    count = clients(campaign)
    workers = min(campaign.workers, count)
    return [
        WorkerPlan(
            name=f"worker-{number}",
            target=campaign.target,
            option=campaign.option,
            workload=campaign.workload,
            seed=campaign.seed,
            addresses=dict(addresses),
            slots=tuple(range(number, count, workers)),
            clients=count,
            rate_hz=campaign.rate_hz,
            think_time_s=campaign.think_time_s,
            op_timeout_s=campaign.op_timeout_s,
            start_ns=start_ns,
            segment=folder.segment(f"worker-{number}"),
            parent_pid=os.getpid(),
            log=folder.log,
            options=workload_options(campaign),
            mutant=campaign.mutant,
            run=run,
        )
        for number in range(workers)
    ]


class WorkerGroup:
    """The worker processes of a run. Methods are for one trio task at a time.

    Order of calls: start, generate, stop, finish_main, run_finals, close; kill at any time and
    always at the end (idempotent). No method blocks the trio loop.
    """

    def __init__(
        self,
        plans: Sequence[WorkerPlan],
        on_start: Callable[[str, int], None] = lambda _name, _pid: None,
    ) -> None:
        """`on_start` is called with each process: its name, its pid."""
        self._plans = tuple(plans)
        self._on_start = on_start
        self._handles: list[_Handle] = []

    async def start(self, timeout_s: float = 30.0) -> None:
        """Start the processes and wait until each is ready.

        Must be called in the main thread: workers die with the thread that started them.

        Raises:
            HarnessError: a worker did not become ready. `kill` ends the others.
        """
        assert threading.current_thread() is threading.main_thread(), "workers die with a thread"
        context = multiprocess.get_context("spawn")
        for plan in self._plans:
            self._handles.append(_Handle.started(context, plan))
            self._on_start(plan.name, self._handles[-1].pid)
            await trio.lowlevel.checkpoint()
        if not await self._awaited("ready", timeout_s):
            late = [handle.plan.name for handle in self._handles if "ready" not in handle.messages]
            why = "; ".join(self.problems()) or f"not ready after {timeout_s:g} s"
            raise HarnessError(f"client workers did not start: {', '.join(late)}: {why}")

    async def generate(self) -> None:
        """Start the workload; it runs until `stop`."""
        self._tell("generate")
        await trio.lowlevel.checkpoint()

    async def stop(self) -> None:
        """Let clients start no further operations. Idempotent."""
        self._tell("stop")
        await trio.lowlevel.checkpoint()

    async def break_connections(self, nodes: Sequence[str]) -> None:
        """Let clients break all their connections to these nodes; see `connections`."""
        self._tell("break", tuple(nodes))
        await trio.lowlevel.checkpoint()

    def broken_connections(self) -> int:
        """Return how many connections clients have broken, as far as reported. Never blocks."""
        self._listen()
        return sum(handle.broken for handle in self._handles)

    def counts(self) -> Counts:
        """Return the counts of operations, at most a quarter of a second old. Never blocks."""
        self._listen()
        all_counts = [handle.counts for handle in self._handles]
        return Counts(
            ok=sum(counts.ok for counts in all_counts),
            fail=sum(counts.fail for counts in all_counts),
            info=sum(counts.info for counts in all_counts),
        )

    def problems(self) -> tuple[str, ...]:
        """Return one line for each worker that died or failed."""
        self._listen()
        lines = [handle.problem() for handle in self._handles]
        return tuple(line for line in lines if line is not None)

    def stalls(self) -> list[tuple[int, int]]:
        """Return when (from, to, in ns of the run) a worker stalled, as far as reported."""
        self._listen()
        return sorted(stall for handle in self._handles for stall in handle.stalls)

    def violated(self) -> list[Broken]:
        """Return which rules of their own clients broke, as far as reported: each rule once."""
        self._listen()
        found = sorted((one for each in self._handles for one in each.violated), key=_at_ns)
        return list({each.invariant: each for each in reversed(found)}.values())[::-1]

    def recorded(self) -> Mapping[str, int | None]:
        """Return how far each segment is complete; see `GrowingSegments.note`. Never blocks."""
        self._listen()
        return {
            handle.plan.segment.name: None if handle.has_recorded_all else handle.recorded_ns
            for handle in self._handles
        }

    def waiting(self) -> tuple[str, ...]:
        """Return (): only the worker processes know what clients wait for."""
        return ()

    def pids(self) -> Mapping[str, int]:
        """Return the workers' process ids by name."""
        return {handle.plan.name: handle.pid for handle in self._handles}

    async def finish_main(self, timeout_s: float | None = None) -> bool:
        """Stop clients; True if all workers report in time that no operation is open.

        Without a timeout it waits as long as an operation may take.
        """
        slowest_s = max((plan.op_timeout_s for plan in self._plans), default=0.0)
        await self.stop()
        default_s = slowest_s + 2 * ANSWER_GRACE_S
        return await self._awaited("generated", default_s if timeout_s is None else timeout_s)

    async def run_finals(self, timeout_s: float) -> bool:
        """Run the final operations; True if all workers completed theirs in time."""
        self._tell("finals", monotonic_ns() + int(timeout_s * 1e9))
        in_time = await self._awaited("finals", timeout_s + FINALS_GRACE_S)
        return in_time and all(handle.messages.get("finals") == [0] for handle in self._handles)

    async def close(self, timeout_s: float = 10.0) -> dict[str, int | None]:
        """Close the segments and end the processes; return file name -> events written.

        None stands for a worker that did not close its segment (it died, or was killed because it
        did not answer). Idempotent.
        """
        self._tell("close")
        await self._awaited("closed", timeout_s)
        for handle in self._handles:
            handle.is_late = "closed" not in handle.messages and not handle.is_gone
        leaving = [handle for handle in self._handles if "closed" in handle.messages]
        await _until(lambda: not any(map(_Handle.is_alive, leaving)), EXIT_TIMEOUT_S)
        await self.kill()
        return {
            handle.plan.segment.name: next(iter(handle.messages.get("closed", [])), None)
            for handle in self._handles
        }

    async def kill(self) -> None:
        """Kill all running workers with SIGKILL and reap them. Idempotent.

        Raises:
            HarnessError: a killed worker is still there after EXIT_TIMEOUT_S.
        """
        with trio.CancelScope(shield=True):
            alive = [handle for handle in self._handles if handle.is_alive()]
            for handle in alive:
                handle.kill()
            await _until(lambda: not any(map(_Handle.is_alive, alive)), EXIT_TIMEOUT_S)
        for handle in self._handles:
            handle.hang_up()
        left = [f"{handle.plan.name} (pid {handle.pid})" for handle in alive if handle.is_alive()]
        if left:
            raise HarnessError(f"workers outlived SIGKILL: {', '.join(left)}")

    def _tell(self, *message: Any) -> None:
        for handle in self._handles:
            handle.send(message)

    def _listen(self) -> None:
        for handle in self._handles:
            handle.listen()

    async def _awaited(self, word: str, timeout_s: float) -> bool:
        """Wait until every worker has sent `word` or is gone; True if all have sent it."""

        def is_settled() -> bool:
            self._listen()
            return all(word in handle.messages or handle.is_gone for handle in self._handles)

        await _until(is_settled, timeout_s)
        return all(word in handle.messages for handle in self._handles)


class ClientsOfWorkers:
    """Implements `contracts.capabilities.LinksClients` for worlds in real time.

    The run's rig sets `workers`.
    """

    workers: WorkerGroup
    client_hosts: Sequence[str] = ()
    """No link between clients and nodes can be cut or shaped: nothing is on the way."""

    async def break_connections(self, nodes: Sequence[str]) -> None:
        """Break all connections of clients to these nodes; see `LinksClients`."""
        await self.workers.break_connections(nodes)

    def broken_connections(self) -> int:
        """Return how many connections were broken, as far as the workers have reported."""
        return self.workers.broken_connections()


async def _until(done: Callable[[], bool], timeout_s: float) -> None:
    """Poll `done`, which looks at other processes, until it is true or the time is over."""
    with trio.move_on_after(timeout_s):
        while not done():  # noqa: ASYNC110 - another process sets no Event of ours
            await trio.sleep(POLL_S)


def _at_ns(broken: Broken) -> int:
    return broken.at_ns


@dataclass(slots=True)
class _Handle:
    """One worker process from outside: its pipe, its messages, its state."""

    plan: WorkerPlan
    process: Any
    pipe: Any
    pid: int
    messages: dict[str, list[Any]] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    stalls: list[tuple[int, int]] = field(default_factory=list)
    recorded_ns: int = -1
    broken: int = 0
    violated: list[Broken] = field(default_factory=list)
    is_gone: bool = False  # one end of the pipe is closed
    is_late: bool = False  # it did not close its recording when told to
    is_killed: bool = False  # by us, while it was there

    @classmethod
    def started(cls, context: Any, plan: WorkerPlan) -> _Handle:
        ours, theirs = context.Pipe()
        process = context.Process(
            target=run_worker,
            args=(plan, theirs),
            name=plan.name,
            daemon=True,  # an interpreter that exits must not wait for it
        )
        with bare_main():
            process.start()
        theirs.close()
        return cls(plan, process, ours, process.pid)

    def send(self, message: tuple[Any, ...]) -> None:
        try:
            self.pipe.send(message)
        except OSError:
            self.is_gone = True

    def listen(self) -> None:
        """Read the worker's messages. They are small: each arrives whole."""
        try:
            while not self.is_gone and self.pipe.poll():
                word, *arguments = self.pipe.recv()
                if word == "counts":
                    self.counts = Counts(*arguments)
                elif word == "recorded":
                    self.recorded_ns = arguments[0]
                elif word == "broke":
                    self.broken += arguments[0]
                elif word == "violated":
                    if len(self.violated) < VIOLATED_MAX:
                        self.violated.append(arguments[0])
                elif word == "stalled":
                    if len(self.stalls) < STALLS_MAX:
                        self.stalls.append((arguments[0], arguments[1]))
                else:
                    self.messages[word] = arguments
        except (EOFError, OSError):
            self.is_gone = True

    def problem(self) -> str | None:
        if "failed" in self.messages:
            return f"{self.plan.name}: {self.messages['failed'][0]}"
        if self.is_late:
            return f"{self.plan.name}: did not close its recording in time, and was killed"
        if self.is_gone and not self.is_killed and "closed" not in self.messages:
            return f"{self.plan.name}: ended by itself ({self._how()})"
        return None

    @property
    def has_recorded_all(self) -> bool:
        """Whether its segment is closed, or its process has ended."""
        return "closed" in self.messages or (self.is_gone and not self.is_alive())

    def is_alive(self) -> bool:
        return bool(self.process.is_alive())

    def kill(self) -> None:
        # A process that dies closes its pipe before it can be reaped: that end is its own.
        self.is_killed = self.is_killed or not self.is_gone
        self.process.kill()

    def hang_up(self) -> None:
        """Read the last messages, and close the pipe. Idempotent."""
        self.listen()
        self.is_gone = True
        self.pipe.close()

    def _how(self) -> str:
        code = self.process.exitcode
        if code is None:
            return "its pipe is closed"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@contextmanager
def bare_main() -> Iterator[None]:
    """Hide the main module while a process is spawned (multiprocess, context "spawn").

    The child would import it again (the command line with all its imports), although a worker needs
    none of it: that would double its start-up time.
    """
    main = sys.modules["__main__"]
    bare = ModuleType("__main__")
    bare.__spec__ = None
    sys.modules["__main__"] = bare
    try:
        yield
    finally:
        sys.modules["__main__"] = main


# Workers as tasks of this process.

WORDS_MAX: Final = 16
"""Limit of messages that the worker has not received yet."""
TASK_POLL_S: Final = 0.02


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
                await trio.sleep(TASK_POLL_S)
        return word in self._messages

"""A client worker: a process that runs the operations of its clients.

One trio task a client. The invocation of each operation is recorded before it is sent, its end as
soon as it is known. A definite error is `fail`; an indefinite or unexpected one is `info`: the
client then continues as another process on a new connection. This module is imported in every
worker, so it imports nothing heavy.

A worker can break its TCP connections, which is what a firewall or NAT that forgets them does to
clients. It works for every target: a client library's own sockets are found among the open files of
the process, and shut down in both directions. The node sees the connection close, with or without
the end of a request; the client sees it end.

Source: jepsen.generator.interpreter; DESIGN.md decision 12 and section 3 ("Event"); for
connections, shutdown(2) and proc_pid_fd(5).
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final, Protocol

import trio

from shaketable.harness import discovery
from shaketable.harness.contracts.abilities import (
    ChecksClients,
    OnUnexpected,
    PlantsBugsBeside,
    RunsAlready,
)
from shaketable.harness.contracts.clients import (
    ANSWER_GRACE_S,
    GroupClient,
    GroupWorkload,
    OpeningWorkload,
    Reusable,
    patience_s_of,
)
from shaketable.harness.contracts.errors import DefiniteError, HarnessError, IndefiniteError
from shaketable.harness.contracts.plugins import (
    Address,
    Answer,
    Json,
    Operation,
    TargetClient,
    Workload,
)
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.discovery import target_with
from shaketable.harness.generators.clients import final_generator_of, generator_of
from shaketable.harness.generators.generator import (
    Completion,
    Context,
    Due,
    Generator,
    rate,
    think_time,
)
from shaketable.harness.guard import die_with_parent
from shaketable.harness.history.segments import Recorder, next_process

REPORT_INTERVAL_S: Final = 0.25
"""How often a worker reports its counts to the supervisor."""
STALL_MIN_S: Final = 0.5
"""A worker that wakes up this late has stalled, and reports it: its clients were delayed."""
BACKOFF_FIRST_S: Final = 0.02
BACKOFF_MAX_S: Final = 0.5
"""The longest wait of a client after consecutive failures; it doubles each time."""
CLOSE_TIMEOUT_S: Final = 1.0
WAITING_TOLD_MAX: Final = 3
FINAL_ATTEMPTS_MAX: Final = 20
"""How often a final operation may fail; each try is an operation of its own."""
KEPT_IN_A_ROW: Final = 2
"""So many clients in a row are kept after an unknown outcome, if they are reusable, and as many
replaced. Not every other one: by that, workloads choose who sends, and workers their clients."""
NOTHING: Final = "nothing"
"""The outcome of an operation that had nothing to do."""
NO_ANSWER: Final = Answer()

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The configuration of one worker process; picklable.

    Times are ns of CLOCK_MONOTONIC, which all processes of a machine share; `start_ns` is the run's
    start, the zero of the history. `slots` are the numbers of this worker's clients among all
    `clients`; a client's first process id is its slot. `rate_hz` is the rate of all clients
    together (0: closed loop), `think_time_s` the mean pause of a client between operations.
    `segment` is the file for its recording, `log` the file for log lines. `options` configure the
    workload. `client_factory` replaces the target's `client` (tests). `mutant` is the planted bug,
    which may be in the clients. `run` is the run's name, if the group has keys of other runs.
    `option` are options of the target's own.
    """

    name: str
    target: str
    workload: str
    seed: str
    addresses: Mapping[str, Address]
    slots: tuple[int, ...]
    clients: int
    rate_hz: float
    op_timeout_s: float
    start_ns: int
    segment: Path
    parent_pid: int
    think_time_s: float = 0.0
    log: Path | None = None
    options: Json = field(default_factory=dict)
    client_factory: Callable[[Mapping[str, Address], float], TargetClient] | None = None
    mutant: str | None = None
    run: str = ""
    option: tuple[str, ...] = ()


def run_worker(plan: WorkerPlan, control: Any) -> None:
    """Run one worker until it is told to close: the entry point of its process.

    `control` is this end of a multiprocess Pipe. Messages are tuples. To the worker: ("generate",),
    ("stop",), ("break", nodes), ("finals", until_ns), ("close",). From it: ("ready",), ("counts",
    ok, fail, info), ("recorded", until_ns), ("broke", connections), ("violated", broken),
    ("generated",), ("finals", missed), ("closed", events), ("failed", line).
    """
    die_with_parent(plan.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles Ctrl-C
    if plan.log is not None:
        logging.basicConfig(
            filename=plan.log,
            level=logging.INFO,
            format=f"%(asctime)s %(levelname)s {plan.name} %(message)s",
        )
    try:
        with _checked_clients(plan, control) as on_unexpected:
            worker = Worker(plan, PipeControl(control))
            worker.on_unexpected = on_unexpected or _ignore
            trio.run(worker.run)
    except BaseException as error:
        cause = _innermost(error)
        if not isinstance(cause, EOFError | BrokenPipeError | ConnectionResetError):
            _LOG.exception("the worker failed: seed=%s", plan.seed)
            control.send(("failed", f"{type(cause).__name__}: {cause}"))
        sys.exit(1)  # the supervisor is gone; the recording is already written


def _checked_clients(plan: WorkerPlan, control: Any) -> AbstractContextManager[OnUnexpected | None]:
    """Check the clients by the rules of their target, if it has some."""
    target = None if plan.client_factory else discovery.get("targets", plan.target)
    if not isinstance(target, ChecksClients):
        return nullcontext()
    return target.checked_clients(
        lambda broken: control.send(("violated", broken)), lambda: monotonic_ns() - plan.start_ns
    )


class Control(Protocol):
    """A worker's end of the connection to its supervisor; see `run_worker` for the messages."""

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message to the supervisor."""
        ...

    async def receive(self) -> tuple[Any, ...]:
        """Wait for the supervisor's next message."""
        ...


class PipeControl:
    """A connection to the supervisor over a multiprocess Pipe."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message to the supervisor."""
        self._pipe.send(message)

    async def receive(self) -> tuple[Any, ...]:
        """Wait for the supervisor's next message."""
        await trio.lowlevel.wait_readable(self._pipe.fileno())
        message: tuple[Any, ...] = self._pipe.recv()
        return message


class Worker:
    """The clients of one worker and their shared state.

    `clock_ns` is the clock of the plan's times: a simulated world has its own.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        control: Control,
        clock_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._plan = plan
        self._control = control
        self._clock_ns = clock_ns
        self._stop = trio.Event()
        self._ended = {"ok": 0, "fail": 0, "info": 0}
        self._ends: dict[str, int] = {}
        self._workload: Workload = discovery.get("workloads", plan.workload).configured(
            plan.options
        )
        self._patience_s = patience_s_of(plan.op_timeout_s, self._workload)
        self._groups = self._workload if isinstance(self._workload, GroupWorkload) else None
        self.is_stepped = self._groups is not None
        """True if a final operation may consist of any number of operations."""
        self._factory = plan.client_factory or _factory(plan)
        self._recorder = Recorder(plan.segment, plan.start_ns, clock_ns)
        self._clients = [Client(self, plan, slot) for slot in plan.slots]
        self.on_ended: Callable[[str, float, float], None] = _ignore
        """Called with each ended operation: its name, how long it took, and might take, in seconds.
        """
        self.on_unexpected: OnUnexpected = _ignore
        """Called with each unexpected error: the operation's name, and the error."""
        self.gives_up = True
        """True if a final operation is abandoned after too many failures."""

    async def run(self) -> None:
        """Follow the supervisor's messages until it sends "close"."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report)
            self._control.send(("ready",))
            await self._obey(nursery)
            nursery.cancel_scope.cancel()
        for client in self._clients:
            await client.aclose()
        self._control.send(("counts", *self._counts()))
        self._control.send(("closed", self._recorder.close()))

    async def perform(self, client: Client, operation: Operation) -> tuple[str, Answer]:
        """Run one operation for a client, record it, return its outcome and its answer."""
        workload, key = self._workload, operation.key
        offset = workload.choose_offset(operation, self._ends.get(key, 0))
        self._recorder.invoke(
            client.process, operation.f, key,
            value=operation.value, offset=offset, expected=operation.expected,
            request=operation.request, steps=operation.steps,
        )  # fmt: skip
        answer = NO_ANSWER
        error: str | None = None
        node: str | None = None
        outcome = "info"
        # Neither `fail_after` nor more scopes than one: this runs for each operation.
        begin_s = trio.current_time()
        scope = trio.CancelScope(deadline=begin_s + self._patience_s)
        try:
            with scope:
                answer = await workload.invoke(operation, offset, client.connection)
                outcome, node = "ok", client.connection.node
            if scope.cancelled_caught:
                error = f"no answer within {self._patience_s:g} s"
        except DefiniteError as refused:
            outcome, error = "fail", str(refused) or "DefiniteError"
        except IndefiniteError as lost:
            error = str(lost) or "IndefiniteError"
        except Exception as unforeseen:
            cause = _innermost(unforeseen)
            error = f"{type(cause).__name__}: {cause}"
            _LOG.exception("process=%d f=%s key=%s", client.process, operation.f, key)
            self.on_unexpected(operation.f, unforeseen)
        self._recorder.complete(
            client.process, outcome, operation.f, key,
            output=_output(answer), offset=answer.offset, error=error, node=node,
            attempts=answer.attempts,
            steps=None if answer.steps is None else (operation.steps or (), answer.steps),
        )  # fmt: skip
        self._ended[outcome] += 1
        client.trouble = error or ""
        took_s, may_s = trio.current_time() - begin_s, self._patience_s - ANSWER_GRACE_S
        self.on_ended(operation.f, took_s, may_s)
        if outcome == "ok":
            shown = workload.end_shown(operation, answer.output, answer.offset)
            self._ends[key] = max(shown, self._ends.get(key, 0))
        return outcome, answer

    @property
    def operations(self) -> int:
        """Return how many operations have ended."""
        return sum(self._ended.values())

    @property
    def succeeded(self) -> int:
        """Return how many of them were done."""
        return self._ended["ok"]

    def waiting(self) -> tuple[str, ...]:
        """Return what clients do now, or gave up at the end, a line for each of the first ones."""
        lines = [line for client in self._clients for line in client.waiting()]
        more = len(lines) - WAITING_TOLD_MAX
        return (*lines[:WAITING_TOLD_MAX], *([f"{more} more operations"] if more > 0 else []))

    def connect(self) -> TargetClient:
        """Return a new client of the target."""
        return self._factory(self._plan.addresses, self._plan.op_timeout_s)

    def opened(self, client: TargetClient) -> TargetClient:
        """Return the client for one process, wrapped as the workload needs it."""
        if self._groups is not None:
            assert isinstance(client, GroupClient), f"{self._plan.target} knows no consumer groups"
            return self._groups.opened(client)
        workload = self._workload
        if not isinstance(workload, OpeningWorkload):
            return client
        if (why := workload.why_not(type(client))) is not None:
            raise HarnessError(f"workload {workload.name}: this target's clients {why}")
        return workload.opened(client)

    def choose(self, client: Client, operation: Operation) -> Operation | None:
        """Turn a drawn operation into the one to run now; None if there is none."""
        groups = self._groups
        return operation if groups is None else groups.choose(operation, client.connection)

    async def pause(self, until: float) -> bool:
        """Sleep until trio's time `until`, or until generation stops; True if it goes on.

        Always yields to the other clients, however fast a target is.
        """
        if until <= trio.current_time():
            await trio.lowlevel.checkpoint()
        else:
            with trio.CancelScope(deadline=until):
                await self._stop.wait()
        return not self._stop.is_set()

    async def _obey(self, nursery: trio.Nursery) -> None:
        while True:
            message, *arguments = await self._control.receive()
            if message == "generate":
                nursery.start_soon(self._generate)
            elif message == "stop":
                self._stop.set()
            elif message == "break":
                to = [self._plan.addresses[node] for node in arguments[0]]
                # In a thread: names may have to be looked up, and clients go on meanwhile.
                self._control.send(("broke", await trio.to_thread.run_sync(break_connections, to)))
            elif message == "finals":
                nursery.start_soon(self._finals, arguments[0])
            else:
                assert message == "close", f"unknown message {message!r}"
                return

    async def _generate(self) -> None:
        dispatcher = Dispatcher(self._paced(), self._plan.slots)
        async with trio.open_nursery() as nursery:
            for client in self._clients:
                nursery.start_soon(client.generate, dispatcher)
            await self._stop.wait()  # clients end the current operation, and start no other
            dispatcher.stop()
        self._control.send(("generated",))

    def _paced(self) -> Generator:
        """Return the generator of these clients, at their share of the rate."""
        plan = self._plan
        work = generator_of(self._workload, plan.seed, plan.clients)
        share_hz = plan.rate_hz * len(plan.slots) / plan.clients
        thinking = think_time(plan.think_time_s, work, seed=plan.seed)
        return rate(share_hz, thinking, seed=f"{plan.seed}/{plan.slots[0]}")

    async def _finals(self, until_ns: int) -> None:
        plan, keys = self._plan, tuple(self._ends)
        work = final_generator_of(self._workload, plan.seed, plan.clients, keys)
        with trio.move_on_at(self._trio_time(until_ns)):
            dispatcher = Dispatcher(work, plan.slots)
            async with trio.open_nursery() as nursery:
                for client in self._clients:
                    nursery.start_soon(client.finish, dispatcher)
        self._control.send(("finals", sum(not client.finished for client in self._clients)))

    async def _report(self) -> None:
        while True:
            asleep_ns = self._clock_ns() - self._plan.start_ns
            await trio.sleep(REPORT_INTERVAL_S)
            awake_ns = self._clock_ns() - self._plan.start_ns
            if awake_ns - asleep_ns > (REPORT_INTERVAL_S + STALL_MIN_S) * 1e9:
                self._control.send(("stalled", asleep_ns, awake_ns))
            self._control.send(("counts", *self._counts()))
            self._control.send(("recorded", self._recorder.recorded_ns()))

    def _trio_time(self, at_ns: int) -> float:
        """Convert a time of the run's clock into trio's."""
        return trio.current_time() + (at_ns - self._clock_ns()) / 1e9

    def _counts(self) -> tuple[int, int, int]:
        return self._ended["ok"], self._ended["fail"], self._ended["info"]


class Client:
    """One client: a process id that changes, a connection, a pace."""

    def __init__(self, worker: Worker, plan: WorkerPlan, slot: int) -> None:
        self.slot = slot
        self.process = slot
        self.finished = False
        self._worker = worker
        self._plan = plan
        self._backoff = rng_for(plan.seed, "backoff", slot)
        self._failures = 0
        self._at: Operation | None = None
        self._tried: tuple[Operation, int] | None = None
        """A final operation that has not succeeded yet, and how often it has failed."""
        self._given_up: list[str] = []
        self.trouble = ""
        """Why its last operation did not succeed; "" if it did."""
        self._client = worker.connect()
        self.connection = worker.opened(self._client)

    async def generate(self, dispatcher: Dispatcher) -> None:
        """Run this client's operations when they are due, until told to stop."""
        while (due := await dispatcher.next(self.slot)) is not None:
            if not await self._worker.pause(dispatcher.trio_time(due.at_ns)):
                return
            outcome, answer = await self.step(due.operation)
            dispatcher.update(
                Completion(self.slot, due.operation, outcome, answer, dispatcher.now_ns())
            )
            if self._failures:
                await self._worker.pause(trio.current_time() + self._backoff_s())

    async def finish(self, dispatcher: Dispatcher) -> None:
        """Run final operations, each until it succeeds or has failed too often."""
        done = NOTHING if self._worker.is_stepped else "ok"
        missed = 0
        while (due := await dispatcher.next(self.slot)) is not None:
            operation, failed, answer = due.operation, 0, NO_ANSWER
            while True:
                outcome, answer = await self.step(operation)
                if outcome == done:
                    break
                failed += outcome != "ok"
                self._tried = (operation, failed)
                if failed >= FINAL_ATTEMPTS_MAX and self._worker.gives_up:
                    missed += 1
                    gave_up = f"client {self.slot} gave up {_phrase(operation)}"
                    self._given_up.append(f"{gave_up} after {failed} failures: {self.trouble}")
                    break
                if outcome != "ok":
                    await trio.sleep(self._backoff_s())
            self._tried = None
            dispatcher.update(Completion(self.slot, operation, "ok", answer, dispatcher.now_ns()))
        self.finished = missed == 0

    async def step(self, operation: Operation) -> tuple[str, Answer]:
        """Run one operation; after `info` continue as another process, mostly with a new client."""
        chosen = self._worker.choose(self, operation)
        if chosen is None:
            return NOTHING, NO_ANSWER
        self._at = chosen
        outcome, answer = await self._worker.perform(self, chosen)
        self._at = None
        self._failures = 0 if outcome == "ok" else self._failures + 1
        if outcome == "info":
            self.process = next_process(self.process, self._plan.clients)
            if not self._is_kept():
                await self.aclose()
                self._client = self._worker.connect()
            self.connection = self._worker.opened(self._client)
        return outcome, answer

    def _is_kept(self) -> bool:
        """Return whether its next process goes on with the same client."""
        client = self._client
        is_chosen = self.slot // KEPT_IN_A_ROW % 2 == 0
        return is_chosen and isinstance(client, Reusable) and client.is_reusable()

    def waiting(self) -> list[str]:
        """Return what the client does now, and what it gave up at the end."""
        who, now = f"client {self.slot}", []
        if self._tried is not None:
            operation, failed = self._tried
            now = [f"{who} tried {_phrase(operation)} {failed} times in vain: {self.trouble}"]
        elif self._at is not None:
            trouble = f" (the one before failed: {self.trouble})" if self.trouble else ""
            now = [f"{who} waits for {_phrase(self._at)}{trouble}"]
        return [*self._given_up, *now]

    async def aclose(self) -> None:
        """Close the connection, whatever its state; never longer than CLOSE_TIMEOUT_S."""
        try:
            with trio.move_on_after(CLOSE_TIMEOUT_S):
                await self.connection.aclose()
        except Exception as unforeseen:
            _LOG.exception("process=%d: closing the connection", self.process)
            self._worker.on_unexpected("close", unforeseen)

    def _backoff_s(self) -> float:
        longest_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self._failures, 16))
        return longest_s * self._backoff.uniform(0.5, 1.0)


def _phrase(operation: Operation) -> str:
    return f"{operation.f} of {operation.key}"


def _output(answer: Answer) -> int | Sequence[int] | Sequence[tuple[int, int]] | None:
    """Return the output of an answer; no messages are None, no elements an empty set."""
    if answer.elements is not None:
        return answer.elements
    return answer.output if answer.messages is None else answer.messages or None


def _factory(plan: WorkerPlan) -> Callable[[Mapping[str, Address], float], TargetClient]:
    """Return the factory of the target's clients, with the planted bug."""
    target = target_with(plan.target, plan.option)
    if plan.mutant is not None and isinstance(target, PlantsBugsBeside):
        return partial(target.client_of, bug=plan.mutant)
    if isinstance(target, RunsAlready):
        return partial(target.client_of_run, run=plan.run)
    return target.client


def _ignore(*_arguments: object) -> None:
    """Ignore the call."""


def _innermost(error: BaseException) -> BaseException:
    """Unwrap the exception groups that nurseries put around a single cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# Hands out a generator's operations to the clients of one worker, each when it is free.
#
# No task does this: a free client asks for itself and for those that wait.

NS = 1e9


class Dispatcher:
    """A running generator. Times count from its creation, on trio's clock."""

    def __init__(self, generator: Generator, clients: tuple[int, ...]) -> None:
        self._generator = generator
        self._clients = clients
        self._began_s = trio.current_time()
        self._waiting: dict[int, trio.Event] = {}  # longest wait first
        self._given: dict[int, Due] = {}
        self._is_over = False

    def now_ns(self) -> int:
        """Return the generator's time."""
        return int((trio.current_time() - self._began_s) * NS)

    def trio_time(self, at_ns: int) -> float:
        """Convert a generator's time into trio's."""
        return self._began_s + at_ns / NS

    async def next(self, client: int) -> Due | None:
        """Return what this client has to do next; None if there is nothing more for any client.

        Waits while there is nothing to do. Does not wait until the operation is due.
        """
        while True:
            if client in self._given:
                return self._given.pop(client)
            if self._is_over:
                return None
            free = (*self._waiting, client) if self._waiting else (client,)
            answer = self._generator.next_op(Context(self.now_ns(), free, self._clients))
            if answer is None:
                self.stop()
                continue
            step, self._generator = answer
            if not isinstance(step, Due):
                until_ns = step.until_ns
                await self._wait(client, math.inf if until_ns is None else self.trio_time(until_ns))
            elif step.client == client:
                return step
            else:
                self._given[step.client] = step
                self._waiting.pop(step.client).set()

    def update(self, completion: Completion) -> None:
        """Report an ended operation to the generator; waiting clients may then get one."""
        generator = self._generator.update(completion)
        if generator is not self._generator:
            self._generator = generator
            if self._waiting:
                self._wake()

    def stop(self) -> None:
        """Hand out nothing more."""
        self._is_over = True
        self._wake()

    async def _wait(self, client: int, until_s: float) -> None:
        woken = self._waiting[client] = trio.Event()
        with trio.CancelScope(deadline=until_s):
            await woken.wait()
        self._waiting.pop(client, None)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for woken in waiting.values():
            woken.set()


# TCP connections of this process, and their end.

OPEN_FILES: Final = Path("/proc/self/fd")
TCP: Final = (socket.AF_INET, socket.AF_INET6)


def break_connections(to: Iterable[Address]) -> int:
    """Shut down this process's TCP connections to these addresses; return how many there were."""
    ends = {end for address in to for end in _resolved(address)}
    count = 0
    for connection in _sockets():
        with connection, suppress(OSError):  # not connected, or its other end is gone already
            if connection.family in TCP and connection.type == socket.SOCK_STREAM:
                host, port = connection.getpeername()[:2]
                if (_plain(host), port) in ends:
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


def _sockets() -> Iterator[socket.socket]:
    """Yield a duplicate of each open socket of this process."""
    for file in sorted(OPEN_FILES.iterdir()):
        with suppress(OSError):  # closed meanwhile, by another thread; or the listing's own
            if file.is_socket():
                yield socket.socket(fileno=os.dup(int(file.name)))


@cache
def _resolved(address: Address) -> frozenset[tuple[str, int]]:
    """Return the numeric ends of an address; none if its name has none."""
    with suppress(OSError):
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return frozenset((_plain(str(end[0])), int(end[1])) for *_, end in found)
    return frozenset()


def _plain(host: str) -> str:
    """Return a numeric host as IPv4, if it is one mapped to IPv6."""
    ip = ip_address(host.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return str(mapped or ip)

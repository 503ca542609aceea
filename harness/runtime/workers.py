"""Client workers as real processes, as the supervisor (trio) sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.plugins import Address, Json, TargetClient


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """All that one worker process needs to know; picklable.

    Times are ns of CLOCK_MONOTONIC, which all processes of a machine share. `slots` are
    the numbers of this worker's clients among `clients` in all; a client's first process
    id is its slot. `rate_hz` is the rate of all clients together (0: closed loop).
    `segment` is the file to record into, `log` where to append log lines.
    `client_factory` stands in for the target's `client` (tests).
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
    log: Path | None = None
    options: Json = field(default_factory=dict)
    client_factory: Callable[[Mapping[str, Address], float], TargetClient] | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many operations ended in which way so far."""

    ok: int = 0
    fail: int = 0
    info: int = 0

    @property
    def total(self) -> int:
        """All operations that ended."""
        return self.ok + self.fail + self.info


class WorkerGroup:
    """The worker processes of a run. Methods are for one trio task at a time.

    Order of calls: start, generate, finish_main, run_finals, close; kill at any time
    and always in the end (idempotent). No method blocks the trio loop.
    """

    def __init__(self, plans: Sequence[WorkerPlan]) -> None:
        raise NotImplementedError

    async def start(self, timeout_s: float = 30.0) -> None:
        """Start the processes and wait until each is ready to generate.

        Must be called from trio's main thread: workers die with the thread that made them.

        Raises:
            HarnessError: a worker did not become ready.
        """
        raise NotImplementedError

    async def generate(self, until_ns: int | None = None) -> None:
        """Let clients begin; they stop at `until_ns` (CLOCK_MONOTONIC) or at finish_main."""
        raise NotImplementedError

    def counts(self) -> Counts:
        """Operations ended so far, a quarter of a second old at most. Never blocks."""
        raise NotImplementedError

    def problems(self) -> tuple[str, ...]:
        """One line for each worker that died or reported a failure of its own."""
        raise NotImplementedError

    def pids(self) -> Mapping[str, int]:
        """Process ids by worker's name."""
        raise NotImplementedError

    async def finish_main(self, timeout_s: float) -> bool:
        """Stop generating; True if all workers still alive said in time that they had."""
        raise NotImplementedError

    async def run_finals(self, timeout_s: float) -> bool:
        """Do the final operations; True if all workers did all of theirs in time."""
        raise NotImplementedError

    async def close(self, timeout_s: float = 10.0) -> dict[str, int | None]:
        """Close the segments and end the processes: file name -> events written.

        None stands for a worker that did not close its segment (it died, or was killed
        because it did not answer).
        """
        raise NotImplementedError

    async def kill(self) -> None:
        """End all workers that still run by SIGKILL and reap them. Idempotent."""
        raise NotImplementedError

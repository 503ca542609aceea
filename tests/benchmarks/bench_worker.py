"""How many operations a second one client worker records: run by hand. Not a test.

A whole worker with its clients, against a target that answers at once: what is measured is the
harness alone, from the generator's draw to the second event in the segment. `--profile` prints
where the time goes. `fewest` is what the client with the fewest operations did of an equal share.
"""

import argparse
import cProfile
import os
import pstats
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import trio

from shaketable.harness.contracts.clients import PollResult
from shaketable.harness.history.segments import read_segment
from shaketable.harness.runtime.clients.worker import Worker, WorkerPlan

GOAL_HZ = 20_000
SECONDS = 3.0


class SilentControl:
    """Nobody listens."""

    def send(self, message: tuple[object, ...]) -> None:
        """Forget it."""

    async def receive(self) -> tuple[object, ...]:
        """Never."""
        await trio.sleep_forever()
        raise AssertionError


class Immediate:
    """Answers everything at once, without giving way to anybody."""

    node = "n0"

    async def append(self, key: str, value: int) -> int:
        """Pretend."""
        return value

    async def read(self, key: str, offset: int) -> int | None:
        """Pretend."""
        return offset

    async def end(self, key: str) -> int:
        """Pretend."""
        return 1000

    async def append_at(self, key: str, value: int, offset: int) -> int:
        """Pretend."""
        return offset

    async def poll(self, key: str, offset: int) -> PollResult:
        """Pretend."""
        return PollResult([(at, at) for at in range(offset, offset + 32)], offset + 32)

    async def fetch(self, key: str) -> int | None:
        """Pretend."""
        return 1

    async def commit(self, key: str, offset: int) -> None:
        """Pretend."""

    async def aclose(self) -> None:
        """Nothing to close."""


def measure(
    clients: int, workload: str, rate_hz: float, seconds: float, profile: cProfile.Profile | None
) -> str:
    """Run one worker; say what it recorded."""
    with tempfile.TemporaryDirectory() as folder:
        plan = WorkerPlan(
            name="worker-0",
            target="unused",
            workload=workload,
            seed="7",
            addresses={},
            slots=tuple(range(clients)),
            clients=clients,
            rate_hz=rate_hz,
            op_timeout_s=1.0,
            start_ns=time.monotonic_ns(),
            segment=Path(folder) / "worker-0.seg",
            parent_pid=os.getpid(),
            client_factory=lambda _addresses, _timeout_s: Immediate(),  # type: ignore[return-value]
        )

        async def main() -> None:
            worker = Worker(plan, SilentControl())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker._generate)
                await trio.sleep(seconds)
                worker._stop.set()
            worker._recorder.close()

        began, cpu = time.monotonic(), time.process_time()
        if profile is not None:
            profile.enable()
        trio.run(main)
        if profile is not None:
            profile.disable()
        took, cpu = time.monotonic() - began, time.process_time() - cpu
        events = read_segment(plan.segment).events
    done = Counter(event.process for event in events if event.type == "ok")
    total = sum(done.values())
    fewest = min(done[client] for client in range(clients)) * clients / max(1, total)
    return (
        f"{workload}, {clients} clients, rate {rate_hz or 'any'}: {total / took:,.0f} operations/s,"
        f" {cpu / total * 1e6:.1f} us of CPU each, fewest {fewest:.2f} of an equal share"
    )


def main() -> None:
    """Print a line for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--workload", default="log")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 6, 50])
    asked = parser.parse_args()
    for clients in asked.clients:
        profile = cProfile.Profile() if asked.profile else None
        line = measure(clients, asked.workload, asked.rate, asked.seconds, profile)
        sys.stdout.write(line + "\n")
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    sys.stdout.write(f"the goal: {GOAL_HZ:,} operations/s a worker\n")


if __name__ == "__main__":
    main()

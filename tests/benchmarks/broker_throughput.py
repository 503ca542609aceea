"""Sends to broker groups as fast as they take it, one at a time a connection, and paced.

Each run starts a group anew on real files, in a temporary folder. Printed are acknowledged
messages a second, latencies, CPU time a message of every process and the client, the CPU that
others took meanwhile, and the disk's fsync times right behind. All systems get the same frames
from the same client, one after the other, round by round.

    python tests/benchmarks/broker_throughput.py --systems dledger,apache-dledger \\
        --loads closed,sync,paced --runs 5 --json result.json
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.load.machine_load import CpuTimes, CpuWatch, fsync_times_ms
from tests.benchmarks.load.producer import Load, Producer, Refused
from tests.benchmarks.load.systems import SYSTEMS, System

CONNECTIONS = 16
WINDOW = 64
SYNC_PRODUCERS = 64
LOADS = ("closed", "sync", "paced")


@dataclass
class Result:
    """One run's figures; times in ms, CPU times in microseconds a message."""

    system: str
    load: str
    rate: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    cpu_us: dict[str, float]
    foreign_cpus: float
    fsync_p50_ms: float
    fsync_p99_ms: float
    refused: int
    why_refused: str

    @property
    def total_cpu_us(self) -> float:
        """CPU time a message of the whole group and the client."""
        return sum(self.cpu_us.values())


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def load_once(system: System, load: str, options: argparse.Namespace) -> Result:
    """Put one kind of load on a system that runs."""
    connections = SYNC_PRODUCERS if load == "sync" else CONNECTIONS
    producer = Producer(system.address, connections, options.bytes, system.broker)
    watch = CpuWatch({**system.pids, "client": os.getpid()})
    producer.on_measured = watch.start
    times: list[CpuTimes] = []
    producer.on_over = lambda: times.append(watch.stop())
    gc.collect()
    gc.freeze()
    if load == "paced":
        done = trio.run(producer.run_paced, options.rate, options.warm, options.seconds)
    else:
        window = 1 if load == "sync" else WINDOW
        done = trio.run(producer.run, window, options.warm, options.seconds)
    return _result(system, load, done, times[0])


def _result(system: System, load: str, done: Load, times: CpuTimes) -> Result:
    fsync = fsync_times_ms(system.folder)
    return Result(
        system.name,
        load,
        done.rate,
        done.quantile_ms(0.5),
        done.quantile_ms(0.99),
        done.quantile_ms(1.0),
        {name: 1e6 * seconds / done.acknowledged for name, seconds in times.of.items()},
        times.foreign_cpus,
        fsync[len(fsync) // 2],
        fsync[int(len(fsync) * 0.99)],
        done.refused,
        done.why_refused,
    )


def tell(result: Result) -> None:
    parts = " ".join(f"{name} {cost:.1f}" for name, cost in result.cpu_us.items())
    say(
        f"{result.system:<18}{result.load:<8}{result.rate:8,.0f}/s  p50 {result.p50_ms:6.1f}  "
        f"p99 {result.p99_ms:6.1f}  worst {result.worst_ms:7.1f} ms  "
        f"CPU {result.total_cpu_us:5.1f} us ({parts})  foreign {result.foreign_cpus:.2f} CPU  "
        f"fsync p50 {result.fsync_p50_ms:.1f} p99 {result.fsync_p99_ms:.1f} ms"
    )
    if result.refused:
        say(f"    beside these {result.refused:,} refused, e.g. {result.why_refused}")


def summarise(results: list[Result]) -> None:
    """Print the medians, and each system beside Apache's group."""
    say("")
    say(f"{'median of the runs':<26}{'messages/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'CPU us':>8}")
    rates: dict[tuple[str, str], float] = {}
    for key in dict.fromkeys((result.system, result.load) for result in results):
        runs = [result for result in results if (result.system, result.load) == key]
        rates[key] = statistics.median(run.rate for run in runs)
        say(
            f"{key[0]:<18}{key[1]:<8}{rates[key]:>12,.0f}"
            f"{statistics.median(run.p50_ms for run in runs):>9.1f}"
            f"{statistics.median(run.p99_ms for run in runs):>9.1f}"
            f"{statistics.median(run.total_cpu_us for run in runs):>8.1f}"
        )
    for (system, load), rate in rates.items():
        other = rates.get(("apache-dledger", load))
        if system == "dledger" and other:
            say(f"{load}: {rate / other:.2f} times Apache's DLedger group")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", default="dledger", help=", ".join(SYSTEMS))
    parser.add_argument("--loads", default="closed", help="closed, sync, paced")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--warm", type=float, default=3.0)
    parser.add_argument("--rate", type=int, default=20_000, help="messages a second, paced")
    parser.add_argument("--bytes", type=int, default=1024, help="of a body")
    parser.add_argument("--json", type=Path, help="where to write every run's figures")
    options = parser.parse_args()
    for given, known in ((options.systems, tuple(SYSTEMS)), (options.loads, LOADS)):
        for name in given.split(","):
            if name not in known:
                parser.error(f"{name!r} is none of {', '.join(known)}")
    results: list[Result] = []
    for _ in range(options.runs):
        for name in options.systems.split(","):
            with (
                tempfile.TemporaryDirectory(prefix="throughput-") as folder,
                SYSTEMS[name](Path(folder)) as system,
            ):
                for load in options.loads.split(","):
                    try:
                        results.append(load_once(system, load, options))
                        tell(results[-1])
                    except Refused as error:
                        say(f"{name:<18}{load:<8}{error}")
    if results:
        summarise(results)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()

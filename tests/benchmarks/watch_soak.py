"""`watch` for a long time: its speed, memory, how soon it tells, and that a kill changes nothing.

A writer appends operations of concurrent clients at a chosen rate. Every 15 seconds stale reads of
keys of their own are planted; it is measured how long each takes to be told. At random moments the
watch is killed by SIGKILL and started again with its checkpoint. In the end the verdict, and the
violations that were told, are compared with what was planted.

    python tests/benchmarks/watch_soak.py --rate 20000 --for-s 600 --spark-master 'local[*]'
    python tests/benchmarks/watch_soak.py --rate 50000 --for-s 600
    python tests/benchmarks/watch_soak.py --rate 5000 --for-s 600 --kills 20

Prints a line every 10 seconds: operations written, memory of all processes of the watch; these are
also in --samples FILE, as CSV, to be plotted:

    python tests/benchmarks/watch_soak.py --plot memory.svg "Spark, 20,000 op/s=spark.csv"
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from load.memory_plot import Sample, draw
from watch_scale import ROOT, events, line

PAGE = os.sysconf("SC_PAGE_SIZE")
PLANT_FROM_S = 60.0
"""Spark has started by then."""
PLANT_EVERY_S = 15.0
SAMPLE_EVERY_S = 10.0
BASE_OPERATIONS = 200_000
"""So many are made, and written again and again with later times: a writer must be cheap."""
UNKNOWN_EVERY = 20_000
KEYS = 200
QUIET_S = 6


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Writer(threading.Thread):
    """Appends at a rate, from a process of its own; plants stale reads."""

    def __init__(self, path: Path, rate_hz: int, for_s: float) -> None:
        super().__init__()
        argv = [sys.executable, __file__, "--write", str(path), "--rate", str(rate_hz)]
        self._process = subprocess.Popen(
            [*argv, "--for-s", str(for_s)], stdout=subprocess.PIPE, text=True
        )
        self.planted: dict[str, float] = {}
        self.operations = 0
        self.start()

    def run(self) -> None:
        """Read what it has written and planted."""
        assert self._process.stdout is not None
        for text in self._process.stdout:
            what, value, at = text.split()
            if what == "planted":
                self.planted[value] = float(at)
            self.operations = int(value) if what == "written" else self.operations

    def end(self) -> None:
        """Wait until all is written."""
        self.join()
        assert self._process.wait() == 0


def write(path: Path, rate_hz: int, for_s: float) -> None:
    """Append events until it is over; say on stdout what was planted, and how much is written."""
    lines = [*events(1, BASE_OPERATIONS, KEYS, first=0, unknown_every=UNKNOWN_EVERY)]
    lines += renewed(json.loads(lines[-1])["time"] + 1_000)
    parts = [each.encode().rsplit(b'"time": ', 1) for each in lines]
    heads, times = [head for head, _ in parts], [int(rest[:-2]) for _, rest in parts]
    span, number, planted = times[-1] + 1_000, 0, 0
    began_s = time.monotonic()
    planted_s = began_s + PLANT_FROM_S - PLANT_EVERY_S
    with path.open("ab", buffering=0) as file:
        while time.monotonic() - began_s < for_s:
            due = int((time.monotonic() - began_s) * rate_hz * 2)
            while number < due:
                rounds, at = divmod(number, len(heads))
                stop = min(len(heads), at + due - number)
                file.write(timed(heads[at:stop], times[at:stop], rounds * span))
                number += stop - at
            if time.monotonic() - planted_s > PLANT_EVERY_S:
                planted_s = time.monotonic()
                rounds, at = divmod(number - 1, len(heads))
                last = rounds * span + times[at]  # other lines are at least 1,000 ns apart
                file.write(stale(f"planted{planted}", planted, last + 1).encode())
                say(f"planted planted{planted} {time.time()}")
                planted += 1
            say(f"written {number // 2 + 3 * planted} {time.time()}")
            time.sleep(0.05)


def renewed(at: int) -> list[str]:
    """Return lines that give each key its first value again, one key after the other."""
    lines = []
    for number in range(KEYS):
        for kind in ("invoke", "ok"):
            lines.append(line(10**9, kind, "write", f"k{number}", 0, at))
            at += 1_000
    return lines


def timed(heads: list[bytes], times: list[int], later: int) -> bytes:
    """Return lines with later times."""
    return b"".join(
        b'%s"time": %d}\n' % (head, at + later) for head, at in zip(heads, times, strict=True)
    )


def stale(key: str, number: int, at: int) -> str:
    """Return a read of what was overwritten before it began."""
    process, text = 10**9 + 1 + number, ""
    for n, (f, value) in enumerate((("write", 1), ("write", 2), ("read", 1))):
        asked = None if f == "read" else value
        text += line(process, "invoke", f, key, asked, at + 2 * n)
        text += line(process, "ok", f, key, value, at + 2 * n + 1)
    return text


def watched(path: Path, kept: Path, more: list[str]) -> subprocess.Popen[str]:
    argv = [sys.executable, "-P", "-m", "shaketable", "watch", str(path)]
    argv += [
        "--model",
        "cas-register",
        "--initial",
        "0",
        "--checkpoint",
        str(kept),
        "--until-quiet",
        "6s",
        *more,
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env,
        start_new_session=True,
    )  # fmt: skip


def processes_of(parent: int) -> Iterator[int]:
    """Generate a process and all that it started."""
    yield parent
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from processes_of(int(child))


def memory_mb(parent: int) -> float:
    """Return the memory of a process and all that it started; what they share counts once."""
    total_kb = 0
    for process in processes_of(parent):
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        total_kb += int(rollup.partition("\nPss:")[2].split()[0])
    return total_kb / 1000


class Told(threading.Thread):
    """Reads what a watch prints: when each planted key is told, and its last line."""

    def __init__(self, process: subprocess.Popen[str], at: dict[str, float]) -> None:
        super().__init__()
        self._process, self._at = process, at
        self.last = ""
        self.start()

    def run(self) -> None:
        """Read until it ends."""
        assert self._process.stdout is not None
        for text in self._process.stdout:
            if text.startswith("INVALID") and ", key " in text:
                key = text.partition(", key ")[2].partition(":")[0]
                self._at.setdefault(key, time.time())
            if text.split("  ")[0] in ("VALID", "INVALID", "UNKNOWN"):
                self.last = text.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=20_000, help="operations a second")
    parser.add_argument("--for-s", type=float, default=600)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--spark-master")
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("sampled", nargs="*", metavar="NAME=CSV", help="what to plot")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write is not None:
        write(given.write, given.rate, given.for_s)
        return
    if given.plot is not None:
        plot(given.plot, given.sampled)
        return
    more = ["--jobs", str(given.jobs)]
    if given.spark_master:
        more = ["--spark-master", given.spark_master]
    with tempfile.TemporaryDirectory() as name:
        soak(Path(name), given, more)


def plot(path: Path, sampled: list[str]) -> None:
    samples = []
    for each in sampled:
        name, _, csv = each.rpartition("=")
        for row in Path(csv).read_text().splitlines()[1:]:
            at_s, _, mb = row.split(",")
            samples.append(Sample(float(at_s), name, float(mb) * 1e6 / 2**20))
    title = "Memory of all processes of a watch (MiB)"
    draw(path, samples, [], title, "since its start")


def soak(folder: Path, given: argparse.Namespace, more: list[str]) -> None:
    path, kept, rng = folder / "history.jsonl", folder / "kept", random.Random(1)
    path.touch()
    samples = [("s", "operations", "memory_mb")]
    at: dict[str, float] = {}
    writer = Writer(path, given.rate, given.for_s)
    while not writer.operations:
        time.sleep(0.1)
    began_s, process = time.monotonic(), watched(path, kept, more)
    told = Told(process, at)
    kills = sorted(rng.uniform(0.05, 0.95) * given.for_s for _ in range(given.kills))
    killed, sampled_s = 0, 0.0
    while writer.is_alive():
        time.sleep(0.2)
        now_s = time.monotonic() - began_s
        if kills and now_s > kills[0]:
            kills.pop(0)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            told.join()
            process = watched(path, kept, more)
            told, killed = Told(process, at), killed + 1
        if now_s - sampled_s > SAMPLE_EVERY_S:
            sampled_s = now_s
            sample = (f"{now_s:.0f}", str(writer.operations), f"{memory_mb(process.pid):.0f}")
            samples.append(sample)
            say(
                "  ".join(f"{value} {name}" for name, value in zip(samples[0], sample, strict=True))
            )
    writer.end()
    written_s = time.monotonic()
    code = process.wait()
    told.join()
    after = [told_s - writer.planted[key] for key, told_s in at.items() if key in writer.planted]
    say(f"{writer.operations:,} operations in {given.for_s:g} s, killed {killed} times")
    ended_s = time.monotonic() - written_s
    say(f"it ended {ended_s:.1f} s after the last one, of which it waits {QUIET_S}")
    say(f"exit code {code}: {told.last}")
    say(f"planted {len(writer.planted)}, told {len(after)}")
    if after:
        say(f"told after {statistics.median(after):.2f} s (median), {max(after):.2f} s (worst)")
    if given.samples is not None:
        given.samples.write_text("".join(",".join(each) + "\n" for each in samples))


if __name__ == "__main__":
    main()

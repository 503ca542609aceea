"""`watch` at scale: how fast it judges, what memory it takes on the way, how soon it tells.

Writes a history of cas-registers by concurrent clients, some of unknown outcome, as JSON lines, and
lets `watch` judge it from a file that is there already (its greatest speed), then `check` the same
file. Then a writer appends at a chosen rate, and a stale read is planted again and again: the time
from its last line to the page with the first violation.

    python tests/benchmarks/watch_scale.py --operations 1000000 --planted 20
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENTS = 20
UNKNOWN_EVERY = 1000
PAGE = os.sysconf("SC_PAGE_SIZE")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def events(
    seed: int,
    operations: int,
    keys: int,
    first: int | None = None,
    unknown_every: int = UNKNOWN_EVERY,
) -> Iterator[str]:
    """Generate lines: clients at once, each operation taking effect between its two events."""
    rng = random.Random(seed)
    state: dict[str, int | None] = {f"k{number}": first for number in range(keys)}
    busy: dict[int, tuple[str, str, object, object]] = {}
    process = list(range(CLIENTS))
    done = started = at = 0
    while done < operations:
        at += 1000
        client = rng.randrange(CLIENTS)
        if client not in busy:
            if started == operations:
                continue
            started += 1
            key, f = f"k{rng.randrange(keys)}", rng.choice(("read", "write", "cas"))
            value: object = None
            if f == "write":
                value = rng.randrange(5)
            elif f == "cas":
                value = [state.get(key) or 0, rng.randrange(5)]
            busy[client] = (key, f, value, None)
            yield line(process[client], "invoke", f, key, value, at)
            continue
        key, f, value, _ = busy.pop(client)
        kind, shown = "ok", value
        if f == "write":
            state[key] = value  # type: ignore[assignment]
        elif f == "read":
            shown = state.get(key)
        else:
            old, new = value  # type: ignore[misc]
            kind = "ok" if state.get(key) == old else "fail"
            state[key] = new if kind == "ok" else state.get(key)
        done += 1
        if f != "read" and kind == "ok" and done % unknown_every == 0:
            kind = "info"
        yield line(process[client], kind, f, key, shown, at)
        if kind == "info":
            process[client] += CLIENTS


def line(process: int, kind: str, f: str, key: str, value: object, at: int) -> str:
    event = {"process": process, "type": kind, "f": f, "key": key, "value": value, "time": at}
    return json.dumps(event) + "\n"


def shaketable(*arguments: object) -> subprocess.Popen[str]:
    argv = [sys.executable, "-P", "-m", "shaketable", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=quiet, text=True, env=env)


def memory_mb(process: subprocess.Popen[str]) -> float:
    pages = Path(f"/proc/{process.pid}/statm").read_text().split()[1]
    return int(pages) * PAGE / 1e6


def measured(name: str, operations: int, *arguments: object) -> float:
    """Run a command; print its times, rate and memory on the way; return CPU seconds."""
    began_s, seen = time.monotonic(), [0.0]
    process = shaketable(*arguments)
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.25):
            try:
                seen.append(memory_mb(process))
            except (OSError, IndexError):
                return

    looking = threading.Thread(target=look)
    looking.start()
    assert process.stdout is not None
    verdict = process.stdout.readline().strip()
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    over.set()
    looking.join()
    cpu_s, wall_s = usage.ru_utime + usage.ru_stime, time.monotonic() - began_s
    on_the_way = [f"{seen[len(seen) * part // 4 - 1]:.0f}" for part in (2, 3, 4)]
    say(f"{name:<8} {wall_s:6.1f} s  {cpu_s:6.1f} CPU-s  {operations / cpu_s:9,.0f} op/CPU-s"
        f"  MB at 1/2, 3/4, end: {', '.join(on_the_way)}; peak {usage.ru_maxrss / 1000:.0f}"
        f"  {verdict.split('  ')[0]}")  # fmt: skip
    return cpu_s


def told_after_s(folder: Path, seed: int, rate_hz: int) -> float:
    """Let a history grow at a rate, plant a stale read; return how long it takes to be told."""
    path, rng = folder / f"{seed}.jsonl", random.Random(seed)
    path.touch()
    before = rng.randrange(2, 6) * rate_hz
    with shaketable("watch", path, "--model", "cas-register") as process, path.open("a") as file:
        made = events(seed, before, 200)
        began_s = time.monotonic()
        for number, text in enumerate(made):
            file.write(text)
            if number % 500 == 0:
                file.flush()
                time.sleep(max(0.0, began_s + number / 2 / rate_hz - time.monotonic()))
        at = 10**12
        for n, (f, value) in enumerate((("write", 1), ("write", 2), ("read", 1))):
            asked = None if f == "read" else value
            file.write(line(900_000, "invoke", f, "planted", asked, at + 2 * n))
            file.write(line(900_000, "ok", f, "planted", value, at + 2 * n + 1))
        file.flush()
        planted_s = time.monotonic()
        assert process.stdout is not None
        for text in process.stdout:
            if text.startswith("INVALID"):
                break
        else:
            raise AssertionError("it was not told")
        told_s = time.monotonic() - planted_s
        process.kill()
    return told_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--planted", type=int, default=20)
    parser.add_argument("--rate", type=int, default=5_000, help="operations/s while it grows")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "history.jsonl"
        with path.open("w") as file:
            file.writelines(events(1, given.operations, given.keys))
        size_mb = path.stat().st_size / 1e6
        say(f"{given.operations:,} operations on {given.keys} keys, {size_mb:.0f} MB")
        model = ("--model", "cas-register")
        small = folder / "small.jsonl"
        small.write_text("".join(events(2, 1000, 5)))
        for command in ("watch", "check"):  # compiles, if it has to
            quiet = ("--until-quiet", "1s") if command == "watch" else ("--engine", "local")
            shaketable(command, small, *model, *quiet).communicate()
        watch_s = measured("watch", given.operations, "watch", path, *model, "--until-quiet", "1s")
        check_s = measured("check", given.operations, "check", path, *model, "--engine", "local")
        say(f"watch takes {watch_s / check_s:.2f} of the processor time of check")
        if given.planted:
            told = [told_after_s(folder, seed, given.rate) for seed in range(given.planted)]
            median_s = statistics.median(told)
            say(f"{given.planted} stale reads planted at {given.rate:,} operations/s: told after"
                f" {median_s:.2f} s (median), {max(told):.2f} s (worst)")  # fmt: skip


if __name__ == "__main__":
    main()

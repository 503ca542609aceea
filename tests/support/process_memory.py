"""Memory and CPU time of this process and all that it started: for benchmarks."""

from __future__ import annotations

import os
import threading
from pathlib import Path

SAMPLE_S = 0.25


class Usage:
    """Samples, while the `with` lasts, the proportional memory (PSS) of all processes.

    `peak_bytes` is the highest sum; `peak_of` the highest of each kind of program.
    `cpu_s` is the CPU time that each kind took, but for processes that ended meanwhile.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.peak_of: dict[str, int] = {}
        self.cpu_s: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Usage:
        self._cpu_before = cpu_of(os.getpid())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for kind, seconds in cpu_of(os.getpid()).items():
            self.cpu_s[kind] = seconds - self._cpu_before.get(kind, 0.0)

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            now: dict[str, int] = {}
            for process in family(os.getpid()):
                kind, size = memory_of(process)
                now[kind] = now.get(kind, 0) + size
            for kind, size in now.items():
                self.peak_of[kind] = max(self.peak_of.get(kind, 0), size)
            self.peak_bytes = max(self.peak_bytes, sum(now.values()))


def family(ancestor: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found = [ancestor]
    for process in found:
        found += children.get(process, [])
    return found


def memory_of(process: int) -> tuple[str, int]:
    """Return a process's program and its proportional share of memory, 0 if it is gone."""
    folder = Path("/proc") / str(process)
    try:
        kind = (folder / "comm").read_text().strip()
        for line in (folder / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return kind, 1024 * int(line.split()[1])
    except OSError:
        pass
    return "gone", 0


def cpu_of(ancestor: int) -> dict[str, float]:
    """Return the seconds of CPU that each kind of program took, from a process downwards."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    seconds: dict[str, float] = {}
    for process in family(ancestor):
        folder = Path("/proc") / str(process)
        try:
            kind = (folder / "comm").read_text().strip()
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        ticks = sum(int(number) for number in stat.rpartition(")")[2].split()[11:15])
        seconds[kind] = seconds.get(kind, 0.0) + ticks * tick_s
    return seconds

"""What the machine did beside and behind a load: CPU times of processes, fsync times."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PROBE_BYTES = 65536
PROBES = 100


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process took so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def machine_cpu_s() -> float:
    """Return the seconds of CPU that everything on this machine took so far."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, softirq = numbers[:7]
    return (user + nice + system + irq + softirq) * _TICK_S


@dataclass
class CpuTimes:
    """CPU times while something was measured; `foreign` is everybody else's, in CPUs."""

    of: dict[str, float]
    foreign_cpus: float
    seconds: float

    @property
    def total_s(self) -> float:
        """The seconds of all processes that count."""
        return sum(self.of.values())


class CpuWatch:
    """Reads CPU times of named processes from its `start` to its `stop`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self.start()

    def start(self) -> None:
        """Count from here."""
        self._before = {name: cpu_s(pid) for name, pid in self._pids.items()}
        self._machine = machine_cpu_s()
        self._at = time.monotonic()

    def stop(self) -> CpuTimes:
        """Return what they took since `start`."""
        of = {name: cpu_s(pid) - self._before[name] for name, pid in self._pids.items()}
        seconds = time.monotonic() - self._at
        foreign = machine_cpu_s() - self._machine - sum(of.values())
        return CpuTimes(of, max(0.0, foreign) / seconds, seconds)


def fsync_times_ms(folder: Path) -> list[float]:
    """Write and fdatasync a file in `folder` again and again; return the times, ascending."""
    path = folder / "fsync-probe"
    times = []
    data = os.urandom(PROBE_BYTES)
    handle = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for _ in range(PROBES):
            os.write(handle, data)
            start = time.perf_counter()
            os.fdatasync(handle)
            times.append(1000 * (time.perf_counter() - start))
    finally:
        os.close(handle)
        path.unlink()
    return sorted(times)

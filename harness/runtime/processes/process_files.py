"""A process in /proc: its memory, CPU time, descriptors, and connections not yet accepted.

Read-only. All functions return None if the process is gone.

Source: proc(5).
"""

from __future__ import annotations

import os
from pathlib import Path

LISTENING = "0A"
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
DESCRIPTORS_MAX = 1 << 20


def cpu_ns(pid: int) -> int | None:
    """Return the CPU time of the process and all its threads."""
    stat = _read(f"/proc/{pid}/stat")
    if stat is None:
        return None
    fields = stat.rpartition(")")[2].split()  # from field 3 on; utime is 14, stime 15
    return (int(fields[11]) + int(fields[12])) * TICK_NS


def memory_bytes(pid: int) -> int | None:
    """Return the size of its address space, which RLIMIT_AS limits."""
    statm = _read(f"/proc/{pid}/statm")
    return None if statm is None else int(statm.split()[0]) * os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int | None:
    """Return its resident set size."""
    statm = _read(f"/proc/{pid}/statm")
    return None if statm is None else int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def first_free_descriptor(pid: int) -> int | None:
    """Return the number that its next descriptor would get, which RLIMIT_NOFILE limits."""
    try:
        used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return None
    return next(number for number in range(DESCRIPTORS_MAX) if number not in used)


def callers_waiting(pid: int, port: int) -> int | None:
    """Return the number of connections to its listening port that it has not accepted."""
    waiting = None
    for name in ("tcp", "tcp6"):
        table = _read(f"/proc/{pid}/net/{name}")
        for line in (table or "").splitlines()[1:]:
            _, local, _, state, queues = line.split()[:5]
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                waiting = (waiting or 0) + int(queues.partition(":")[2], 16)
    return waiting


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None

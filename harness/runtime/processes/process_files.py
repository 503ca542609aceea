"""What the kernel says of a process: its memory, processor time, descriptors, waiting callers.

Nothing here changes anything. A process that is gone says nothing: None.

Source: proc(5).
"""

from __future__ import annotations

import os
from pathlib import Path

LISTENING = "0A"
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
DESCRIPTORS_MAX = 1 << 20


def cpu_ns(pid: int) -> int | None:
    """Processor time that the process and all its threads have used."""
    stat = _read(f"/proc/{pid}/stat")
    if stat is None:
        return None
    fields = stat.rpartition(")")[2].split()  # from field 3 on; utime is 14, stime 15
    return (int(fields[11]) + int(fields[12])) * TICK_NS


def memory_bytes(pid: int) -> int | None:
    """Its address space: what RLIMIT_AS limits."""
    statm = _read(f"/proc/{pid}/statm")
    return None if statm is None else int(statm.split()[0]) * os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int | None:
    """What of its memory is in RAM."""
    statm = _read(f"/proc/{pid}/statm")
    return None if statm is None else int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def first_free_descriptor(pid: int) -> int | None:
    """The number that the next file or connection would get: what RLIMIT_NOFILE limits."""
    try:
        used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return None
    return next(number for number in range(DESCRIPTORS_MAX) if number not in used)


def callers_waiting(pid: int, port: int) -> int | None:
    """Connections to the port that the process listens on and has not accepted."""
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

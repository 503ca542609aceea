"""A fake wall clock for a third-party program: libfaketime, preloaded.

Measure what the program shows, never assume it: a static program, or one that makes the system call
itself (Go), does not notice. Only the wall clock is faked, since a faked monotonic clock hangs
programs that wait on conditions.

Traps handled here: a rate counts from the start of the process, so a rate set later would make the
clock jump; "+0" alone does not undo a rate; settings are cached for seconds unless that is turned
off; a killed process leaves two files in /dev/shm. A process that restarts under a rate would start
at the time at which the previous one started, so its file is rewritten for it.

Source: libfaketime's README; the PyPI package libfaketime, which carries the library (Debian's
0.9.10 hangs Python 3.11); HARNESSES.md section 5.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Launch
from shaketable.harness.history.run_folder import write_atomically

RIGHT: Final = "+0 x1"
"""The setting that undoes an offset and a rate."""
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where the library puts its own files
_LIBRARY = Path("vendor", "libfaketime", "src", "libfaketime.so.1")


class FakedTime:
    """The wall clock of one program, set by a file in `folder`.

    Raises:
        HarnessError: the library is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "faketime"
        self._library = library()
        self._started_s = time.time()
        self._offset_ms, self._rate, self._since_s = 0.0, 1.0, self._started_s
        self._pids: set[int] = set()
        write_atomically(self._file, f"{RIGHT}\n")

    def launch(self, launch: Launch) -> Launch:
        """Return the launch of the program under this clock; call it right before the start."""
        self._started_s = time.time()
        before = launch.env.get("LD_PRELOAD", "")
        faked = {
            "LD_PRELOAD": f"{self._library}:{before}" if before else str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        return replace(launch, env={**launch.env, **faked})

    def change(self, offset_ms: float = 0.0, rate: float = 1.0, age_s: float | None = None) -> None:
        """Set the clock's offset now, and its rate from now on.

        `age_s` is how long the program has run, if that is better known than by `launch`.

        Raises:
            HarnessError: the file cannot be written.
        """
        now_s = time.time()
        self._offset_ms, self._rate, self._since_s = offset_ms, rate, now_s
        self._write(now_s - self._started_s if age_s is None else age_s, now_s)

    def starts(self) -> None:
        """Restart the program now: its clock continues as if it had run on.

        Raises:
            HarnessError: the file cannot be written.
        """
        self._started_s = time.time()
        self._write(0.0, self._started_s)

    def _write(self, age_s: float, now_s: float) -> None:
        """Write the file for a process that is `age_s` old: its rate counts from its start."""
        ahead_s = (self._rate - 1.0) * (now_s - age_s - self._since_s)
        write_atomically(self._file, f"{self._offset_ms / 1000 + ahead_s:+.6f} x{self._rate:g}\n")

    def started(self, pid: int) -> None:
        """Record a process of this program, for `forget`."""
        self._pids.add(pid)

    def forget(self) -> None:
        """Delete what ended processes left in shared memory (idempotent)."""
        for pid in self._pids:
            forget(pid)
        self._pids.clear()

    def heal(self) -> None:
        """Restore the clock (idempotent). Raises HarnessError."""
        self._offset_ms, self._rate = 0.0, 1.0
        write_atomically(self._file, f"{RIGHT}\n")


def forget(pid: int) -> None:
    """Delete what an ended process left in shared memory (idempotent)."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        (SHARED_MEMORY / name).unlink(missing_ok=True)


def age_s(pid: int) -> float | None:
    """Return how long a process has run; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    ticks = int(stat.rpartition(")")[2].split()[19])  # field 22, starttime
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def library() -> Path:
    """Return the library to preload.

    Raises:
        HarnessError: the package libfaketime is not installed, or was built without it.
    """
    spec = find_spec("libfaketime")
    found = None if spec is None or spec.origin is None else Path(spec.origin).parent / _LIBRARY
    if found is None or not found.exists():
        raise HarnessError("libfaketime is not installed: pip install 'libfaketime>=3.0.1'")
    return found

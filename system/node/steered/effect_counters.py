"""Counters in a file that outlives the process: what a node did, for whoever steers it.

The file is mapped, so that what was counted stays when the process is killed, and costs no
call of the kernel. It begins with `MAGIC`; behind that stand the slots of `SLOTS`, in order, each
a signed 64-bit number of the machine's own byte order; behind them, `HARMS_MAX` records of
`HARM_SLOTS`, one for each harm of the disk (docs/faults.md).
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FILE_NAME: Final = "effects"
MAGIC: Final = b"shktbl01"
MESSAGES: Final = (
    "VoteRequest",
    "VoteResponse",
    "PushRequest",
    "PushResponse",
    "SnapshotRequest",
    "LeadershipTransfer",
)
"""Kinds of messages that are counted one by one."""
SLOTS: Final = (
    "starts",  # how often a process began to count here
    "control_version",  # of the orders that are carried out
    "reading",  # odd while the four below are being written
    "machine_mono_us",  # what the machine's monotonic clock showed, in microseconds
    "node_mono_us",  # ... and the node's at the same instant
    "machine_wall_us",
    "node_wall_us",
    "read",  # calls to the disk, by kind
    "write",
    "sync",
    "name",  # files made, renamed, removed
    "errors",  # calls that were made to fail
    "slowed",  # calls that were made to wait
    "waited_us",  # ... and for how long
    "unsynced_bytes",  # held by the process alone: a kill at this moment loses them
    "lost_bytes",  # what processes held when they ended without a word
    "losses",  # how many of them held any
    "message",  # messages to other members
    *(f"message:{kind}" for kind in MESSAGES),
)
HARM_SLOTS: Final = ("number", "calls", "errors", "slowed", "waited_us")
HARMS_MAX: Final = 16
"""A harm's record is the one at its number modulo this."""
_WORD: Final = 8
SIZE: Final = len(MAGIC) + _WORD * (len(SLOTS) + HARMS_MAX * len(HARM_SLOTS))
_AT: Final = {name: number for number, name in enumerate(SLOTS)}
_HARM_AT: Final = {name: number for number, name in enumerate(HARM_SLOTS)}


class EffectCounters:
    """The counters of a node in a folder; made if they are not there. Any thread may count."""

    def __init__(self, folder: Path) -> None:
        """Map the file, and take in what the process before this one left in it."""
        fd = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, SIZE)
            self._map = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        self._slots = memoryview(self._map)[len(MAGIC) :].cast("q")
        self._lock = threading.Lock()
        if self._map[: len(MAGIC)] != MAGIC:
            self._map[: len(MAGIC)] = MAGIC
        held = self["unsynced_bytes"]
        if held:
            self.add(lost_bytes=held, losses=1)
            self.set(unsynced_bytes=0)
        if self["reading"] % 2:  # it died while it wrote
            self.add(reading=1)
        self.add(starts=1)

    def __getitem__(self, name: str) -> int:
        return self._slots[_AT[name]]

    def add(self, **counts: int) -> None:
        """Add to some of the counters."""
        slots = self._slots
        with self._lock:
            for name, count in counts.items():
                slots[_AT[name]] += count

    def count(self, name: str) -> int:
        """Count one; return how many there are now."""
        at = _AT[name]
        with self._lock:
            self._slots[at] += 1
            return self._slots[at]

    def set(self, **values: int) -> None:
        """Set some of the counters."""
        for name, value in values.items():
            self._slots[_AT[name]] = value

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let nobody take the clocks' four numbers for one reading while they are written."""
        self.add(reading=1)
        try:
            yield
        finally:
            self.add(reading=1)

    def harm(self, number: int, **counts: int) -> None:
        """Add to the record of a harm; one of another number that stood there is gone."""
        slots = self._slots
        at = len(SLOTS) + number % HARMS_MAX * len(HARM_SLOTS)
        with self._lock:
            if slots[at] != number:
                for slot in range(len(HARM_SLOTS)):
                    slots[at + slot] = 0
                slots[at] = number
            for name, count in counts.items():
                slots[at + _HARM_AT[name]] += count

    def of_harm(self, number: int, name: str) -> int:
        """Return one number of a harm's record."""
        at = len(SLOTS) + number % HARMS_MAX * len(HARM_SLOTS)
        return self._slots[at + _HARM_AT[name]] if self._slots[at] == number else 0

"""Counters of a node's calls and faults in a file that survives the process, for the harness.

The file is memory-mapped, so counts survive a kill and cost no system call. Its format: `MAGIC`;
the slots of `SLOTS` in order, each a signed 64-bit number in native byte order; `DISK_FAULTS_MAX`
records of `DISK_FAULT_SLOTS`, one per disk fault (docs/faults.md).
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
"""Kinds of messages that have their own counters."""
SLOTS: Final = (
    "starts",  # how many processes used this file
    "control_version",  # version of the orders in force
    "reading",  # odd while the four below are being written
    "machine_mono_us",  # the machine's monotonic clock, in microseconds
    "node_mono_us",  # the node's monotonic clock at the same instant
    "machine_wall_us",
    "node_wall_us",
    "read",  # calls to the disk, by kind
    "write",
    "sync",
    "name",  # files created, renamed, removed
    "errors",  # calls that failed by an order
    "slowed",  # calls that were delayed by an order
    "waited_us",  # total delay
    "unsynced_bytes",  # bytes that a kill at this moment loses
    "lost_bytes",  # bytes that were unsynced when processes were killed
    "losses",  # how many processes lost any
    "message",  # messages to other members
    *(f"message:{kind}" for kind in MESSAGES),
)
DISK_FAULT_SLOTS: Final = ("number", "calls", "errors", "slowed", "waited_us")
DISK_FAULTS_MAX: Final = 16
"""The record of a disk fault is the one at its number modulo this."""
_SLOT_BYTES: Final = 8
SIZE: Final = len(MAGIC) + _SLOT_BYTES * (len(SLOTS) + DISK_FAULTS_MAX * len(DISK_FAULT_SLOTS))
_AT: Final = {name: number for number, name in enumerate(SLOTS)}
_DISK_FAULT_AT: Final = {name: number for number, name in enumerate(DISK_FAULT_SLOTS)}


class EffectCounters:
    """The counters of a node, in a folder; created if missing. Counting is thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Map the file, and account for what the previous process left unsynced."""
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
        if self["reading"] % 2:  # it was killed while writing
            self.add(reading=1)
        self.add(starts=1)

    def __getitem__(self, name: str) -> int:
        return self._slots[_AT[name]]

    def add(self, **counts: int) -> None:
        """Add to the named counters."""
        slots = self._slots
        with self._lock:
            for name, count in counts.items():
                slots[_AT[name]] += count

    def count(self, name: str) -> int:
        """Increment a counter; return its new value."""
        at = _AT[name]
        with self._lock:
            self._slots[at] += 1
            return self._slots[at]

    def set(self, **values: int) -> None:
        """Set the named counters."""
        for name, value in values.items():
            self._slots[_AT[name]] = value

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Mark the four clock values as inconsistent while they are written (a seqlock)."""
        self.add(reading=1)
        try:
            yield
        finally:
            self.add(reading=1)

    def count_fault(self, number: int, **counts: int) -> None:
        """Add to the record of a disk fault, replacing a record with another number."""
        slots = self._slots
        at = len(SLOTS) + number % DISK_FAULTS_MAX * len(DISK_FAULT_SLOTS)
        with self._lock:
            if slots[at] != number:
                for slot in range(len(DISK_FAULT_SLOTS)):
                    slots[at + slot] = 0
                slots[at] = number
            for name, count in counts.items():
                slots[at + _DISK_FAULT_AT[name]] += count

    def fault_count(self, number: int, name: str) -> int:
        """Return one counter of a disk fault's record, 0 if it has none."""
        at = len(SLOTS) + number % DISK_FAULTS_MAX * len(DISK_FAULT_SLOTS)
        return self._slots[at + _DISK_FAULT_AT[name]] if self._slots[at] == number else 0

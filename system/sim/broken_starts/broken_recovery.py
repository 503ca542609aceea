"""At the end of a run: interrupted recoveries of a log with a torn tail.

A recovery truncates a torn tail and makes durable what it keeps. It may lose power in the middle,
be killed, or see an fsync fail; the next one starts over. The recovery that completes has the log
as it was without the tail: no power loss brings the tail back, or loses anything more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from itertools import count

from shaketable.system.raft.batch import LogEnd
from shaketable.system.sim.disk import Platter, PowerLoss, SimDisk
from shaketable.system.sim.rules.violation import Violated
from shaketable.system.sim.schedules.random_streams import RandomStream
from shaketable.system.store.disk import StoreError

OPERATIONS_MAX = 24
"""A start is interrupted after at most so many changing disk operations."""
SYNCS_MAX = 6
STARTS_MAX = 3
TAIL_BYTES_MAX = 3_000
LATER_FILE = 0.4
_FAILS = 0.3
_LOSES_POWER = 0.7

Open = Callable[[SimDisk], LogEnd]
"""Recovers the log on a disk as a node does, and returns its end."""


def check_recovery(
    disk: SimDisk,
    open_log: Open,
    folder: str,
    file_bytes: int,
    rng: RandomStream,
    name: str,
    *,
    remembers_cuts: bool = True,
) -> bool:
    """Recover a copy of a disk with a torn tail; return False if the disk is damaged already.

    `folder` holds the log's data files of `file_bytes` each. No fsync fails where the log does not
    remember that it was truncating (`remembers_cuts`): dropped pages look truncated. Raises
    Violated.
    """
    copy = _copy(disk)
    try:
        expected = open_log(copy)
    except StoreError:
        return False  # a fault had damaged it
    copy = copy.restart(loses_unsynced=True, rng=rng)
    _check_end(copy, open_log, expected, "lost power after a start", name)
    copy = copy.restart(loses_unsynced=False, rng=rng)
    _write_torn_tail(copy, folder, file_bytes, expected.position, rng)
    for _ in range(rng.randint(1, STARTS_MAX)):
        copy = _interrupted(copy, open_log, rng, _FAILS if remembers_cuts else 0.0)
    _check_end(copy, open_log, expected, "was interrupted as it cut a torn tail", name)
    copy = copy.restart(loses_unsynced=True, rng=rng)
    if left := _nonzero_bytes_after(copy.platter, folder, expected.position):
        finding = f"{left} bytes of a torn tail are back after {expected.position}"
        raise Violated("cut-is-for-good", finding, name)
    _check_end(copy, open_log, expected, "lost power after a truncation", name)
    return True


def _copy(disk: SimDisk) -> SimDisk:
    platter = deepcopy(disk.platter)
    platter.stop_at = platter.capacity_bytes = platter.on_operation = platter.on_read = None
    platter.is_failing, platter.sync_failures = False, 0
    return SimDisk(platter)


def _check_end(disk: SimDisk, open_log: Open, expected: LogEnd, what: str, name: str) -> None:
    try:
        end = open_log(disk)
    except StoreError as error:
        raise Violated("cut-is-for-good", f"it {what}, and cannot start: {error}", name) from error
    if end != expected:
        raise Violated("cut-is-for-good", f"it {what}: its log ends at {end}, not {expected}", name)


def _interrupted(disk: SimDisk, open_log: Open, rng: RandomStream, fails: float) -> SimDisk:
    """Start, and interrupt that if it takes long enough; return the next incarnation's disk."""
    platter = disk.platter
    loses_power = rng.chance(_LOSES_POWER)
    if rng.chance(fails):
        # The next start still reads the dropped pages, but they are not on the disk.
        platter.on_operation = _failing(platter, rng.randint(1, SYNCS_MAX))
        loses_power = False
    else:
        platter.stop_at = platter.operations + rng.randint(1, OPERATIONS_MAX)
    with suppress(StoreError, PowerLoss):
        open_log(disk)
    platter.on_operation, platter.sync_failures = None, 0
    return disk.restart(loses_unsynced=loses_power, rng=rng)


def _failing(platter: Platter, nth: int) -> Callable[[str, str], None]:
    """Return a hook that makes the n-th fsync from now on fail."""
    syncs = count(1)

    def before(kind: str, path: str) -> None:
        del path
        if kind == "sync" and next(syncs) == nth:
            platter.sync_failures = 1

    return before


def _write_torn_tail(
    disk: SimDisk, folder: str, file_bytes: int, end: int, rng: RandomStream
) -> None:
    """Write, durably, garbage after a log's end, as a crash may; perhaps in the next file too."""
    start = end // file_bytes * file_bytes
    _write_garbage(disk, f"{folder}/{start:020}", end - start, file_bytes, rng)
    if rng.chance(LATER_FILE):
        _write_garbage(disk, f"{folder}/{start + file_bytes:020}", 0, file_bytes, rng)
    disk.sync_dir(folder)


def _write_garbage(disk: SimDisk, path: str, at: int, file_bytes: int, rng: RandomStream) -> None:
    file = disk.open(path) if disk.exists(path) else disk.create(path, file_bytes)
    size = min(rng.randint(1, TAIL_BYTES_MAX), file_bytes - at)
    file.pwrite([rng.randbytes(size)], at)
    file.sync()
    file.close()


def _nonzero_bytes_after(platter: Platter, folder: str, end: int) -> int:
    """Return how many bytes after a log's end, in all its files, are not zero."""
    found = 0
    for path, inode in platter.inodes.items():
        if not path.startswith(f"{folder}/") or not path.rpartition("/")[2].isdecimal():
            continue
        start = int(path.rpartition("/")[2])
        data = bytes(inode.view[max(0, end - start) :])
        found += len(data) - data.count(0)
    return found

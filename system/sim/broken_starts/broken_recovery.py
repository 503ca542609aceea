"""At the end of a run: starts on copies of a log with a torn tail, each stopped before its end.

A start cuts a torn tail off and makes durable what it keeps. It may lose power in the middle of
that, be killed, or find that an fsync fails; the next one does it all again. Who starts in the end
has the log as it was without the tail: no loss of power brings that back, or takes anything more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from itertools import count

from shaketable.system.raft.batch import LogEnd
from shaketable.system.sim.disks.disk import Platter, PowerLoss, SimDisk
from shaketable.system.sim.rules.violation import Violated
from shaketable.system.sim.schedules.draws import Stream
from shaketable.system.store.disk import StoreError

OPERATIONS_MAX = 24
"""So many changes of the disk are made at most before a start is interrupted."""
SYNCS_MAX = 6
STARTS_MAX = 3
TAIL_BYTES_MAX = 3_000
LATER_FILE = 0.4
_FAILS = 0.3
_LOSES_POWER = 0.7

Open = Callable[[SimDisk], LogEnd]
"""Starts on a disk as a node does, and returns where its log ends."""


def check_recovery(
    disk: SimDisk,
    open_log: Open,
    folder: str,
    file_bytes: int,
    draw: Stream,
    name: str,
    *,
    remembers_cuts: bool = True,
) -> bool:
    """Start on a copy of a disk whose log has a torn tail; False where none does as it is.

    `folder` holds the log's data files of `file_bytes` each. No fsync fails where the log does not
    remember that it was to cut (`remembers_cuts`): what is dropped looks as if it were cut.
    Raises Violated.
    """
    copy = _copy(disk)
    try:
        wanted = open_log(copy)
    except StoreError:
        return False  # a fault damaged it
    copy = copy.restart(loses_unsynced=True, rng=draw)
    _check_end(copy, open_log, wanted, "lost power behind a start", name)
    copy = copy.restart(loses_unsynced=False, rng=draw)
    _tear(copy, folder, file_bytes, wanted.position, draw)
    for _ in range(draw.randint(1, STARTS_MAX)):
        copy = _interrupted(copy, open_log, draw, _FAILS if remembers_cuts else 0.0)
    _check_end(copy, open_log, wanted, "was interrupted as it cut a torn tail", name)
    copy = copy.restart(loses_unsynced=True, rng=draw)
    if left := _behind(copy.platter, folder, wanted.position):
        finding = f"{left} bytes of a torn tail are back behind {wanted.position}"
        raise Violated("cut-is-for-good", finding, name)
    _check_end(copy, open_log, wanted, "lost power behind a cut", name)
    return True


def _copy(disk: SimDisk) -> SimDisk:
    platter = deepcopy(disk.platter)
    platter.stop_at = platter.capacity_bytes = platter.on_operation = platter.on_read = None
    platter.is_failing, platter.sync_failures = False, 0
    return SimDisk(platter)


def _check_end(disk: SimDisk, open_log: Open, wanted: LogEnd, what: str, name: str) -> None:
    try:
        end = open_log(disk)
    except StoreError as error:
        raise Violated("cut-is-for-good", f"it {what}, and cannot start: {error}", name) from error
    if end != wanted:
        raise Violated("cut-is-for-good", f"it {what}: its log ends at {end}, not {wanted}", name)


def _interrupted(disk: SimDisk, open_log: Open, draw: Stream, fails: float) -> SimDisk:
    """Start, and let that end in the middle if it takes as long; return the disk behind it."""
    platter = disk.platter
    loses_power = draw.chance(_LOSES_POWER)
    if draw.chance(fails):
        # What is dropped then is still seen by the next start, and is not on the disk.
        platter.on_operation = _failing(platter, draw.randint(1, SYNCS_MAX))
        loses_power = False
    else:
        platter.stop_at = platter.operations + draw.randint(1, OPERATIONS_MAX)
    with suppress(StoreError, PowerLoss):
        open_log(disk)
    platter.on_operation, platter.sync_failures = None, 0
    return disk.restart(loses_unsynced=loses_power, rng=draw)


def _failing(platter: Platter, nth: int) -> Callable[[str, str], None]:
    """Return what lets the n-th fsync from now on fail."""
    syncs = count(1)

    def before(kind: str, path: str) -> None:
        del path
        if kind == "sync" and next(syncs) == nth:
            platter.sync_failures = 1

    return before


def _tear(disk: SimDisk, folder: str, file_bytes: int, end: int, draw: Stream) -> None:
    """Write, durably, what a crash may leave behind a log's end, perhaps up to another file."""
    start = end // file_bytes * file_bytes
    _scrawl(disk, f"{folder}/{start:020}", end - start, file_bytes, draw)
    if draw.chance(LATER_FILE):
        _scrawl(disk, f"{folder}/{start + file_bytes:020}", 0, file_bytes, draw)
    disk.sync_dir(folder)


def _scrawl(disk: SimDisk, path: str, at: int, file_bytes: int, draw: Stream) -> None:
    file = disk.open(path) if disk.exists(path) else disk.create(path, file_bytes)
    size = min(draw.randint(1, TAIL_BYTES_MAX), file_bytes - at)
    file.pwrite([draw.randbytes(size)], at)
    file.sync()
    file.close()


def _behind(platter: Platter, folder: str, end: int) -> int:
    """Return how many bytes behind a log's end, in all its files, are not zero."""
    found = 0
    for path, inode in platter.inodes.items():
        if not path.startswith(f"{folder}/") or not path.rpartition("/")[2].isdecimal():
            continue
        start = int(path.rpartition("/")[2])
        data = bytes(inode.view[max(0, end - start) :])
        found += len(data) - data.count(0)
    return found

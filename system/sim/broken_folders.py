"""At the end of a run: copies of one node's disk, each broken as a mistake or a fault leaves it.

A start on such a copy must be refused with one clear error; so must a batch of entries with one
bit flipped on its way. What is broken is a copy: the run itself is over.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

from system.raft.batch import Batch, LogEnd
from system.raft.membership import Membership
from system.sim.disk import SimDisk
from system.sim.draws import Stream
from system.sim.violation import Violated
from system.store.commit_log import CommitLog
from system.store.disk import StoreError
from system.store.entry import DamagedEntry, verify_batch
from system.store.entry_builder import EntryBuilder
from system.store.group_events import MEMBERSHIP_CHANNEL, encode_membership
from system.store.snapshot_file import load_snapshot, save_snapshot

if TYPE_CHECKING:
    from system.sim.schedule import Settings

FLIPS = 24
"""How many bits of a batch are flipped, one at a time, half of them in its first header."""
BREAKS = 5
"""How many copies of a disk are broken."""
_HEADER_BYTES = 48
_BATCH_BYTES_MAX = 2_000


class Folder:
    """A copy of a node's disk, to be broken, and what a start on it is given."""

    def __init__(
        self, disk: SimDisk, root: str, name: str, native: str, settings: Settings
    ) -> None:
        self.disk = SimDisk(deepcopy(disk.platter))
        platter = self.disk.platter
        platter.stop_at = platter.capacity_bytes = platter.on_operation = None
        platter.is_failing, platter.sync_failures = False, 0
        self.root = root
        self.name = name
        self.path = f"{root}/dledger-{name}"
        self.native: str | None = native if settings.native_log else None
        self.native_folder = native
        self.data_file_bytes = settings.data_file_bytes
        self.index_file_bytes = settings.index_file_bytes

    def open(self) -> CommitLog:
        """Start on it. Raises StoreError."""
        return CommitLog.open(
            self.disk,
            self.root,
            self.name,
            self.data_file_bytes,
            self.index_file_bytes,
            self.native,
        )

    def forget(self, name: str) -> bool:
        """Lose a file of the log's folder; False if there is none."""
        path = f"{self.path}/{name}"
        if not self.disk.exists(path):
            return False
        self.disk.platter.lose_file(path)
        return True

    def native_paths(self) -> list[str]:
        """Paths of the native log's files that hold anything."""
        platter = self.disk.platter
        return [
            f"{self.native_folder}/{name}"
            for name in self.disk.names(self.native_folder)
            if platter.written_size(f"{self.native_folder}/{name}")
        ]


def _other_file_size(folder: Folder) -> bool:
    folder.data_file_bytes *= 2
    return True


def _no_snapshot(folder: Folder) -> bool:
    return folder.open().begin.index >= 0 and folder.forget("snapshot")


def _older_snapshot(folder: Folder) -> bool:
    stored, begin = load_snapshot(folder.disk, folder.path), folder.open().begin
    if stored is None or begin.index < 1:
        return False
    older = replace(stored.snapshot, end=LogEnd(begin.index - 1, begin.term, begin.position))
    save_snapshot(folder.disk, folder.path, replace(stored, snapshot=older))
    return True


def _only_data(folder: Folder) -> bool:
    for name in ("currterm", "checkpoint", "snapshot"):
        folder.forget(name)
    return folder.forget("syncedto") and bool(folder.disk.names(f"{folder.path}/data"))


def _native_not_named(folder: Folder) -> bool:
    if folder.native is None or folder.open().native is None:
        return False
    folder.native = None
    return True


def _native_gone(folder: Folder) -> bool:
    if folder.native is None or (native := folder.open().native) is None:
        return False
    start = native.end - folder.data_file_bytes
    folder.disk.platter.lose_file(f"{folder.native_folder}/{start:020}")
    return True


def _native_of_other_size(folder: Folder) -> bool:
    if folder.native is None or folder.open().native is None:
        return False
    path = folder.native_paths()[0]
    folder.disk.platter.cut_file(path, folder.data_file_bytes - 1)
    return True


def _native_damaged_before_its_upgrade(folder: Folder) -> bool:
    """Damage the first message of a native log that is yet to be upgraded."""
    if folder.native is None or folder.open().native is None:
        return False
    path = folder.native_paths()[0]
    if folder.disk.platter.written_size(path) < 1000:
        return False
    folder.disk.platter.flip_bit(path, 5)
    folder.disk.create(f"{folder.native_folder}/lock", 0).close()  # no file of the log
    folder.name = "new"
    return True


def _membership_of_nobody(folder: Folder) -> bool:
    """Append an entry that no leader would write: its CRCs fit, its membership does not."""
    log = folder.open()
    builder = EntryBuilder(log.end, max(log.end.term, 0), folder.data_file_bytes, bytes(8))
    bodies = (encode_membership(Membership(())), b"{", b"")
    body = bodies[log.end.index % len(bodies)]
    builder.add(b"t", 1, 0, body, channel=MEMBERSHIP_CHANNEL)
    for batch in builder.take():
        log.append(batch)
    log.close()
    return True


_WAYS: tuple[Callable[[Folder], bool], ...] = (
    _other_file_size,
    _no_snapshot,
    _older_snapshot,
    _only_data,
    _native_not_named,
    _native_gone,
    _native_of_other_size,
    _native_damaged_before_its_upgrade,
    _membership_of_nobody,
)


def check_broken(disk: SimDisk, root: str, name: str, native: str, settings: Settings,
                 draw: Stream) -> int:  # fmt: skip
    """Start on broken copies of a node's disk; return how many there were. Raises Violated."""
    tried = 0
    for way in draw.sample(_WAYS, BREAKS):
        folder = Folder(disk, root, name, native, settings)
        try:
            is_broken = way(folder)
        except StoreError:
            continue  # it was broken before: a fault damaged it
        if not is_broken:
            continue
        tried += 1
        try:
            folder.open()
        except StoreError as error:
            if "\n" in str(error) or len(str(error)) < len(root):
                raise Violated("broken-is-refused", f"{error!r} is no clear line", name) from error
        else:
            raise Violated("broken-is-refused", f"a node starts in spite of {way.__name__}", name)
    return tried


def check_flips(log: CommitLog, draw: Stream) -> None:
    """Flip bits of a batch of a log, one at a time: each is noticed. Raises Violated."""
    if log.end.index < log.begin_index:
        return
    first = draw.randint(log.begin_index, log.end.index)
    batch = log.read_entries(first, _BATCH_BYTES_MAX)
    before = log.log_end_at(first - 1)
    verify_batch(batch, before)
    for number in range(FLIPS):
        behind = min(_HEADER_BYTES, len(batch.data)) if number % 2 else len(batch.data)
        damaged = bytearray(batch.data)
        damaged[draw.randrange(behind)] ^= 1 << draw.randrange(8)
        _check_refused(replace(batch, data=bytes(damaged)), before)
    _check_refused(replace(batch, count=batch.count + 1), before)
    _check_refused(replace(batch, term=batch.term + 1), before)
    _check_refused(replace(batch, position=before.position - 1), before)
    _check_refused(replace(batch, first_index=batch.first_index + 1), None)
    _check_refused(replace(batch, data=batch.data[:-1]), before)


def _check_refused(batch: Batch, before: LogEnd | None) -> None:
    try:
        verify_batch(batch, before)
    except DamagedEntry:
        return
    raise Violated("broken-is-refused", f"a damaged batch from {batch.first_index} on is taken")

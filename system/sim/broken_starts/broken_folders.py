"""At the end of a run: starts on copies of one node's disk that are broken.

Such a start must be refused with one clear error; so must a batch of entries with a bit flipped in
transit. Only copies are broken: the run itself is over.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from msgspec import structs

from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import ENTRY_HEADER_BYTES, Batch, LogEnd
from shaketable.system.sim.disk import Platter, PowerLoss, SimDisk
from shaketable.system.sim.rules.kept_files import check_blames_no_disk
from shaketable.system.sim.schedules.random_streams import RandomStream
from shaketable.system.store.commit_log import CommitLog, OutsideLog
from shaketable.system.store.disk import StoreError, read_file, replace_file
from shaketable.system.store.entry import (
    ENTRY_MAGIC,
    HEADER,
    DamagedEntry,
    EntryBuilder,
    chain_crc,
    iter_messages,
    next_position,
    verify_batch,
)
from shaketable.system.store.group_events import MEMBERSHIP_CHANNEL, encode_membership
from shaketable.system.store.message import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    DamagedMessage,
    decode_message,
)
from shaketable.system.store.state_files import (
    SLOT_BYTES,
    DurableWatermark,
    load_snapshot,
    save_snapshot,
)

if TYPE_CHECKING:
    from shaketable.system.sim.schedules.random_streams import RandomStream
    from shaketable.system.sim.schedules.schedule import Settings


class Folder:
    """A copy of a node's disk, and the configuration of a start on it."""

    def __init__(
        self,
        disk: SimDisk,
        root: str,
        name: str,
        plain_log: str,
        settings: Settings,
        rng: RandomStream,
    ) -> None:
        self.disk = SimDisk(deepcopy(disk.platter))
        platter = self.disk.platter
        platter.stop_at = platter.capacity_bytes = platter.refuses = None
        platter.on_operation = platter.on_read = None
        platter.is_failing, platter.sync_failures = False, 0
        self.rng = rng
        self.root = root
        self.name = name
        self.path = f"{root}/dledger-{name}"
        self.plain_log: str | None = plain_log if settings.plain_log else None
        self.plain_folder = plain_log
        self.settings = settings
        self.data_file_bytes = settings.data_file_bytes

    def open(self) -> CommitLog:
        """Open its log. Raises StoreError."""
        return CommitLog.open(
            self.disk,
            self.root,
            self.name,
            self.data_file_bytes,
            self.settings.index_file_bytes,
            self.plain_log,
        )

    def end_on(self, disk: SimDisk) -> LogEnd:
        """Open the log on another disk; return its end. Raises StoreError."""
        self.disk = disk
        return self.open().end

    def start(self) -> None:
        """Read all that a start without a checkpoint reads. Raises StoreError."""
        log = self.open()
        if log.plain_log is not None:
            for _ in log.plain_log.messages():
                pass

    def lose_file(self, name: str) -> bool:
        """Lose a file of the log's folder; return False if there is none."""
        path = f"{self.path}/{name}"
        if not self.disk.exists(path):
            return False
        self.disk.platter.lose_file(path)
        return True

    def plain_paths(self) -> list[str]:
        """Return the paths of the plain log's files that hold data."""
        platter = self.disk.platter
        return [
            f"{self.plain_folder}/{name}"
            for name in self.disk.names(self.plain_folder)
            if platter.written_size(f"{self.plain_folder}/{name}")
        ]


FLIPS = 24
"""Bits of a batch that are flipped, one at a time, half of them in its first header."""
BREAKS = 6
"""Number of broken copies of a disk."""
CUTS = 8
"""Number of lengths that a message is truncated to."""
_BATCH_BYTES_MAX = 2_000
_FIELDS_BYTES = 88


def check_broken_starts(disk: SimDisk, root: str, name: str, plain_log: str, settings: Settings,
                 rng: RandomStream, *, is_upgraded: bool) -> int:  # fmt: skip
    """Start on broken copies of a node's disk; return how many there were. Raises Violated.

    `is_upgraded`: the node still has the plain log before its own log.
    """
    tried = 0
    ways = rng.sample(FOLDER_WAYS, BREAKS)
    if is_upgraded:
        ways += PLAIN_WAYS
    for way in ways:
        folder = Folder(disk, root, name, plain_log, settings, rng)
        try:
            is_broken = way(folder)
        except StoreError:
            continue  # a fault had damaged it before
        if not is_broken:
            continue
        tried += 1
        try:
            folder.start()
        except StoreError as error:
            check_blames_no_disk(name, error, folder.disk.platter)
            if "\n" in str(error) or len(str(error)) < len(root):
                raise Violated("broken-is-refused", f"{error!r} is no clear line", name) from error
        else:
            raise Violated("broken-is-refused", f"a node starts in spite of {way.__name__}", name)
    return tried


def check_out_of_range(log: CommitLog, file_bytes: int) -> None:
    """Check that a log refuses reads outside its range. Raises Violated."""
    begin, end = log.start, log.end
    _check_out_of_range(lambda: log.read(end.position - 1, 2))
    _check_out_of_range(lambda: log.read_entries(end.index + 1, 1))
    _check_out_of_range(lambda: log.read_entries(begin.index, 1))
    _check_out_of_range(lambda: log.log_end_at(end.index + 1))
    _check_out_of_range(lambda: log.log_end_at(begin.index - 1))
    if log.plain_log is not None:
        plain_end, first_end = log.plain_log.end, log.plain_log.start + file_bytes
        _check_out_of_range(lambda: log.read(plain_end - 1, 2))
        if first_end < plain_end:
            _check_out_of_range(lambda: log.read(first_end - 1, 2))
    elif begin.position:
        _check_out_of_range(lambda: log.read(begin.position - 1, 1))
    last_start = (end.position - 1) // file_bytes * file_bytes
    if begin.position < last_start:
        _check_out_of_range(lambda: log.read(last_start - 1, 2))  # spans two files
    with suppress(OutsideLog):  # the file may be gone if the log starts at its end
        log.read(begin.position, ENTRY_HEADER_BYTES)
    if log.log_end_at(begin.index) != begin:
        raise Violated("broken-is-refused", f"the log does not start at {begin}")


def _check_out_of_range(ask: Callable[[], object]) -> None:
    try:
        found = ask()
    except OutsideLog:
        return
    raise Violated("broken-is-refused", f"a log returns {found!r} from outside of it")


def check_bit_flips(log: CommitLog, rng: RandomStream) -> None:
    """Check that each flipped bit of a batch is detected. Raises Violated."""
    if log.end.index < log.first_index:
        return
    first = rng.randint(log.first_index, log.end.index)
    batch = log.read_entries(first, _BATCH_BYTES_MAX)
    before = log.log_end_at(first - 1)
    verify_batch(batch, before)
    for number in range(FLIPS):
        flip_end = min(ENTRY_HEADER_BYTES, len(batch.data)) if number % 2 else len(batch.data)
        damaged = bytearray(batch.data)
        damaged[rng.randrange(flip_end)] ^= 1 << rng.randrange(8)
        _check_refused(structs.replace(batch, data=bytes(damaged)), before)
    _check_refused(structs.replace(batch, count=batch.count + 1), before)
    _check_refused(structs.replace(batch, term=batch.term + 1), before)
    _check_refused(structs.replace(batch, position=before.position - 1), before)
    _check_refused(structs.replace(batch, first_index=batch.first_index + 1), None)
    _check_refused(structs.replace(batch, data=batch.data[:-1]), before)
    cut = batch.data[: rng.randint(1, ENTRY_HEADER_BYTES - 1)]
    _check_refused(structs.replace(batch, data=cut), before)
    _check_messages(batch, rng)


def _check_messages(batch: Batch, rng: RandomStream) -> None:
    """Check that a damaged message, as a pull may return one, is refused. Raises Violated."""
    _, _, position, size, _, _, _ = next(iter_messages(batch.data, batch.position))
    at = position - batch.position
    message = batch.data[at : at + size]
    decode_message(message)
    broken = [message[: rng.randrange(size)] for _ in range(CUTS)]
    broken += [message + b"\0", message[:_FIELDS_BYTES], message[: _FIELDS_BYTES // 2]]
    for byte in range(_FIELDS_BYTES - 4, _FIELDS_BYTES + 1):
        # the body's length, and its first byte
        if byte < size:
            broken.append(message[:byte] + bytes([message[byte] ^ 0x80]) + message[byte + 1 :])
    for data in broken:
        try:
            decode_message(data)
        except DamagedMessage:
            continue
        raise Violated("broken-is-refused", f"a damaged message at {position} is taken")


def _check_refused(batch: Batch, before: LogEnd | None) -> None:
    try:
        verify_batch(batch, before)
    except DamagedEntry:
        return
    raise Violated("broken-is-refused", f"a damaged batch from {batch.first_index} on is taken")


# Ways to break the files of a log's folder that every start must detect.
#
# CRCs are valid where a mistake leaves files of another log or version, and invalid where bytes
# rot.

_MAGIC_AND_CRC = struct.Struct(">8sI")
_CRC = struct.Struct(">I")
_MARK_BYTES = 97
"""Size of a durable watermark slot's record, without its CRC."""


def other_file_size(folder: Folder) -> bool:
    """Start with another data file size than the log was created with."""
    folder.data_file_bytes *= 2
    return True


def no_hard_state(folder: Folder) -> bool:
    """Lose term and vote."""
    return folder.lose_file("currterm")


def no_mark(folder: Folder) -> bool:
    """Lose the durable watermark."""
    return folder.lose_file("syncedto")


def no_snapshot(folder: Folder) -> bool:
    """Lose the snapshot that replaces the entries before the log."""
    return folder.open().start.index >= 0 and folder.lose_file("snapshot")


def older_snapshot(folder: Folder) -> bool:
    """Replace the snapshot by one of before the log's first index."""
    stored, begin = load_snapshot(folder.disk, folder.path), folder.open().start
    if stored is None or begin.index < 1:
        return False
    older = replace(stored.snapshot, end=LogEnd(begin.index - 1, begin.term, begin.position))
    save_snapshot(folder.disk, folder.path, replace(stored, snapshot=older))
    return True


def unreadable_snapshot(folder: Folder) -> bool:
    """Replace the snapshot by one of another version, with a valid CRC."""
    data = folder.rng.choice((b"", b"\x01", b"\x80"))
    whole = _MAGIC_AND_CRC.pack(b"snapshot", zlib.crc32(data)) + data
    replace_file(folder.disk, f"{folder.path}/snapshot", whole)
    return True


def rotten_snapshot(folder: Folder) -> bool:
    """Flip a bit of the snapshot."""
    path = f"{folder.path}/snapshot"
    size = folder.disk.platter.written_size(path)
    if size:
        folder.disk.platter.flip_bit(path, folder.rng.randrange(size))
    return size > 0


def only_data(folder: Folder) -> bool:
    """Lose all but data and index, as by an incomplete copy."""
    for name in ("currterm", "checkpoint", "snapshot"):
        folder.lose_file(name)
    return folder.lose_file("syncedto") and bool(folder.disk.names(f"{folder.path}/data"))


def mark_of_another_format(folder: Folder) -> bool:
    """Give both slots of the durable watermark another magic, with valid CRCs."""
    path = f"{folder.path}/syncedto"
    raw = read_file(folder.disk, path)
    slots = []
    for at in (0, SLOT_BYTES):
        record = b"syncedTO" + raw[at + 8 : at + _MARK_BYTES]
        slots.append((record + _CRC.pack(zlib.crc32(record))).ljust(SLOT_BYTES, b"\0"))
    replace_file(folder.disk, path, b"".join(slots))
    return True


def mark_of_another_log(folder: Folder) -> bool:
    """Make the durable watermark name another entry than the one stored there."""
    log = folder.open()
    if log.end.index == log.start.index:
        return False
    log.close()
    watermark = DurableWatermark.open(folder.disk, f"{folder.path}/syncedto")
    end = watermark.record.end
    watermark.move(structs.replace(end, chain_crc=end.chain_crc ^ 1))
    watermark.close()
    return True


def data_cut_between_entries(folder: Folder) -> bool:
    """Truncate the last data file right before its last entry."""
    log = folder.open()
    end = log.end
    if end.index == log.start.index:
        return False
    file_bytes = folder.data_file_bytes
    start = (end.position - 1) // file_bytes * file_bytes
    last_start = log.log_end_at(end.index - 1).position
    path = f"{folder.path}/data/{start:020}"
    folder.disk.platter.truncate_file(path, max(0, last_start - start))
    return True


def membership_without_members(folder: Folder) -> bool:
    """Append an entry that no leader would write: valid CRCs, invalid membership."""
    log = folder.open()
    builder = EntryBuilder(log.end, max(log.end.term, 0), folder.data_file_bytes, bytes(8))
    body = folder.rng.choice((encode_membership(Membership(())), b"{", b""))
    builder.add(b"t", 1, 0, body, channel=MEMBERSHIP_CHANNEL)
    for batch in builder.take():
        log.append(batch)
    log.close()
    return True


def membership_without_message(folder: Folder) -> bool:
    """Append a membership entry that is too short for a message."""
    log = folder.open()
    end, body = log.end, b"n0,n1,n2"
    size, term = ENTRY_HEADER_BYTES + len(body), max(log.end.term, 0)
    position = next_position(end.position, size, folder.data_file_bytes)
    fields = (ENTRY_MAGIC, size, end.index + 1, term, position, MEMBERSHIP_CHANNEL)
    crc_and_size = (zlib.crc32(body), len(body))
    chain = chain_crc(end.chain_crc, HEADER.pack(*fields, 0, *crc_and_size))
    entry = HEADER.pack(*fields, chain, *crc_and_size) + body
    log.append(Batch(end.index + 1, 1, term, position, entry))
    log.close()
    return True


FOLDER_WAYS: tuple[Callable[[Folder], bool], ...] = (
    other_file_size,
    no_hard_state,
    no_mark,
    no_snapshot,
    older_snapshot,
    unreadable_snapshot,
    rotten_snapshot,
    only_data,
    mark_of_another_format,
    mark_of_another_log,
    data_cut_between_entries,
    membership_without_members,
    membership_without_message,
)
"""Each returns False where it finds nothing to break. Raises StoreError on a damaged log."""


# Ways to break a plain commit log that every start, or upgrade, must detect.

Way = Callable[[Folder], bool]

_I32 = struct.Struct(">i")
_SYS_FLAG_AT = 36
_POSITION_AT = 28
_BODY_LENGTH_AT = 84
_V6_MORE_BYTES = 12
_CUT_OFF_BYTES = 20
_USED_BYTES_MIN = 1_000
"""A file with so many written bytes holds several messages."""


def not_named(folder: Folder) -> bool:
    """Start an upgraded log without the name of the plain log's folder."""
    folder.plain_log = None
    return True


def gone(folder: Folder) -> bool:
    """Lose the plain log's last file."""
    plain_log = folder.open().plain_log
    assert plain_log is not None
    start = plain_log.end - folder.data_file_bytes
    folder.disk.platter.lose_file(f"{folder.plain_folder}/{start:020}")
    return True


def of_other_size(folder: Folder) -> bool:
    """Give a file of the plain log another size than the others."""
    path = folder.plain_paths()[0]
    folder.disk.platter.truncate_file(path, folder.data_file_bytes - 1)
    return True


def _damaging(damage: Callable[[Platter, str, int], None], *, is_new: bool) -> Way:
    """Return a way to damage the first message, and perhaps the second.

    With `is_new` before an upgrade; else after it, where the damage is detected when the messages'
    queues are built.
    """

    def way(folder: Folder) -> bool:
        path = folder.plain_paths()[0]
        platter = folder.disk.platter
        if platter.written_size(path) < _USED_BYTES_MIN:
            return False
        second_at = _number(platter, path, 0)
        damage(platter, path, folder.data_file_bytes)
        if folder.rng.chance(0.5):
            platter.flip_bit(path, second_at + _body_at(platter, path, second_at))
        if is_new:
            folder.disk.create(f"{folder.plain_folder}/lock", 0).close()  # not a file of the log
            folder.name = "new"
        return True

    way.__name__ = f"{'before' if is_new else 'after'} its upgrade{damage.__name__}"
    return way


def _no_magic(platter: Platter, path: str, _: int) -> None:
    platter.flip_bit(path, 5)


def _no_size(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, 0, 0)


def _too_small(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, 0, _CUT_OFF_BYTES)


def _too_large(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, 0, _number(platter, path, 0) + 1)


def _to_the_end(platter: Platter, path: str, file_bytes: int) -> None:
    _put(platter, path, 0, file_bytes)


def _elsewhere(platter: Platter, path: str, _: int) -> None:
    platter.flip_bit(path, _POSITION_AT + 7)


def _other_body(platter: Platter, path: str, _: int) -> None:
    platter.flip_bit(path, _body_at(platter, path, 0))


def _long_body(platter: Platter, path: str, _: int) -> None:
    _put(platter, path, _body_at(platter, path, 0) - 4, 1 << 20)


_DAMAGES: tuple[Callable[[Platter, str, int], None], ...] = (
    _no_magic,
    _no_size,
    _too_small,
    _too_large,
    _to_the_end,
    _elsewhere,
    _other_body,
    _long_body,
)


def _number(platter: Platter, path: str, at: int) -> int:
    found: int = _I32.unpack_from(platter.inodes[path].view, at)[0]
    return found


def _put(platter: Platter, path: str, at: int, number: int) -> None:
    _I32.pack_into(platter.inodes[path].view, at, number)


def _body_at(platter: Platter, path: str, at: int) -> int:
    """Return the offset of the body within the message at byte `at`."""
    sys_flag = _number(platter, path, at + _SYS_FLAG_AT)
    hosts = bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6)
    return _BODY_LENGTH_AT + 4 + hosts * _V6_MORE_BYTES


PLAIN_WAYS: tuple[Way, ...] = (
    not_named,
    gone,
    of_other_size,
    *[_damaging(damage, is_new=is_new) for damage in _DAMAGES for is_new in (True, False)],
)
"""Each returns False where it finds nothing to break. Raises StoreError on a damaged log."""


# At the end of a run: interrupted recoveries of a log with a torn tail.
#
# A recovery truncates a torn tail and makes durable what it keeps. It may lose power in the middle,
# be killed, or see an fsync fail; the next one starts over. The recovery that completes has the log
# as it was without the tail: no power loss brings the tail back, or loses anything more.

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
    platter.stop_at = platter.capacity_bytes = platter.refuses = None
    platter.on_operation = platter.on_read = None
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

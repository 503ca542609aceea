"""Ways to break the files of a log's folder that every start must detect.

CRCs are valid where a mistake leaves files of another log or version, and invalid where bytes rot.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace

from shaketable.system.raft.batch import ENTRY_HEADER_BYTES, Batch, LogEnd
from shaketable.system.raft.membership import Membership
from shaketable.system.sim.broken_starts.folder_copy import Folder
from shaketable.system.store.disk import read_file, replace_file
from shaketable.system.store.durable_watermark import SLOT_BYTES, DurableWatermark
from shaketable.system.store.entry import ENTRY_MAGIC, HEADER, chain_crc, next_position
from shaketable.system.store.entry_builder import EntryBuilder
from shaketable.system.store.group_events import MEMBERSHIP_CHANNEL, encode_membership
from shaketable.system.store.snapshot_file import load_snapshot, save_snapshot

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
    watermark.move(watermark.record.end._replace(chain_crc=watermark.record.end.chain_crc ^ 1))
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


def membership_of_nobody(folder: Folder) -> bool:
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


WAYS: tuple[Callable[[Folder], bool], ...] = (
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
    membership_of_nobody,
    membership_without_message,
)
"""Each returns False where it finds nothing to break. Raises StoreError on a damaged log."""

"""Import of a log that DLedger itself wrote: read, verify, and copy it into one of ours.

DLedger computes neither chainCrc nor bodyCrc: both are 0, which no other module accepts. Here an
entry is verified by its message's BODYCRC, its position, and the continuity of indices, terms and
queue offsets. The copy has the same bytes at the same positions, except for the two CRCs, which are
computed. Source: DLedgerMmapFileStore and DLedgerEntryCoder of DLedger 0.3.1.2; DLEDGER.md B.3;
DESIGN.md decision 3.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from shaketable.system.raft.protocol import ENTRY_HEADER_BYTES, Batch, LogEnd
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import Disk, File, StoreError, read_file
from shaketable.system.store.entry import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    ENTRY_MAGIC,
    HEADER,
    chain_crc,
)
from shaketable.system.store.group_events import EVENT_TOPIC, MESSAGE_CHANNEL
from shaketable.system.store.message import DamagedMessage, decode_message
from shaketable.system.store.segment_files import NAME_DIGITS
from shaketable.system.store.state_files import HardState

BATCH_BYTES = 1 << 20
SCAN_BYTES = 8 << 20
"""Bytes read at once: more than the largest entry."""
_CRCS = struct.Struct(">II")
_CRCS_AT = 36
_PROPERTY = re.compile(rb"^([A-Za-z]+)=(.*)$", re.MULTILINE)


class ForeignLogRefused(StoreError):  # noqa: N818 - a finding about the files
    """The log cannot be imported; the message is one line that says where and why."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The imported log's end, DLedger's committed index, and term and vote."""

    end: LogEnd
    committed_index: int
    state: HardState


class ForeignLog:
    """DLedger's files in a folder dledger-<id>, read only."""

    file_bytes: int
    """Size of its data files: mappedFileSizeCommitLog."""

    def __init__(self, disk: Disk, folder: str) -> None:
        """Check names and sizes of the files. Raises ForeignLogRefused, DiskFailed."""
        self._disk = disk
        self._folder = folder
        names = [name for name in disk.names(f"{folder}/data") if _is_data_file(name)]
        if not names:
            raise ForeignLogRefused(f"{folder}/data holds no data files of DLedger")
        if int(names[0]):
            raise ForeignLogRefused(
                f"{folder}/data starts at byte {int(names[0])}: only a log that is complete from"
                " its start can be imported, and none that was upgraded from a RocketMQ commit log"
            )
        self._names = names
        self.file_bytes = self._size(names[0])
        for number, name in enumerate(names):
            if int(name) != number * self.file_bytes or self._size(name) != self.file_bytes:
                raise ForeignLogRefused(
                    f"{folder}/data/{name} does not follow the file before it, of "
                    f"{self.file_bytes} bytes"
                )
        self._queue_ends: dict[tuple[bytes, int], int] = {}

    def copy_into(self, log: CommitLog) -> Imported:
        """Append everything to a new log of the same file size, durably.

        Raises ForeignLogRefused if a committed entry is invalid or a queue's offsets have a gap;
        DiskFull, DiskFailed.
        """
        assert log.end == LogEnd()
        state, committed_index = self._state(), self._committed_index()
        for batch in self._batches(committed_index):
            log.append(batch)
        if log.end.index < committed_index:
            raise ForeignLogRefused(
                f"{self._folder}: entry {log.end.index + 1} at byte {log.end.position} is none, "
                f"and entries up to {committed_index} were committed: the files are damaged"
            )
        log.sync()
        log.advance_watermark()
        log.save_state(max(state.term, log.end.term), state.voted_for)
        log.save_checkpoint(committed_index)
        return Imported(log.end, committed_index, state)

    def _batches(self, committed_index: int) -> Iterator[Batch]:
        """Yield the entries with their CRCs computed, in batches of one term and one file.

        DLedger's truncation leaves the removed entries' bytes in the file. So after the committed
        index, an entry of an older term or of an unexpected index ends the log
        (DLedgerMmapFileStore.recover).
        """
        end = LogEnd()
        first, parts, size = 0, list[bytes](), 0
        for position, entry in self._entries():
            _, _, index, term, *_ = HEADER.unpack_from(entry)
            if end.index >= committed_index and (index != end.index + 1 or term < end.term):
                break
            is_other = term != end.term or position != end.position or size >= BATCH_BYTES
            if parts and is_other:
                yield Batch(first, len(parts), end.term, end.position - size, b"".join(parts))
                parts, size = [], 0
            if not parts:
                first = index
            sealed, end = self._with_crcs(entry, end, position)
            parts.append(sealed)
            size += len(sealed)
        if parts:
            yield Batch(first, len(parts), end.term, end.position - size, b"".join(parts))

    def _entries(self) -> Iterator[tuple[int, bytes]]:
        """Yield each entry and its position, up to the first bytes that are no entry."""
        for name in self._names:
            file = self._disk.open(f"{self._folder}/data/{name}")
            try:
                is_whole = yield from self._entries_of(file, int(name))
            finally:
                file.close()
            if not is_whole:
                return

    def _entries_of(self, file: File, start: int) -> Generator[tuple[int, bytes], None, bool]:
        """Yield a file's entries; return whether it ends with its blank."""
        at, window, window_at = 0, b"", 0

        def bytes_at(count: int) -> bytes:
            nonlocal window, window_at
            if not window_at <= at <= at + count <= window_at + len(window):
                window, window_at = file.pread(max(count, SCAN_BYTES), at), at
            return window[at - window_at : at - window_at + count]

        while self.file_bytes - at >= BLANK_BYTES:
            head = bytes_at(ENTRY_HEADER_BYTES)
            magic, size = BLANK.unpack_from(head)
            left = self.file_bytes - at
            if magic == BLANK_MAGIC and size == left:
                return True
            if magic != ENTRY_MAGIC or not ENTRY_HEADER_BYTES < size <= left - BLANK_BYTES:
                return False
            entry = bytes_at(size)
            if HEADER.unpack_from(entry)[4] != start + at:
                return False  # left from an earlier use of these bytes
            yield start + at, entry
            at += size
        return False

    def _with_crcs(self, entry: bytes, end: LogEnd, position: int) -> tuple[bytes, LogEnd]:
        """Verify the entry after `end`; return it with its CRCs, and the new end."""
        _, size, index, term, _, channel, chained, body_crc, body_size = HEADER.unpack_from(entry)
        if size != ENTRY_HEADER_BYTES + body_size or channel != MESSAGE_CHANNEL:
            raise self._refusal(position, f"size {size}, body {body_size}, channel {channel}")
        if chained or body_crc:
            raise self._refusal(position, "its CRCs are computed: DLedger did not write this")
        if index != end.index + 1 or term < end.term:
            raise self._refusal(
                position, f"entry {index} of term {term} after {end.index} of term {end.term}"
            )
        body = entry[ENTRY_HEADER_BYTES:]
        self._check_message(body, position)
        head = bytearray(entry[:ENTRY_HEADER_BYTES])
        _CRCS.pack_into(head, _CRCS_AT, 0, zlib.crc32(body))
        chain = chain_crc(end.chain_crc, bytes(head))
        _CRCS.pack_into(head, _CRCS_AT, chain, zlib.crc32(body))
        return bytes(head) + body, LogEnd(index, term, position + size, chain)

    def _check_message(self, body: bytes, position: int) -> None:
        try:
            message = decode_message(body)
        except DamagedMessage as error:
            raise self._refusal(position, str(error)) from None
        if message.physical_offset != position + ENTRY_HEADER_BYTES:
            raise self._refusal(position, f"PHYSICALOFFSET is {message.physical_offset}")
        if message.topic == EVENT_TOPIC:
            raise self._refusal(position, f"a message of the topic {EVENT_TOPIC.decode()}, ours")
        queue = message.topic, message.queue_id
        expected = self._queue_ends.get(queue, 0)
        if message.queue_offset != expected:
            name = f"{message.topic.decode(errors='replace')}/{message.queue_id}"
            raise self._refusal(
                position, f"queue {name} goes on at {message.queue_offset}, not {expected}"
            )
        self._queue_ends[queue] = expected + 1

    def _state(self) -> HardState:
        """Read term and vote, so that an imported node does not vote twice in a term."""
        values = self._properties("currterm")
        try:
            return HardState(
                int(values[b"currTerm"]), values.get(b"voteLeader", b"").decode() or None
            )
        except (KeyError, ValueError):
            raise ForeignLogRefused(
                f"{self._folder}/currterm holds no term: without it this node might vote twice"
            ) from None

    def _committed_index(self) -> int:
        try:
            return int(self._properties("checkpoint").get(b"committedIndex", b"-1"))
        except ValueError:
            raise ForeignLogRefused(f"{self._folder}/checkpoint cannot be read") from None

    def _properties(self, name: str) -> dict[bytes, bytes]:
        path = f"{self._folder}/{name}"
        if not self._disk.exists(path):
            return {}
        return {key: value.strip() for key, value in _PROPERTY.findall(read_file(self._disk, path))}

    def _size(self, name: str) -> int:
        file = self._disk.open(f"{self._folder}/data/{name}")
        try:
            return file.size
        finally:
            file.close()

    def _refusal(self, position: int, finding: str) -> ForeignLogRefused:
        start = position // self.file_bytes * self.file_bytes
        path = f"{self._folder}/data/{start:0{NAME_DIGITS}d}"
        return ForeignLogRefused(f"{path}: byte {position - start}: {finding}; not imported")


def _is_data_file(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isdecimal()

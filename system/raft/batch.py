"""Batches of encoded DLedger entries: the unit in which the log is appended, sent and stored.

A batch is encoded once, and the same bytes go to the file and to every follower. The
core reads nothing inside it but entry sizes and the last chainCrc.

Source: DLedger's DLedgerEntry (48-byte header); DLEDGER.md section B.3.
"""

from __future__ import annotations

import struct

import msgspec

from shaketable.system.raft.membership import Membership

ENTRY_HEADER_BYTES = 48
_CHAIN_CRC_AT_36 = struct.Struct(">36xI").unpack_from
_SIZE_AT_4 = struct.Struct(">4xi").unpack_from


class LogEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of a log: index (-1 for an empty log) and term of its last entry.

    `position` is the byte position after that entry, `chain_crc` its chainCrc as an unsigned
    number, 0 for an empty log. A struct for speed: one is made for each entry.
    """

    index: int = -1
    term: int = -1
    position: int = 0
    chain_crc: int = 0


class Batch(msgspec.Struct, frozen=True):
    """Entries `first_index` .. `last_index` of one term, contiguous in one segment file.

    `position` is the first entry's byte position in the log; `data` is the encoded entries,
    header and body, back to back. `memberships` lists (index, membership) of each entry that
    changes the membership; the code that makes a batch (builder, wire decoder, store reader)
    finds them by the entries' channel.
    """

    first_index: int
    count: int
    term: int
    position: int
    data: bytes
    memberships: tuple[tuple[int, Membership], ...] = ()

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return self.first_index + self.count - 1

    @property
    def end_position(self) -> int:
        """Byte position after the last entry."""
        return self.position + len(self.data)

    def last_chain_crc(self) -> int:
        """Return the chainCrc in the last entry's header, unsigned."""
        at = 0
        for _ in range(self.count - 1):
            at += _SIZE_AT_4(self.data, at)[0]
        chain_crc: int = _CHAIN_CRC_AT_36(self.data, at)[0]
        return chain_crc

    def after(self, index: int) -> Batch:
        """Return the part of the batch after entry `index`, at least one entry."""
        skip = index + 1 - self.first_index
        assert 0 <= skip < self.count, f"{index} leaves nothing of {self}"
        at = 0
        for _ in range(skip):
            at += _SIZE_AT_4(self.data, at)[0]
        kept = tuple(change for change in self.memberships if change[0] > index)
        return Batch(
            index + 1, self.count - skip, self.term, self.position + at, self.data[at:], kept
        )

    def until(self, index: int) -> Batch:
        """Return the part of the batch up to and including entry `index`, at least one entry."""
        keep = index + 1 - self.first_index
        assert 0 < keep <= self.count, f"{index} leaves nothing of {self}"
        at = 0
        for _ in range(keep):
            at += _SIZE_AT_4(self.data, at)[0]
        kept = tuple(change for change in self.memberships if change[0] <= index)
        return Batch(self.first_index, keep, self.term, self.position, self.data[:at], kept)

"""DLedger entries: the header codec, verification, and walks over encoded batches.

Header, 48 bytes big-endian: magic 1, size, index, term, pos, channel 0, chainCrc, bodyCrc,
bodySize. Source: DLedger's DLedgerEntryCoder; DLEDGER.md B.3 and DESIGN.md decision 3.
"""

from __future__ import annotations

from collections.abc import Iterator

from system.raft.batch import Batch, LogEnd
from system.store.disk import StoreError

ENTRY_MAGIC = 1
BLANK_MAGIC = -1
BLANK_BYTES = 8
ENTRY_BYTES_MAX = 4 * 1024 * 1024


class DamagedEntry(StoreError):
    """An entry is not what its header, its CRCs or its place say."""


class EntryTooLarge(StoreError):
    """A message makes an entry larger than ENTRY_BYTES_MAX or than a data file. Definite."""


def next_position(position: int, size: int, file_bytes: int) -> int:
    """Return where an entry of `size` goes: `position`, or the start of the next data file."""
    raise NotImplementedError


def verify_batch(batch: Batch, end: LogEnd | None) -> LogEnd:
    """Check every entry of a batch; return the log's end behind it.

    Checks magic, sizes, indices, terms, positions, all CRCs, and the chain from `end` (with
    `end` None the first entry's chainCrc is taken on trust). Raises DamagedEntry.
    """
    raise NotImplementedError


def iter_messages(
    data: bytes | memoryview, position: int
) -> Iterator[tuple[int, int, int, int, bytes, int, int]]:
    """Walk verified entries fast, for dispatching what was committed.

    Yields (index, term, message position, message size, topic, queue id, queue offset).
    """
    raise NotImplementedError

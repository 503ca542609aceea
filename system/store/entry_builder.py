"""Builds entries from messages at the leader, joined into batches (THROUGHPUT.md rules 3, 4)."""

from __future__ import annotations

from system.raft.batch import Batch, LogEnd


class EntryBuilder:
    """Encodes messages as entries behind `end`. Copies what it is given, at once."""

    end: LogEnd
    """The log's end behind everything added so far."""

    def __init__(self, end: LogEnd, term: int, data_file_bytes: int, store_host: bytes) -> None: ...

    def add(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        body: bytes | memoryview,
        properties: bytes = b"",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = bytes(8),
        store_ms: int = 0,
        reconsume_times: int = 0,
    ) -> int:
        """Add one message; return its byte position (the entry's + 48).

        Raises EntryTooLarge, and then has added nothing.
        """
        raise NotImplementedError

    def take(self) -> list[Batch]:
        """Return what was added since the last call, one Batch a data file; empty if nothing."""
        raise NotImplementedError

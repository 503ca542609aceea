"""How messages stand in the log: as DLedger's entries, or one behind the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from shaketable.system.broker.consume_queue import Queue
from shaketable.system.raft.batch import Batch, LogEnd
from shaketable.system.raft.membership import Membership
from shaketable.system.store.entry import iter_dispatches
from shaketable.system.store.entry_builder import EntryBuilder
from shaketable.system.store.entry_table import MessageTable, message_table

Dispatch = tuple[Queue, int, int, int, int, int, bytes]
"""Queue, offset, message position and size, tags code, store time in ms, properties."""


class Builder(Protocol):
    """Encodes messages behind the log's end (`system.store.entry_builder.EntryBuilder`)."""

    end: LogEnd

    def add(  # noqa: PLR0913 - a stored message has that many fields
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
        """Add one message; return its byte position. Raises EntryTooLarge."""

    def add_membership(self, membership: Membership, queue_offset: int, store_ms: int) -> int:
        """Add the entry that brings a membership."""

    def take(self) -> list[Batch]:
        """Return what was added since the last call."""


def no_table(data: bytes, position: int, count: int) -> MessageTable | None:
    """Return nothing: these messages are walked one by one."""
    return None


@dataclass(frozen=True, slots=True)
class LogFormat:
    """Writes and walks a log's messages.

    `new_builder` is given the log's end, the term, the data files' size and the store host;
    `dispatches` walks verified bytes from a position on; `table` gives `count` messages of these by
    columns, where that is any use. `may_skip` says that a queue's messages
    need not begin at 0, nor follow each other: nobody agreed on them.
    """

    new_builder: Callable[[LogEnd, int, int, bytes], Builder]
    dispatches: Callable[[bytes, int], Iterator[Dispatch]]
    may_skip: bool = False
    table: Callable[[bytes, int, int], MessageTable | None] = no_table


DLEDGER_FORMAT = LogFormat(EntryBuilder, iter_dispatches, table=message_table)
"""Entries, each with a header; queues without gaps, since all is agreed on."""

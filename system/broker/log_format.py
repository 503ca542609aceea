"""How messages are stored in the log: as DLedger entries, or one after the other."""

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
    """Encodes messages to append to the log (`system.store.entry_builder.EntryBuilder`)."""

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
        """Add the entry that sets a membership; return its byte position."""

    def take(self) -> list[Batch]:
        """Return the batches added since the last call."""


def no_table(data: bytes, position: int, count: int) -> MessageTable | None:
    """Return None: messages of this format are dispatched one by one."""
    return None


@dataclass(frozen=True, slots=True)
class LogFormat:
    """Writes and reads a log's messages.

    Attributes:
        new_builder: takes the log's end, the term, the data files' size and the store host.
        dispatches: iterates over the messages in verified bytes that start at a position.
        may_skip: queue offsets need not start at 0 nor be contiguous, since no quorum agreed
            on them.
        table: decodes `count` messages by column, None where that does not pay off.
    """

    new_builder: Callable[[LogEnd, int, int, bytes], Builder]
    dispatches: Callable[[bytes, int], Iterator[Dispatch]]
    may_skip: bool = False
    table: Callable[[bytes, int, int], MessageTable | None] = no_table


DLEDGER_FORMAT = LogFormat(EntryBuilder, iter_dispatches, table=message_table)
"""DLedger entries, each with a header. Queues have no gaps: every entry is agreed on."""

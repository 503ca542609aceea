"""Finds a stored message by the byte position that a client or an index names.

Source: RocketMQ's DefaultMessageStore.lookMessageByOffset, which trusts the position.
"""

from __future__ import annotations

from shaketable.system.raft.log_view import LogView
from shaketable.system.store.entry import ENTRY_BYTES_MAX
from shaketable.system.store.message import HEAD, DamagedMessage, Message, decode_message
from shaketable.system.store.segment_files import OutsideLog

SIZE_BYTES = 4
MESSAGE_BYTES_MIN = HEAD.size + 3
"""No body, no topic, no properties: the lengths of the last two take three bytes."""


def message_at(log: LogView, position: int, end_position: int) -> tuple[Message, bytes] | None:
    """Return the message that stands at a position, decoded and as it is stored.

    None where no message stands there, or none any more, or only behind `end_position`: the
    position may be anything. Raises StoreError where the disk fails.
    """
    size_at_most = min(ENTRY_BYTES_MAX, end_position - position)
    if position < 0 or size_at_most < MESSAGE_BYTES_MIN:
        return None
    try:
        size = int.from_bytes(log.read_some(position, SIZE_BYTES), "big")
        if not MESSAGE_BYTES_MIN <= size <= size_at_most:
            return None
        data = log.read_some(position, size)
        message = decode_message(data)
    except (OutsideLog, DamagedMessage):
        return None
    return (message, data) if message.physical_offset == position else None

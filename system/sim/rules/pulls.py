"""How much a pull brings: all that waits, up to the limits.

A consumer that gets less needs more round trips for the same messages, and no history shows that.
Source: RocketMQ's DefaultMessageStore.getMessage (isTheBatchFull).
"""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.system.sim.rules.violation import Violated


def check_filled(
    sizes: Sequence[int], waiting: int, count_max: int, bytes_max: int, next_size: int
) -> None:
    """Raise Violated where a pull brought too much, or too little.

    `sizes` are those of the messages that it brought, in bytes as stored, and `next_size` that of
    the message after them, if there is one. `waiting` is how many messages the answer itself says
    there were. One message is brought however large it is.
    """
    count, size = len(sizes), sum(sizes)
    if count > count_max or (count > 1 and size > bytes_max):
        raise Violated(
            "pulls-are-filled",
            f"{count} messages of {size} bytes came, {count_max} of {bytes_max} may",
        )
    if count < min(count_max, waiting) and size + next_size <= bytes_max:
        raise Violated(
            "pulls-are-filled",
            f"{count} messages of {size} bytes came though {waiting} waited,"
            f" {count_max} of {bytes_max} bytes may",
        )

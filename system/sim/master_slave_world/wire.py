"""What a slave's connection to its master goes through: bits that flip on the way.

TCP's checksum lets one such segment in ten million pass (Stone and Partridge, SIGCOMM 2000), and
RocketMQ's HA protocol has none of its own. The head and the body of a message are protected by its
magic, sizes, position and CRC: only these are damaged here, since nothing else can be detected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shaketable.system.master_slave.ha import MasterConnection

HEAD_BYTES = 8
"""A message starts with its size and its magic."""
LARGE_BIT = 0x01
"""In the second byte of a size: 65,536 bytes more, and no more than RocketMQ allows."""


def damaging_connection(
    base: type[MasterConnection], next_bit_flip: Callable[[], int | None]
) -> type[MasterConnection]:
    """Return a connection class that damages a message's head at the byte that it is given.

    `next_bit_flip` is asked at the start of each frame that starts a message.
    """

    class Damaging(base):  # type: ignore[valid-type, misc]
        was_damaged = False

        def _receive_body(self, position: int, body: bytes, now_ms: float) -> None:
            is_start = not self._partial and len(body) >= HEAD_BYTES
            if is_start and (place := next_bit_flip()) is not None:
                damaged = bytearray(body)
                damaged[place] ^= LARGE_BIT
                self.was_damaged = True
                body = bytes(damaged)
            super()._receive_body(position, body, now_ms)

    found: type[Any] = Damaging
    return found

"""What must hold of the bytes of connections, which no simulated network ever damages.

Whoever garbles a stream by himself is seldom found out by clients: the other side closes the
connection, or waits for the rest of a frame, and an outcome is unknown, as after many a fault.
Source: send(2), recv(2): either may come back with a part; RFC 9293 section 3.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shaketable.system.native.ha import HAError, MasterConnection
from shaketable.system.sim.rules.violation import Violated


class OwedBytes:
    """What one side of a connection has begun to send, and has yet to go on with."""

    __slots__ = ("_begin", "_rest", "at")

    def __init__(self) -> None:
        self._rest = b""
        self._begin = 0  # how much of the rest was taken: what is left is not copied at each piece
        self.at = 0
        """How many bytes were sent before."""

    def sent(self, data: memoryview, count: int) -> None:
        """`count` bytes of what was to be sent were taken. Raises Violated."""
        left = len(self._rest) - self._begin
        common = min(left, count)
        if self._rest[self._begin : self._begin + common] != bytes(data[:common]):
            rest = self._rest[self._begin : self._begin + 16]
            raise Violated(
                "partial-sends-are-continued",
                f"of {left} bytes that a socket did not take at byte {self.at}, what is"
                f" sent next is not the begin, but {bytes(data[:16])!r} for {rest!r}",
            )
        if len(data) > left and count < len(data):
            self._rest, self._begin = bytes(data[count:]), 0
        else:
            self._begin += common
        self.at += count


def no_frame(problem: str, node: str) -> Violated:
    """Return what is to be told of bytes that a node or a client cannot take for a frame."""
    return Violated("streams-are-understood", f"it receives what is {problem}", node)


def understanding(
    base: type[MasterConnection], report: Callable[[Violated], None]
) -> type[MasterConnection]:
    """Return the slave's side of a connection, which has to understand its master throughout.

    `report` is told where it does not. Up to the first message that is copied both may find that
    their logs differ; after that one they agree.
    """

    class Understanding(base):  # type: ignore[valid-type, misc]
        def __init__(self, core: Any, *args: Any) -> None:
            super().__init__(core, *args)
            self._copied = core.log
            self._has_copied = False

        def received(self, data: bytes, now_ms: float) -> None:
            before = self._copied.end_position
            try:
                super().received(data, now_ms)
            except HAError as error:
                if self._has_copied:
                    report(Violated("streams-are-understood", str(error)))
                raise
            finally:
                self._has_copied = self._has_copied or self._copied.end_position > before

    return Understanding

"""Invariants of connections' bytes, which no simulated network ever damages by itself.

Clients seldom detect that a sender garbles its stream: the other side closes the connection or
waits for the rest of a frame, and an operation is indeterminate, as after many faults. Source:
send(2), recv(2): both may transfer only a part; RFC 9293 section 3.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shaketable.system.master_slave.ha import HAError, MasterConnection
from shaketable.system.sim.rules.violation import Violated


class UnsentBytes:
    """What one side of a connection tried to send, and must continue with."""

    __slots__ = ("_rest", "_taken", "at")

    def __init__(self) -> None:
        self._rest = b""
        self._taken = 0  # bytes of `_rest` sent so far, so that it is not copied each time
        self.at = 0
        """Number of bytes sent before."""

    def sent(self, data: memoryview, count: int) -> None:
        """The socket took the first `count` bytes of `data`. Raises Violated."""
        left = len(self._rest) - self._taken
        common = min(left, count)
        if self._rest[self._taken : self._taken + common] != bytes(data[:common]):
            rest = self._rest[self._taken : self._taken + 16]
            raise Violated(
                "partial-sends-are-continued",
                f"of {left} bytes that a socket did not take at byte {self.at}, what is"
                f" sent next is not the start, but {bytes(data[:16])!r} for {rest!r}",
            )
        if len(data) > left and count < len(data):
            self._rest, self._taken = bytes(data[count:]), 0
        else:
            self._taken += common
        self.at += count


def bad_frame(problem: str, node: str) -> Violated:
    """Return the violation for bytes that a node or a client cannot parse as a frame."""
    return Violated("streams-are-understood", f"it receives what is {problem}", node)


def checked_connection(
    base: type[MasterConnection], report: Callable[[Violated], None]
) -> type[MasterConnection]:
    """Return a slave's connection class that reports every message it cannot understand.

    Up to the first copied message both sides may find that their logs differ; after that they
    agree, unless bits were flipped on the way (`was_damaged`).
    """

    class Checked(base):  # type: ignore[valid-type, misc]
        def __init__(self, core: Any, *args: Any) -> None:
            super().__init__(core, *args)
            self._copied = core.log
            self._has_copied = False

        def received(self, data: bytes, now_ms: float) -> None:
            before = self._copied.end_position
            try:
                super().received(data, now_ms)
            except HAError as error:
                if self._has_copied and not getattr(self, "was_damaged", False):
                    report(Violated("streams-are-understood", str(error)))
                raise
            finally:
                self._has_copied = self._has_copied or self._copied.end_position > before

    return Checked

"""A slave takes what its master sends as what follows its own log, wherever that stands.

It compares no positions, neither the frame's nor the message's own. A slave whose flush is behind
what it wrote asks from there on when its connection is lost, and has messages twice; behind a
master that lost its end it serves messages from the wrong place.

Source: https://github.com/apache/rocketmq/issues/323 (HAClient: "master pushed offset not equal
the max phy offset in slave", which is where RocketMQ breaks the connection).
"""

from __future__ import annotations

from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.native.ha import MasterConnection
from shaketable.system.node.master_slave.parts import NativeParts

_SIZE_BYTES = 4


class SlaveReadsOnAnywhere(MasterConnection):
    """Never compares positions."""

    def _take(self, position: int, body: bytes, now_ms: float) -> None:
        end = self._core.log.end_position + len(self._part)
        super()._take(end or position, body, now_ms)

    def _whole(self) -> int:
        begin = self._core.log.end_position
        room = begin - begin % self._file_bytes + self._file_bytes - begin
        at = 0
        while len(self._part) - at > _SIZE_BYTES:
            size = int.from_bytes(self._part[at : at + _SIZE_BYTES], "big")
            if not 0 < size <= min(room, len(self._part)) - at:
                break
            at += size
        return at


PLUGIN = Mutant(
    "slave-reads-on-anywhere",
    native=NativeParts(master_connection=SlaveReadsOnAnywhere),
    hunt=Hunt("queue", ("reset", "disk-stall")),
)

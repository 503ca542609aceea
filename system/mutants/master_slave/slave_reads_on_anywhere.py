"""A slave takes what its master sends as what follows its own log, wherever that stands.

After the two have parted (a master lost its end, or another one was made master) their logs
differ from there on, and the slave serves messages from the wrong place.

Source: https://github.com/apache/rocketmq/issues/323 (HAClient: "master pushed offset not equal
the max phy offset in slave", which is where RocketMQ breaks the connection).
"""

from __future__ import annotations

from system.mutants import Mutant
from system.native.ha import MasterConnection
from system.node.native_parts import NativeParts


class SlaveReadsOnAnywhere(MasterConnection):
    """Never compares positions."""

    def _take(self, position: int, body: bytes, now_ms: float) -> None:
        end = self._core.log.end_position + len(self._part)
        super()._take(end or position, body, now_ms)


PLUGIN = Mutant(
    "slave-reads-on-anywhere", native=NativeParts(master_connection=SlaveReadsOnAnywhere)
)

"""A new leader delivers delayed messages from where it last heard that the old one was, 10 s ago.

What the old one delivered since then comes twice: the progress is a file of the leader's, which
the others copy now and then.

Source: https://github.com/apache/rocketmq/issues/1934, fixed for DLedger by
https://github.com/apache/rocketmq/pull/2518.
"""

from __future__ import annotations

from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.delays.delay_delivery import DelayDelivery
from shaketable.system.broker.delays.delay_levels import LEVELS_MAX
from shaketable.system.mutants import GROUP, Hunt, Mutant

COPY_INTERVAL_MS = 10_000.0
"""How often a member copies the leader's progress."""


class _FromCopy(DelayDelivery):
    """Knows how far the delivery was when it was copied last."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._copied: dict[int, int] = {}
        self._copy_due_ms = 0.0

    def deliver(self, now_ms: float, wall_ms: int) -> None:
        """Copy when it is time, and deliver."""
        if now_ms >= self._copy_due_ms:
            self._copy_due_ms = now_ms + COPY_INTERVAL_MS
            self._copied = {
                level: super(_FromCopy, self)._done(level) for level in range(LEVELS_MAX)
            }
        super().deliver(now_ms, wall_ms)

    def _done(self, level: int) -> int:
        return self._copied.get(level, 0)


class DelaysRepeatedByNewLeader(Broker):
    """A broker that delivers so."""

    delays_type = _FromCopy


PLUGIN = Mutant(
    "delays-repeated-by-new-leader",
    broker=DelaysRepeatedByNewLeader,
    targets=GROUP,
    hunt=Hunt("queue-delays", ("kill", "transfer")),
)

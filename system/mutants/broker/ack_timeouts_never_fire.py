"""Appends that no majority acknowledges are never answered.

Clients wait until their own timeout, and the leader's table of pending appends fills up.
DLedger's loop over the pending indices is bounded by Integer.MAX_VALUE, which long-lived
groups pass (production logs show indices of 1.26e11).

Source: DLedger's DLedgerEntryPusher.checkResponseFuturesTimeout (bug E17),
https://github.com/openmessaging/dledger (DLedgerEntryPusher.java)
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.mutants import GROUP, Hunt, Mutant


class AckTimeoutsNeverFire(Broker):
    """Lets the core tick, and forgets the appends that wait."""

    def tick(self, now_ms: float) -> None:
        """Let the core alone know what time it is."""
        self.core.tick(now_ms)


PLUGIN = Mutant(
    "ack-timeouts-never-fire",
    broker=AckTimeoutsNeverFire,
    targets=GROUP,
    hunt=Hunt("log", ("partition",)),
)

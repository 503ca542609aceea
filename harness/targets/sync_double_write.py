"""Masters that wait for a slave: RocketMQ's synchronous double write."""

from __future__ import annotations

from shaketable.harness.contracts.plugins import Promises
from shaketable.harness.targets.master_slave_brokers import (
    DELIVERY,
    KEPT_BY_THE_MACHINE,
    MasterSlaveTarget,
)


class SyncDoubleWrite(MasterSlaveTarget):
    """Masters that acknowledge a message once a slave has it."""


PLUGIN = SyncDoubleWrite(
    "sync-double-write",
    "SYNC_MASTER",
    Promises(
        durable_under=KEPT_BY_THE_MACHINE | {"wipe"},
        delivered_under=KEPT_BY_THE_MACHINE,
        excludes=DELIVERY,
        copies=1,
        note="A message is on its master and on a slave before it is acknowledged; a slave is made"
        " master by hand. Consumer offsets are copied every ten seconds.",
        documented="a master serves messages before its slave has them, so when the slave is made"
        " master their offsets go to other messages, which consumers that were past them are not"
        " given; consumer offsets may go back (RocketMQ, synchronous double write)",
    ),
    has_slaves=True,
)

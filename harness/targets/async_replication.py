"""Masters whose slaves copy from them later: RocketMQ's asynchronous master-slave mode."""

from __future__ import annotations

from shaketable.harness.contracts.plugins import Promises
from shaketable.harness.targets.master_slave_brokers import (
    DELIVERY,
    KEPT_BY_THE_MACHINE,
    MasterSlaveTarget,
)


class AsyncReplication(MasterSlaveTarget):
    """Masters that replicate to their slaves asynchronously."""


PLUGIN = AsyncReplication(
    "async-replication",
    "ASYNC_MASTER",
    Promises(
        durable_under=KEPT_BY_THE_MACHINE,
        excludes=DELIVERY,
        copies=1,
        note="A message is flushed to its master's disk before it is acknowledged; its slave copies"
        " it soon, and consumer offsets every ten seconds.",
        documented="with a master's disk go those messages that its slave had not copied yet, a"
        " small number; offsets may go back (RocketMQ, deployment with asynchronous replication)",
    ),
    has_slaves=True,
)

"""Brokers that are all masters, each with queues of its own: RocketMQ's multi-master mode."""

from __future__ import annotations

from shaketable.harness.contracts.plugins import Promises
from shaketable.harness.targets.master_slave_brokers import (
    DELIVERY,
    KEPT_BY_THE_MACHINE,
    MasterSlaveTarget,
)


class MultiMaster(MasterSlaveTarget):
    """Brokers that are all masters, each with its own queues; no replication."""


PLUGIN = MultiMaster(
    "multi-master",
    "ASYNC_MASTER",
    Promises(
        durable_under=KEPT_BY_THE_MACHINE,
        excludes=DELIVERY,
        copies=1,
        note="A message is flushed to its master's disk before it is acknowledged; no other broker"
        " has it. Consumer offsets are written every few seconds.",
        documented="each message is on one machine alone, whose disks must not be lost; offsets"
        " may go back (RocketMQ, deployment in multi-master mode)",
    ),
    has_slaves=False,
)

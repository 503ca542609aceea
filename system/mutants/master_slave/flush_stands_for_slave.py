"""A synchronous master answers SEND_OK as soon as its own disk has the message.

The wait for the disk and the wait for the slave share one request, and the first ends it.

Source: https://github.com/alibaba/rocketmq/issues/421 (SYNC_MASTER with SYNC_FLUSH does not wait
for the slave).
"""

from __future__ import annotations

from shaketable.system.broker.appender import PendingAppend
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.native.group_commit import GroupCommit
from shaketable.system.node.master_slave.parts import NativeParts
from shaketable.system.remoting.codes import ResponseCode


class FlushStandsForSlave(GroupCommit):
    """Asks the disk alone."""

    def _outcome(self, append: PendingAppend) -> ResponseCode | None:
        return self._outcome_alone(append, ResponseCode.SUCCESS)


PLUGIN = Mutant(
    "flush-stands-for-slave",
    native=NativeParts(group_commit=FlushStandsForSlave),
    targets=("sync-double-write",),
    hunt=Hunt("queue", ("wipe", "partition")),
)

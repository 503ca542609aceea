"""A synchronous master answers SEND_OK also where no slave has the message when the time is over.

Source: https://github.com/apache/rocketmq/issues/4806 (SLAVE_NOT_AVAILABLE and
FLUSH_SLAVE_TIMEOUT are considered to be written on the slave).
"""

from __future__ import annotations

from shaketable.system.broker.appender import PendingAppend
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.native.group_commit import GroupCommit
from shaketable.system.node.master_slave.parts import NativeParts
from shaketable.system.remoting.codes import ResponseCode

_NOT_AT_SLAVE = (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)


class LateSlaveIsOk(GroupCommit):
    """Knows no such answers."""

    def _reply(self, append: PendingAppend, code: ResponseCode) -> None:
        super()._reply(append, ResponseCode.SUCCESS if code in _NOT_AT_SLAVE else code)


PLUGIN = Mutant(
    "late-slave-is-ok",
    native=NativeParts(group_commit=LateSlaveIsOk),
    targets=("sync-double-write",),
    hunt=Hunt("queue", ("wipe", "partition")),
)

"""A slave reports what it has received, not what it has written.

The master counts a copy that is in the memory of the slave's process; both may end.

Source: https://github.com/alibaba/rocketmq/issues/359 (is a message of which the slave's disk has
nothing called stored?); HAClient.reportSlaveMaxOffset.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.native.core import NativeCore
from shaketable.system.node.master_slave.parts import NativeParts


class ReportsWhatItReceived(NativeCore):
    """A slave that is quick to say yes."""

    @property
    def reported_position(self) -> int:
        """The end of what it has in memory."""
        return self._log.end_position


PLUGIN = Mutant("slave-reports-what-it-received", native=NativeParts(core=ReportsWhatItReceived))

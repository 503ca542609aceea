"""A master believes every position that is reported to it, also one that it never sent.

What is sent after that counts as copied while no slave has it.

Source: https://github.com/apache/rocketmq/issues/3015 and
https://github.com/apache/rocketmq/issues/1155 (push2SlaveMaxOffset becomes too large).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.native.ha import SlaveConnection
from shaketable.system.node.master_slave.parts import NativeParts


class AnyReportCounts(SlaveConnection):
    """Checks nothing."""

    def _check(self, position: int, sent_position: int) -> None:
        return


PLUGIN = Mutant("any-report-counts", native=NativeParts(slave_connection=AnyReportCounts))

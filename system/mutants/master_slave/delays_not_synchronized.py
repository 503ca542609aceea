"""A slave does not take over how far its master is with delayed messages.

Made master, it delivers all of them once more.

Source: https://github.com/apache/rocketmq/issues/2259 (the slave keeps the master's delayOffset
in a file that nobody reads).
"""

from __future__ import annotations

from typing import ClassVar

from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.native.config_files import DELAYS
from shaketable.system.node.master_slave.parts import NativeParts
from shaketable.system.node.master_slave.slave_synchronize import ASKED, Asked, SlaveSynchronize


class DelaysNotSynchronized(SlaveSynchronize):
    """Asks for the rest."""

    asked: ClassVar[Asked] = tuple(each for each in ASKED if each[1] != DELAYS)


PLUGIN = Mutant(
    "delays-not-synchronized",
    native=NativeParts(synchronize=DelaysNotSynchronized),
    hunt=Hunt("queue-delays", ("wipe",)),
)

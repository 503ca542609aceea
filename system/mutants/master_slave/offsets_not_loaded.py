"""A broker that starts reads its topics, and not the offsets that groups had committed.

All groups go on where they began; everything is consumed once more.

Source: https://github.com/alibaba/rocketmq/issues/28 (after a restart of the master all messages
that were consumed are consumed again).
"""

from __future__ import annotations

from shaketable.system.mutants import MASTERS, Hunt, Mutant
from shaketable.system.native.config_files import OFFSETS
from shaketable.system.node.master_slave.config_files import ConfigFiles
from shaketable.system.node.master_slave.parts import NativeParts


class OffsetsNotLoaded(ConfigFiles):
    """Passes one file over."""

    def _load(self, name: str) -> None:
        if name != OFFSETS:
            super()._load(name)


PLUGIN = Mutant(
    "offsets-not-loaded",
    native=NativeParts(config_files=OffsetsNotLoaded),
    targets=MASTERS,
    hunt=Hunt("queue", ("kill", "rolling-restart")),
)

"""The files of topics and offsets are written where they stand, and not synced.

A loss of power leaves half a file, and the broker does not start, or starts without offsets.

Source: https://github.com/apache/rocketmq/issues/3401 (delayOffset.json and consumerOffset.json
are corrupted when the machine crashes).
"""

from __future__ import annotations

from shaketable.system.mutants import MASTERS, Hunt, Mutant
from shaketable.system.node.master_slave.config_files import ConfigFiles
from shaketable.system.node.master_slave.parts import NativeParts


class ConfigFileInPlace(ConfigFiles):
    """Keeps no copy, and waits for no disk."""

    def _replace(self, name: str, data: bytes) -> None:
        path = self._path(name)
        if self._disk.exists(path):
            self._disk.unlink(path)
        file = self._disk.create(path, len(data))
        file.pwrite([data], 0)
        file.close()


PLUGIN = Mutant(
    "config-file-in-place",
    native=NativeParts(config_files=ConfigFileInPlace),
    targets=MASTERS,
    hunt=Hunt("queue", ("power",)),
)

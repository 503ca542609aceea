"""Planted bugs in the files of config/."""

from __future__ import annotations

from shaketable.system.mutants import MASTERS, Hunt, Mutant
from shaketable.system.native.config_files import OFFSETS
from shaketable.system.node.master_slave.config_files import ConfigFiles
from shaketable.system.node.master_slave.parts import NativeParts


class ConfigFileInPlace(ConfigFiles):
    """Overwrites the file in place, without a backup and without fsync."""

    def _replace(self, name: str, data: bytes) -> None:
        path = self._path(name)
        if self._disk.exists(path):
            self._disk.unlink(path)
        file = self._disk.create(path, len(data))
        file.pwrite([data], 0)
        file.close()


CONFIG_FILE_IN_PLACE = Mutant(
    "config-file-in-place",
    native=NativeParts(config_files=ConfigFileInPlace),
    targets=MASTERS,
    hunt=Hunt("queue", ("power",)),
    about="""
    The files of topics and offsets are written where they stand, and not synced.

    A loss of power leaves half a file, and the broker does not start, or starts without offsets.

    Source: https://github.com/apache/rocketmq/issues/3401 (delayOffset.json and consumerOffset.json
    are corrupted when the machine crashes).
    """,
)


class OffsetsNotLoaded(ConfigFiles):
    """Skips the file of offsets."""

    def _load(self, name: str) -> None:
        if name != OFFSETS:
            super()._load(name)


OFFSETS_NOT_LOADED = Mutant(
    "offsets-not-loaded",
    native=NativeParts(config_files=OffsetsNotLoaded),
    targets=MASTERS,
    hunt=Hunt("queue", ("kill", "rolling-restart")),
    about="""
    A broker that starts reads its topics, and not the offsets that groups had committed.

    All groups go on where they began; everything is consumed once more.

    Source: https://github.com/alibaba/rocketmq/issues/28 (after a restart of the master all
    messages that were consumed are consumed again).
    """,
)


PLUGINS = (
    CONFIG_FILE_IN_PLACE,
    OFFSETS_NOT_LOADED,
)

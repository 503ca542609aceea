"""The classes that a master-slave broker is built from: the correct ones, or a planted bug's."""

from __future__ import annotations

from dataclasses import dataclass

from shaketable.system.native.core import NativeCore
from shaketable.system.native.group_commit import GroupCommit
from shaketable.system.native.ha import MasterConnection, SlaveConnection
from shaketable.system.node.master_slave.config_files import ConfigFiles, SlaveSynchronize
from shaketable.system.store.native.commit_log import NativeCommitLog


@dataclass(frozen=True, slots=True)
class NativeParts:
    """The class of each part; the defaults are the correct ones."""

    core: type[NativeCore] = NativeCore
    commit_log: type[NativeCommitLog] = NativeCommitLog
    group_commit: type[GroupCommit] = GroupCommit
    slave_connection: type[SlaveConnection] = SlaveConnection
    master_connection: type[MasterConnection] = MasterConnection
    config_files: type[ConfigFiles] = ConfigFiles
    synchronize: type[SlaveSynchronize] = SlaveSynchronize

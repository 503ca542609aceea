"""The classes that a master-slave broker is built from: the correct ones, or a planted bug's."""

from __future__ import annotations

from dataclasses import dataclass

from shaketable.system.master_slave.core import MasterSlaveCore
from shaketable.system.master_slave.ha import MasterConnection, SlaveConnection
from shaketable.system.master_slave.mode import GroupCommit
from shaketable.system.node.master_slave.config_files import ConfigFiles, SlaveSynchronize
from shaketable.system.store.plain_commit_log import PlainCommitLog


@dataclass(frozen=True, slots=True)
class MasterSlaveParts:
    """The class of each part; the defaults are the correct ones."""

    core: type[MasterSlaveCore] = MasterSlaveCore
    commit_log: type[PlainCommitLog] = PlainCommitLog
    group_commit: type[GroupCommit] = GroupCommit
    slave_connection: type[SlaveConnection] = SlaveConnection
    master_connection: type[MasterConnection] = MasterConnection
    config_files: type[ConfigFiles] = ConfigFiles
    synchronize: type[SlaveSynchronize] = SlaveSynchronize

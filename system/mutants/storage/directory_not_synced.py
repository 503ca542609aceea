"""A new data file is synced, and the folder that names it is not.

After a loss of power the file is gone, with every entry that was synced into it and acknowledged.

Source: https://github.com/etcd-io/etcd/issues/6368 (parent directories of the WAL are not synced)
and https://github.com/ClickHouse/ClickHouse/issues/116316 (Keeper's changelog).
"""

from __future__ import annotations

from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.segment_files import SegmentFiles


class _WithoutNames(SegmentFiles):
    """Syncs what is in the files."""

    def sync_names(self) -> None:
        """Leave it to the operating system."""


class DirectoryNotSynced(CommitLog):
    """A log in such files."""

    files_type = _WithoutNames


PLUGIN = Mutant(
    "directory-not-synced", commit_log=DirectoryNotSynced, hunt=Hunt("log", ("power", "kill"))
)

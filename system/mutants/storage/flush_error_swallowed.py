"""An fsync that fails is logged, and what it should have written counts as durable.

The kernel drops the pages and lets the next fsync succeed; the message was answered SEND_OK.

Source: https://github.com/apache/rocketmq/issues/2706 and
https://github.com/apache/rocketmq/pull/4306 (bug E32).
"""

from __future__ import annotations

from contextlib import suppress

from shaketable.system.mutants import Mutant
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import DiskFailed, File
from shaketable.system.store.segment_files import SegmentFiles


class _SwallowsErrors(SegmentFiles):
    """Takes a failed fsync for one that went well."""

    def _sync_file(self, file: File) -> None:
        with suppress(DiskFailed):
            file.sync()


class FlushErrorSwallowed(CommitLog):
    """A log in such files."""

    files_type = _SwallowsErrors


PLUGIN = Mutant("flush-error-swallowed", commit_log=FlushErrorSwallowed)

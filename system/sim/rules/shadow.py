"""One member's log as the invariants know it: written, durable, called committed so far."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from shaketable.system.raft.batch import Batch
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import Write
from shaketable.system.sim.disks.disk import PowerLoss
from shaketable.system.sim.rules.undisturbed import Hearing
from shaketable.system.store.commit_log import CommitLog, OutsideLog
from shaketable.system.store.disk import DiskFailed
from shaketable.system.store.hard_state import HardState


class Shadow:
    """One member, as the invariants know it; it outlives the member's processes.

    `end_index` and `end_crc` are the end of everything it ordered to be written; `durable_index`
    up to where it was told that it is durable; `state` the last term and vote made durable.
    """

    __slots__ = (
        "asked_term",
        "batches",
        "begin_crc",
        "begin_index",
        "commit_index",
        "core",
        "crcs",
        "durable_index",
        "end_crc",
        "end_index",
        "grants",
        "hearing",
        "in_flight",
        "is_up",
        "lasts",
        "log",
        "may_expire_index",
        "name",
        "state",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.core: RaftCore | None = None
        self.log: CommitLog | None = None
        self.is_up = False
        self.asked_term = -1
        """The term whose leader asked this member to take over."""
        self.grants: dict[str, None] = {}
        """Who would have voted for this member since it last stood for election."""
        self.hearing = Hearing()
        self.batches: list[Batch] = []
        self.lasts: list[int] = []
        self.crcs: list[int] = []
        self.end_index = self.begin_index = -1
        self.end_crc = self.begin_crc = 0
        self.commit_index = -1
        self.durable_index = -1
        self.may_expire_index: int | None = None
        """Up to where files were old enough to go, or the disk too full; None: not measured."""
        self.state = HardState()
        self.in_flight: Sequence[Write] = ()

    def crc_at(self, index: int) -> int:
        """Return the chainCrc of entry `index` of this member's log (0 for index -1)."""
        if index == self.end_index:
            return self.end_crc
        at = bisect_left(self.lasts, index)
        if at < len(self.lasts):
            batch = self.batches[at]
            if self.lasts[at] == index:
                return self.crcs[at]
            if batch.first_index <= index:
                return batch.until(index).last_chain_crc()
        if index == self.begin_index:
            return self.begin_crc
        if index < 0:
            return 0
        assert self.log is not None
        return self.log.log_end_at(index).chain_crc

    def holds(self, index: int, crc: int) -> bool:
        """Whether entry `index` of this log is that one; so it is where a disk at rest knows."""
        try:
            return self.end_index >= index and self.crc_at(index) == crc
        except (PowerLoss, DiskFailed):
            return True
        except OutsideLog:
            if self.is_up:
                raise
            return True  # the files of a stopped member are closed

    def truncate(self, end_index: int) -> None:
        """Forget what stands behind `end_index`."""
        crc = self.crc_at(end_index)
        while self.lasts and self.lasts[-1] > end_index:
            self.lasts.pop()
            self.crcs.pop()
            batch = self.batches.pop()
            if batch.first_index <= end_index:
                self.lasts.append(end_index)
                self.crcs.append(crc)
                self.batches.append(batch.until(end_index))
        self.end_index, self.end_crc = end_index, crc

    def begin_at(self, index: int, crc: int) -> None:
        """Start anew: nothing of what is up to `index` is in memory."""
        self.batches, self.lasts, self.crcs = [], [], []
        self.end_index, self.end_crc = self.begin_index, self.begin_crc = index, crc

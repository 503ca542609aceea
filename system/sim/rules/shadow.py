"""One member's log as the invariants track it: written, durable and committed so far."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from shaketable.system.invariants.elections import LeaderStickiness
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import (
    Batch,
    Write,
)
from shaketable.system.sim.disk import PowerLoss
from shaketable.system.store.commit_log import CommitLog, OutsideLog
from shaketable.system.store.disk import DiskFailed
from shaketable.system.store.state_files import HardState


class Shadow:
    """One member's state for the invariants; it outlives the member's processes.

    `end_index` and `end_crc` are the end of all writes handed to the disk; `durable_index` the last
    index reported durable; `state` the last durable term and vote.
    """

    __slots__ = (
        "asked_term",
        "base_crc",
        "base_index",
        "batches",
        "commit_index",
        "core",
        "crcs",
        "durable_index",
        "end_crc",
        "end_index",
        "expirable_index",
        "grants",
        "in_flight",
        "is_up",
        "lasts",
        "log",
        "name",
        "removed",
        "state",
        "step_index",
        "stickiness",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.core: RaftCore | None = None
        self.log: CommitLog | None = None
        self.is_up = False
        self.asked_term = -1
        """The term whose leader asked this member to take over (leadership transfer)."""
        self.grants: dict[str, None] = {}
        """Members that granted a pre-vote since this member last campaigned."""
        self.stickiness = LeaderStickiness(float("-inf"))
        self.batches: list[Batch] = []
        self.lasts: list[int] = []
        self.crcs: list[int] = []
        self.end_index = self.base_index = -1
        self.end_crc = self.base_crc = 0
        self.commit_index = -1
        self.durable_index = -1
        self.expirable_index: int | None = None
        """Last index of files that were old enough to expire, or that a full disk allowed to; None:
        not measured."""
        self.removed: tuple[int, int] | None = None
        """Index and chainCrc of the first entry that was truncated last; None after an append."""
        self.step_index = -1
        """Last index of the files that one step of expiry may reach."""
        self.state = HardState()
        self.in_flight: Sequence[Write] = ()

    def crc_at(self, index: int) -> int:
        """Return the chainCrc of entry `index` of this member's log; 0 for index -1."""
        if index == self.end_index:
            return self.end_crc
        at = bisect_left(self.lasts, index)
        if at < len(self.lasts):
            batch = self.batches[at]
            if self.lasts[at] == index:
                return self.crcs[at]
            if batch.first_index <= index:
                return batch.until(index).last_chain_crc()
        if index == self.base_index:
            return self.base_crc
        if index < 0:
            return 0
        assert self.log is not None
        return self.log.log_end_at(index).chain_crc

    def holds(self, index: int, crc: int) -> bool:
        """Return whether the log has that entry at `index`; True if a dead disk cannot say."""
        try:
            return self.end_index >= index and self.crc_at(index) == crc
        except (PowerLoss, DiskFailed):
            return True
        except OutsideLog:
            if self.is_up:
                raise
            return True  # the files of a stopped member are closed

    def note_removed(self, index: int) -> None:
        """Note that the entries from `index` on are about to be removed."""
        try:
            self.removed = index, self.crc_at(index)
        except (PowerLoss, DiskFailed, OutsideLog):
            self.removed = None  # its disk cannot say

    def truncate(self, end_index: int) -> None:
        """Forget the entries after `end_index`."""
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

    def reset_to(self, index: int, crc: int) -> None:
        """Reset to a log that ends at `index`: no entry up to it is in memory."""
        self.removed = None
        self.batches, self.lasts, self.crcs = [], [], []
        self.end_index, self.end_crc = self.base_index, self.base_crc = index, crc

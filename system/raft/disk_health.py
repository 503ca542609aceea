"""Whether a member's disk allows it to lead: not while it is full, nor while syncs stall.

Source: DLEDGER.md E15 (dledger#287: a node whose disk is dead keeps the leadership).
"""

from __future__ import annotations

from shaketable.system.raft.protocol import RaftConfig


class DiskHealth:
    """What the shell reported about the disk, and how long writes have waited to be durable.

    A disk stalls if writes are waiting and no sync has made progress for `disk_stall_max_ms`.
    """

    __slots__ = ("_config", "_waiting_seq", "_waiting_since_ms", "is_full")

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self.is_full = False
        self._waiting_seq = 0  # the writes up to here have waited since then
        self._waiting_since_ms = float("inf")

    def written(self, write_seq: int, now_ms: float) -> None:
        """Note that writes up to `write_seq` were handed to the shell."""
        if self._waiting_since_ms == float("inf"):
            self._waiting_seq, self._waiting_since_ms = write_seq, now_ms

    def synced(self, synced_seq: int, write_seq: int, now_ms: float) -> None:
        """Note that of the writes up to `write_seq`, those up to `synced_seq` are durable."""
        if synced_seq >= write_seq:
            self._waiting_since_ms = float("inf")
        elif synced_seq >= self._waiting_seq:
            self._waiting_seq, self._waiting_since_ms = write_seq, now_ms

    def is_stalled(self, now_ms: float) -> bool:
        """True if writes have waited too long to become durable."""
        return now_ms - self._waiting_since_ms > self._config.disk_stall_max_ms

    def may_lead(self, now_ms: float) -> bool:
        """True if the disk allows this member to lead."""
        return not self.is_full and not self.is_stalled(now_ms)

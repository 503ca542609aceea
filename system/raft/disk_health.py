"""Whether a member's disk lets it lead: not when it is full, not when nothing gets durable.

Source: DLEDGER.md bug E15 (dledger#287: a node whose disk is dead keeps the leadership).
"""

from __future__ import annotations

from shaketable.system.raft.protocol import RaftConfig


class DiskHealth:
    """What the shell says of the disk, and since when a write waits to be durable.

    A disk stalls when writes wait and no sync has got further for `disk_stall_max_ms`.
    """

    __slots__ = ("_config", "_waiting_seq", "_waiting_since_ms", "is_full")

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self.is_full = False
        self._waiting_seq = 0  # the writes up to here have waited since then
        self._waiting_since_ms = float("inf")

    def written(self, write_seq: int, now_ms: float) -> None:
        """Writes up to `write_seq` were handed to the shell."""
        if self._waiting_since_ms == float("inf"):
            self._waiting_seq, self._waiting_since_ms = write_seq, now_ms

    def synced(self, synced_seq: int, write_seq: int, now_ms: float) -> None:
        """Of the writes up to `write_seq`, those up to `synced_seq` are durable."""
        if synced_seq >= write_seq:
            self._waiting_since_ms = float("inf")
        elif synced_seq >= self._waiting_seq:
            self._waiting_seq, self._waiting_since_ms = write_seq, now_ms

    def is_stalled(self, now_ms: float) -> bool:
        """True if what was written does not get durable."""
        return now_ms - self._waiting_since_ms > self._config.disk_stall_max_ms

    def may_lead(self, now_ms: float) -> bool:
        """True if the disk would let this member lead."""
        return not self.is_full and not self.is_stalled(now_ms)

"""A new leader serves reads before an entry of its own term is committed.

Its commit index may be behind that of the leader before, and so is what it serves.

Source: https://github.com/etcd-io/etcd/issues/7331, fixed by
https://github.com/etcd-io/etcd/pull/7332; dissertation 6.4.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import NotLeaderError, Token


class ReadBeforeTermStart(RaftCore):
    """A leader that is ready at once."""

    def read(self, token: Token, now_ms: float) -> None:
        """Ask for a read, whatever is committed. Raises NotLeaderError, TooManyReadsError."""
        leading = self._leadership
        if leading is None or leading.is_ready:
            super().read(token, now_ms)
            return
        self._now_ms = now_ms
        if leading.reads_waiting >= self.config.reads_waiting_max:
            raise NotLeaderError(self.leader)
        leading.reads.ask(token, self._read_point())


PLUGIN = Mutant("read-before-term-start", ReadBeforeTermStart)

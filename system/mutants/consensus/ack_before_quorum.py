"""The leader acknowledges an append before its followers have the entry.

Entries, commitment and reads stay as they should be: a read waits until what was
acknowledged before it is committed. So without faults nothing shows; with them, an
acknowledged entry that no follower had is truncated by the next leader.

Source: the acknowledgement of asynchronous replication where a majority was promised
(RocketMQ's ASYNC_MASTER; DLEDGER.md section D.2 and bug E33, SYNC_MASTER without
waiting: https://github.com/apache/rocketmq CommitLog.handleHA 5.3.3).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import Role


class AckBeforeQuorum(RaftCore):
    """Answers appends when they stand in the leader's own memory."""

    def _acknowledged_index(self) -> int:
        if self.role is Role.LEADER:
            return self.log.end_index
        return self.ledger.commit_index

    def _read_point(self) -> int:
        return self.log.end_index


PLUGIN = Mutant("ack-before-quorum", AckBeforeQuorum)

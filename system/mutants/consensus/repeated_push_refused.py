"""A follower refuses a push that begins where one came too early before.

DLedger left a request in its writeRequestMap after it had timed out, so that each
retransmission was answered REPEATED_PUSH: the follower never catches up.

Source: https://github.com/openmessaging/dledger/issues/251 and
https://github.com/openmessaging/dledger/issues/331 (bug E6).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.follower import Follower
from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.protocol import PushRequest, PushResponse


class _RemembersPushes(Follower):
    """Keeps every push that came too early in a map that nobody clears."""

    __slots__ = ("_write_requests",)

    def __init__(self, ledger: Ledger, member: str, term: int) -> None:
        super().__init__(ledger, member, term)
        self._write_requests: dict[int, None] = {}

    def take_push(self, push: PushRequest, *, is_full: bool) -> PushResponse | None:
        if push.batches:
            first_index = push.batches[0].first_index
            if first_index in self._write_requests:
                return None
            if push.prev_index > self._ledger.log.end_index:
                self._write_requests[first_index] = None
        return super().take_push(push, is_full=is_full)


class RepeatedPushRefused(RaftCore):
    """A member with such a map."""

    follower_type = _RemembersPushes


PLUGIN = Mutant("repeated-push-refused", RepeatedPushRefused)

"""Leadership transfer: which voters may take over, and the transfer under way.

Source: Ongaro's dissertation section 3.10; DLedger's LEADERSHIP_TRANSFER and
preferredLeaderIds (DLEDGER.md section C.3, C.6).
"""

from __future__ import annotations

from collections.abc import Iterable

from shaketable.system.raft.dispatcher import EntryDispatcher
from shaketable.system.raft.protocol import RaftConfig, TransferError


class Transfer:
    """A leader's transfers in one term, one at a time. Times in milliseconds.

    While `target` is set the leader takes no appends, so that the target can catch up. A
    leader that `must_step_down` (its disk fails) does not first wait to commit everything.
    """

    __slots__ = (
        "_config",
        "_due_ms",
        "_failed_ms",
        "_member",
        "_preferred_due_ms",
        "must_step_down",
        "target",
    )

    def __init__(self, config: RaftConfig, member: str, now_ms: float) -> None:
        self._config = config
        self._member = member
        self.target: str | None = None
        self.must_step_down = False
        self._due_ms = 0.0
        self._failed_ms: dict[str, float] = {}  # by member, when its last transfer failed
        self._preferred_due_ms = now_ms + config.preferred_check_ms

    @property
    def due_ms(self) -> float | None:
        """When the transfer under way times out, None if there is none."""
        return None if self.target is None else self._due_ms

    def start(self, target: str, now_ms: float, *, must_step_down: bool) -> None:
        """Start a transfer to `target`."""
        self.target, self.must_step_down = target, must_step_down
        self._due_ms = now_ms + self._config.transfer_timeout_ms

    def give_up(self, now_ms: float) -> bool:
        """End a transfer that timed out; True if it was ended now."""
        if self.target is None or now_ms < self._due_ms:
            return False
        self._failed_ms[self.target] = now_ms
        self.target = None
        return True

    def require(self, dispatcher: EntryDispatcher, end_index: int, now_ms: float) -> None:
        """Raise TransferError with the reason if that voter cannot take over soon."""
        lag = end_index - dispatcher.match_index
        if lag > self._config.transfer_lag_entries_max:
            raise TransferError(f"{dispatcher.peer} is {lag} entries behind")
        silent_ms = now_ms - dispatcher.last_contact_ms
        if silent_ms > self._config.election_timeout_min_ms:
            raise TransferError(f"{dispatcher.peer} has been silent for {silent_ms:.0f} ms")

    def nearest(self, voting: Iterable[EntryDispatcher], now_ms: float) -> EntryDispatcher | None:
        """Return the responsive voter with the smallest lag, None if none responds.

        A voter to which a transfer failed recently is the last choice.
        """
        oldest_ms = now_ms - self._config.election_timeout_min_ms
        responsive = [voter for voter in voting if voter.last_contact_ms >= oldest_ms]
        return max(
            responsive,
            key=lambda voter: (not self._has_failed(voter, now_ms), voter.match_index),
            default=None,
        )

    def best(
        self, voting: Iterable[EntryDispatcher], end_index: int, now_ms: float
    ) -> EntryDispatcher | None:
        """Return the most up-to-date voter that can take over, None if there is none."""
        able = [voter for voter in voting if self._may_ask(voter, end_index, now_ms)]
        return max(able, key=lambda voter: voter.match_index, default=None)

    def preferred(
        self, voting: Iterable[EntryDispatcher], end_index: int, now_ms: float
    ) -> EntryDispatcher | None:
        """Return a preferred voter that can take over; checked each `preferred_check_ms`.

        Only a voter that comes before this member in `preferred_leaders`, so that two members
        never transfer the leadership back and forth.
        """
        if now_ms < self._preferred_due_ms:
            return None
        self._preferred_due_ms = now_ms + self._config.preferred_check_ms
        by_name = {voter.peer: voter for voter in voting}
        for name in self._config.preferred_leaders:
            if name == self._member:
                return None
            if name in by_name and self._may_ask(by_name[name], end_index, now_ms):
                return by_name[name]
        return None

    def _may_ask(self, voter: EntryDispatcher, end_index: int, now_ms: float) -> bool:
        if self._has_failed(voter, now_ms):
            return False
        try:
            self.require(voter, end_index, now_ms)
        except TransferError:
            return False
        return True

    def _has_failed(self, voter: EntryDispatcher, now_ms: float) -> bool:
        failed_ms = self._failed_ms.get(voter.peer)
        return failed_ms is not None and now_ms - failed_ms < self._config.transfer_retry_ms

"""Invariant: a follower acknowledges all that it has on disk of what its leader sent it."""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import (
    Message,
    PushRequest,
    PushResponse,
    Role,
    SnapshotRequest,
)
from shaketable.system.sim.rules.shadow import Shadow


class Acknowledgements:
    """What one process of a member has heard from leaders, and so has to acknowledge."""

    def __init__(self, name: str, core: RaftCore) -> None:
        self._name = name
        self._core = core
        self._heard: list[PushRequest | SnapshotRequest] = []
        self._is_full = False
        self._agreed: tuple[int, str | None, int] = (-1, None, -1)
        """Up to where this member holds what a leader sent it: term, leader, index."""

    def disk_full(self, is_full: bool) -> None:
        """The member is told that its disk is full, or has room again."""
        self._is_full = is_full

    def heard(self, message: Message) -> None:
        """A message is about to be handled."""
        if isinstance(message, PushRequest | SnapshotRequest):
            self._heard.append(message)

    def check(
        self, shadow: Shadow, messages: Sequence[tuple[str, Message]], *, is_fresh: bool
    ) -> None:
        """A follower acknowledges all that it has on disk of what its leader sent it.

        For steps of one input. `is_fresh`: a response in `messages` was made in this step, and did
        not wait for the disk since an earlier one. Raises Violated.
        """
        heard, self._heard = self._heard, []
        core = self._core
        term, leader, index = self._agreed
        if core.role is not Role.FOLLOWER or core.leader is None:
            self._agreed = -1, None, -1  # it may follow the same leader again, and agrees anew
            return
        if (term, leader) != (core.term, core.leader):
            index = -1
        for message in heard:
            if message.term == core.term and not self._is_full:
                index = max(index, _held_end(shadow, message))
        self._agreed = core.term, core.leader, index
        if not (is_fresh or heard):
            return
        last = [each for _, each in messages if isinstance(each, PushResponse) and each.success]
        due_index = min(index, core.ledger.durable_index)
        if last and last[-1].match_index < due_index:
            raise Violated(
                "all-is-acknowledged",
                f"it acknowledges entries up to {last[-1].match_index}, and has those up to"
                f" {due_index}",
                self._name,
            )


def _held_end(shadow: Shadow, message: PushRequest | SnapshotRequest) -> int:
    """Return the last index of what a leader sent, -1 unless the member's log has that entry."""
    if isinstance(message, SnapshotRequest):
        index, crc = message.snapshot.end.index, message.snapshot.end.chain_crc
    elif message.batches:
        index, crc = message.batches[-1].last_index, message.batches[-1].last_chain_crc()
    else:
        return -1
    is_known = shadow.base_index <= index
    return index if is_known and shadow.holds(index, crc) else -1

"""What is written but not yet durable, and what may not be said before it is.

Source: Raft figure 2 ("updated on stable storage before responding to RPCs"); DLedger
keeps neither rule (bugs E16 and E18 of DLEDGER.md).
"""

from __future__ import annotations

from collections import deque

from shaketable.system.raft.protocol import (
    Append,
    Install,
    Message,
    SaveState,
    Truncate,
    VoteRequest,
    VoteResponse,
    Write,
)

HELD_MAX = 256
"""Messages that wait for writes: a few for each member, and for strangers that asked."""


class PendingWrites:
    """Numbers the writes and holds messages back until the writes they rest on are durable.

    Invariant: synced_seq <= write_seq, state_seq <= write_seq.
    """

    __slots__ = ("_appended", "_held", "state_seq", "synced_seq", "write_seq")

    def __init__(self) -> None:
        self.write_seq = 0
        self.synced_seq = 0
        self.state_seq = 0
        self._appended: deque[tuple[int, int]] = deque()  # (seq, last index)
        self._held: list[tuple[int, str, Message]] = []

    def add(self, write: Write) -> None:
        """Number a write."""
        self.write_seq += 1
        if isinstance(write, SaveState):
            self.state_seq = self.write_seq
        elif isinstance(write, Append):
            self._appended.append((self.write_seq, write.batch.last_index))
        elif isinstance(write, Truncate):
            # An append that is cut back proves no more than what is left of it: the same
            # entries, appended again later, are durable with that later write.
            end = write.end_index
            self._appended = deque((seq, min(last, end)) for seq, last in self._appended)
        elif isinstance(write, Install):
            self._appended.clear()
            self._appended.append((self.write_seq, write.snapshot.end.index))

    def hold(self, seq: int, peer: str, message: Message) -> bool:
        """Keep `message` until write `seq` is durable; False if it may go at once.

        To each peer the newest message of a kind replaces an older one that still waits: a
        write may be stuck for as long as the disk is full. Past HELD_MAX the oldest is lost,
        as any message may be.
        """
        if seq <= self.synced_seq:
            return False
        name = (peer, _kind(message))
        self._held = [kept for kept in self._held if (kept[1], _kind(kept[2])) != name]
        self._held.append((seq, peer, message))
        del self._held[:-HELD_MAX]
        return True

    def synced(self, seq: int) -> list[int]:
        """Writes up to `seq` are durable; return up to which index each append counts."""
        assert seq <= self.write_seq, "nothing can be durable before it is written"
        self.synced_seq = max(self.synced_seq, seq)
        durable = []
        while self._appended and self._appended[0][0] <= seq:
            durable.append(self._appended.popleft()[1])
        return durable

    def release(self, term: int) -> list[tuple[str, Message]]:
        """Return the messages that may go now; those of an older term are dropped.

        Votes are kept whatever their term: a granted canvass carries the asked one.
        """
        ready = [held for held in self._held if held[0] <= self.synced_seq]
        if ready:
            self._held = [held for held in self._held if held[0] > self.synced_seq]
        return [
            (peer, message)
            for _, peer, message in ready
            if message.term >= term or isinstance(message, VoteResponse)
        ]


def _kind(message: Message) -> tuple[type[Message], bool]:
    """What may replace what: a vote is no canvass, and the word of neither is the other's."""
    is_canvass = isinstance(message, VoteRequest | VoteResponse) and message.canvass
    return type(message), is_canvass

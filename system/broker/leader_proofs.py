"""Requests that only a leader may answer, held until the group has confirmed that it leads.

As reads are: the core's read round proves the leadership, then everything has to be applied
that was committed by then. Source: Ongaro's dissertation section 6.4 (read index).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shaketable.system.broker.core import Core
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.outbox import Outbox
from shaketable.system.broker.reput import Reput
from shaketable.system.raft.protocol import NotLeaderError, Token, TooManyReadsError
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import Command


@dataclass(frozen=True, slots=True)
class Proof:
    """A request on its way, the core's token; `then` answers it. `number` tells it apart."""

    number: int
    connection: Connection
    command: Command = field(compare=False)
    then: Callable[[float], None] = field(compare=False)


Tokens = Sequence[Token]


class LeaderProofs:
    """The requests that wait for the group's confirmation."""

    def __init__(self, core: Core, reput: Reput, outbox: Outbox, config: BrokerConfig) -> None:
        self._core = core
        self._reput = reput
        self._outbox = outbox
        self._held_max = config.reads_held_max
        self._asked = 0
        self._count = 0
        self._held: deque[tuple[int, Proof]] = deque()  # confirmed: (index to be applied, proof)

    def ask(
        self,
        connection: Connection,
        command: Command,
        then: Callable[[float], None],
        now_ms: float,
    ) -> None:
        """Once this member has proved that it leads, call `then` with the time; else refuse."""
        command.body = b""  # what is kept must not keep its frame's buffer
        self._count += 1
        proof = Proof(self._count, connection, command, then)
        if len(self._held) >= self._held_max:
            remark = f"[503] {len(self._held)} requests wait for entries to be applied"
            self._outbox.refuse(connection, command, ResponseCode.SYSTEM_BUSY, remark)
            return
        try:
            self._core.read(proof, now_ms)
        except NotLeaderError:
            self._outbox.refuse_not_leader(connection, command)
        except TooManyReadsError as error:
            self._outbox.refuse(connection, command, ResponseCode.SYSTEM_BUSY, f"[503] {error}")
        else:
            self._asked += 1

    def sift(self, ready: Tokens, refused: Tokens, index: int) -> tuple[Tokens, Tokens]:
        """Take what is ours of the core's answers, by `index`; return what is not."""
        if not self._asked or not (ready or refused):
            return ready, refused
        others_ready: list[Token] = []
        others_refused: list[Token] = []
        for token in ready:
            if isinstance(token, Proof):
                self._asked -= 1
                self._held.append((index, token))
            else:
                others_ready.append(token)
        for token in refused:
            if isinstance(token, Proof):
                self._asked -= 1
                self._outbox.refuse_not_leader(token.connection, token.command)
            else:
                others_refused.append(token)
        return others_ready, others_refused

    def serve(self, now_ms: float) -> None:
        """Answer the confirmed requests for which enough is applied."""
        while self._held and self._held[0][0] <= self._reput.applied_index:
            self._held.popleft()[1].then(now_ms)

"""Invariant: who answers for the group has confirmed that it leads since the request came.

What only a leader may answer is a read of the group's state: a consumer group's offset, a queue's
end, a lock. A leader that was replaced and does not know it would give an old answer, which a
client sees only if something changed meanwhile. Source: Raft dissertation section 6.4; DLEDGER.md
section 0, row 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shaketable.system.broker.effects import AnyRequest, Connection
from shaketable.system.broker.reading.queries import ANY_MEMBER_CODES
from shaketable.system.broker.reading.reads import PULL_CODES, READ_CODES
from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.protocol import Token
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, Frame, decode_command

LEADER_CODES: Final = (READ_CODES - ANY_MEMBER_CODES) | {
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
}
WAITING_MAX: Final = 10_000
"""Requests of one connection that are compared with their replies; more are not judged."""
ANSWERS: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)
"""With any other code a request is refused, which needs no leader."""
_HEADER_AT = 8
_NOT_JUDGED = 0, 0


class ConfirmedReads:
    """The requests of clients that wait for a leader's answer, and the reads of its core.

    Replies are compared with any read that began after the request came: who leads for one, leads
    for all that came before.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = self._confirmed = 0
        self._reads: dict[int, tuple[int, Token]] = {}
        """Reads that the core has neither confirmed nor refused, with their numbers."""
        self._waiting: dict[Connection, dict[int, tuple[int, int]]] = {}
        """Of each request its code, and how many reads had begun when it came."""

    def asked(
        self, connection: Connection, requests: Sequence[AnyRequest], *, others_serve: bool
    ) -> None:
        """Note requests that have just come. `others_serve`: any member may answer pulls."""
        for request in requests:
            waiting = self._waiting.get(connection, {})
            if request.opaque in waiting:  # whose reply the next one is cannot be known
                waiting[request.opaque] = _NOT_JUDGED
            elif (
                isinstance(request, Command)
                and request.code in LEADER_CODES
                and not (others_serve and request.code in PULL_CODES)
                and not (request.is_response or request.is_oneway)
                and len(waiting) < WAITING_MAX
            ):
                waiting[request.opaque] = request.code, self._begun
                self._waiting[connection] = waiting

    def closed(self, connection: Connection) -> None:
        """Forget the requests of a connection that closed."""
        self._waiting.pop(connection, None)

    def begun(self, token: Token) -> None:
        """The core was given a read."""
        self._begun += 1
        self._reads[id(token)] = self._begun, token

    def settled(self, ready: Sequence[Token], refused: Sequence[Token]) -> None:
        """The core has confirmed, and refused, reads."""
        for token in refused:
            self._reads.pop(id(token), None)
        for token in ready:
            number, _ = self._reads.pop(id(token), (0, None))
            self._confirmed = max(self._confirmed, number)

    def check(self, replies: Mapping[Connection, Sequence[bytes]]) -> None:
        """Check the replies of a step. Raises Violated."""
        for connection in self._waiting.keys() & replies.keys():
            waiting = self._waiting[connection]
            for reply in replies[connection]:
                self._check(_header(reply), waiting)
            if not waiting:
                del self._waiting[connection]

    def _check(self, answer: Command, waiting: dict[int, tuple[int, int]]) -> None:
        code, before = waiting.pop(answer.opaque, _NOT_JUDGED)
        is_refused = "leaderId" in answer.ext  # a pull, with PULL_RETRY_IMMEDIATELY
        if code and answer.code in ANSWERS and not is_refused and self._confirmed <= before:
            what = RequestCode(code).name
            raise Violated(
                "answers-come-from-leaders",
                f"it answered {what} without a read index that began after the request came",
                self._name,
            )


def _header(reply: bytes) -> Command:
    """Decode a reply, without its body."""
    header_end = _HEADER_AT + int.from_bytes(reply[5:_HEADER_AT], "big")
    return decode_command(
        Frame(reply[4], memoryview(reply)[_HEADER_AT:header_end], memoryview(b""))
    )

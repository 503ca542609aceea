"""The work that the broker hands to its shell, and the outbox that collects the replies in it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from shaketable.system.broker.core import Core
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message, RoleChange, Snapshot, Write
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import response

Connection = int
"""A client connection's number, assigned by the shell."""


class BrokerEffects(msgspec.Struct):
    """Work for the shell, in the order of `system.raft.protocol.Effects`.

    Attributes:
        writes: log writes to carry out, in order.
        write_seq: sequence number of the last write.
        messages: messages to other members, by member id.
        replies: encoded replies by client connection, in order.
        role_changes: role changes of this member.
        membership: the members to keep connections with from now on, if that changed.
        installed: a snapshot that replaced all applied state. Checkpoint files and the key
            index of the old state are obsolete then.
        has_more: more is left to apply than one step allows; call `take` again soon, even
            without another input.
        is_checkpoint_due: the buffered key items fill half of their limit. Take a checkpoint
            now: applying stops at the limit.
    """

    writes: list[Write] = []
    write_seq: int = 0
    messages: list[tuple[str, Message]] = []
    replies: dict[Connection, list[bytes]] = {}
    role_changes: list[RoleChange] = []
    membership: Membership | None = None
    installed: Snapshot | None = None
    has_more: bool = False
    is_checkpoint_due: bool = False


# The outbox: it also refuses requests before they have any effect.

NOT_LEADER = "not the leader"
NOT_APPLIED = "[505] the leader has not yet applied what was committed before its term"


class AnyRequest(Protocol):
    """The fields of a request that its reply needs."""

    @property
    def opaque(self) -> int:
        """The request's number on its connection."""

    @property
    def serialize_type(self) -> int:
        """The serialization of its header, which the reply uses too."""

    @property
    def is_oneway(self) -> bool:
        """Whether the client expects no reply."""


class Outbox:
    """Collects replies by connection until the shell takes them."""

    def __init__(self, core: Core, not_leader: str = NOT_LEADER) -> None:
        self._core = core
        self._not_leader = not_leader
        self._replies: dict[Connection, list[bytes]] = {}

    def take(self) -> dict[Connection, list[bytes]]:
        """Return the replies since the last call, in order for each connection."""
        replies, self._replies = self._replies, {}
        return replies

    def drop(self, connection: Connection) -> None:
        """Drop the replies to a connection that closed."""
        self._replies.pop(connection, None)

    def put(self, connection: Connection, reply: bytes) -> None:
        """Add an encoded reply."""
        replies = self._replies.get(connection)
        if replies is None:
            self._replies[connection] = [reply]
        else:
            replies.append(reply)

    def answer(
        self,
        connection: Connection,
        request: AnyRequest,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes | list[bytes] = b"",
    ) -> None:
        """Reply to a request, unless it is one-way."""
        if not request.is_oneway:
            reply = response(
                request.opaque, code, remark, ext, body, serialize_type=request.serialize_type
            )
            self.put(connection, reply)

    def refuse(
        self, connection: Connection, request: AnyRequest, code: ResponseCode, remark: str
    ) -> None:
        """Answer that a request had no effect, naming the leader; see `codes.outcome_of`."""
        self.answer(connection, request, code, remark, {"leaderId": self._core.leader or ""})

    def refuse_not_leader(self, connection: Connection, request: AnyRequest) -> None:
        """Refuse a request that only a ready leader can serve."""
        leader = self._core.leader
        if leader == self._core.member:
            remark = NOT_APPLIED
        else:
            remark = f"[404] {self._not_leader}; leaderId={leader or ''}"
        self.refuse(connection, request, ResponseCode.SERVICE_NOT_AVAILABLE, remark)

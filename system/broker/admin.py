"""Serves operators: a member's state, leadership transfers, membership changes.

The request codes are our own (`RequestCode`), on RocketMQ's frame: DLedger's membership is
static, and its LEADERSHIP_TRANSFER goes between members. A refusal is definite and gives its
reason. Its code is NO_PERMISSION if a retry would be refused again, so that clients do not retry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shaketable.system.broker.appender import Appender, PendingAppend, PendingAppends, Refusal
from shaketable.system.broker.core import Core
from shaketable.system.broker.effects import Connection, Outbox
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import Reput
from shaketable.system.raft.membership import (
    AddLearner,
    Change,
    MembershipError,
    Promote,
    Remove,
)
from shaketable.system.raft.protocol import NotLeaderError, Role, TransferError
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, CommandError, response
from shaketable.system.remoting.requests import MemberRequest, MetadataResponse

ADMIN_CODES = frozenset(
    (RequestCode.TRANSFER_LEADERSHIP, RequestCode.ADD_MEMBER, RequestCode.REMOVE_MEMBER)
)
PORT_MAX = 65_535
PORT_DIGITS_MAX = 5
MEMBER_BYTES_MAX = 64
ADDRESS_BYTES_MAX = 253
_MEMBER = re.compile(r"[A-Za-z0-9_.]+")
"""The ids that a node's configuration accepts. A member with another id could never start."""


@dataclass(frozen=True, slots=True)
class _WaitingTransfer:
    connection: Connection
    command: Command
    target: str
    due_ms: float


class Admin:
    """Serves operators. At most one transfer is pending at a time, as in the core."""

    def __init__(
        self,
        core: Core,
        reput: Reput,
        appender: Appender,
        pending: PendingAppends,
        outbox: Outbox,
        config: BrokerConfig,
    ) -> None:
        self._core = core
        self._reput = reput
        self._appender = appender
        self._pending = pending
        self._outbox = outbox
        self._config = config
        self._transfer: _WaitingTransfer | None = None

    def handle(self, connection: Connection, command: Command, now_ms: float, wall_ms: int) -> None:
        """Start a transfer or a membership change. Raises CommandError for an illegal member."""
        fields = MemberRequest.from_ext(command.ext)
        if not self._appender.is_ready:
            self._outbox.refuse_not_leader(connection, command)
        elif command.code == RequestCode.TRANSFER_LEADERSHIP:
            self._start_transfer(connection, command, fields.member, now_ms)
        elif command.code == RequestCode.ADD_MEMBER:
            change = AddLearner(_checked_member(fields.member), _checked_address(fields.address))
            self._change(connection, command, change, now_ms, wall_ms)
        else:
            self._change(connection, command, Remove(fields.member), now_ms, wall_ms)

    def metadata(
        self, connection: Connection, command: Command, now_ms: float, wall_ms: int
    ) -> None:
        """Answer DLedger's METADATA with this member's state and clocks."""
        core = self._core
        memberships, start = core.ledger.memberships, core.log.start
        membership = memberships.current
        fields = MetadataResponse(
            core.member,
            core.role.value,
            core.term,
            core.leader or "",
            core.ledger.checkpoint_index,
            core.log.end_index,
            self._reput.applied_index,
            ";".join(membership.voters),
            ";".join(membership.learners),
            ";".join(f"{member}-{address}" for member, address in membership.addresses),
            memberships.current_index,
            start.index + 1,
            start.index,
            wall_ms,
            int(now_ms),
        )
        self._outbox.answer(connection, command, ext=fields.to_ext())

    def promote(self, learner: str, now_ms: float, wall_ms: int) -> None:
        """Promote a learner that has caught up to a voter; if refused, it is retried later."""
        if not self._appender.is_ready:
            return
        try:
            membership = self._core.plan_change(Promote(learner))
        except (MembershipError, NotLeaderError):
            return
        self._appender.append_membership(membership, now_ms, wall_ms)

    def settle(self, now_ms: float) -> None:
        """Answer the pending transfer once its outcome is known."""
        waiting, core = self._transfer, self._core
        if waiting is None:
            return
        if core.leader == waiting.target:
            self._outbox.answer(waiting.connection, waiting.command)
        elif now_ms >= waiting.due_ms or (core.role is Role.LEADER and core.transferee is None):
            self._outbox.answer(
                waiting.connection,
                waiting.command,
                ResponseCode.SYSTEM_ERROR,
                f"[418] {waiting.target} has not taken the leadership yet",
                {"leaderId": core.leader or ""},
            )
        else:
            return
        self._transfer = None

    def _start_transfer(
        self, connection: Connection, command: Command, target: str, now_ms: float
    ) -> None:
        if target == self._core.member:
            self._outbox.answer(connection, command)
            return
        self.settle(now_ms)  # the core may have aborted an earlier one since
        try:
            self._core.transfer(target, now_ms)
        except NotLeaderError:
            self._outbox.refuse_not_leader(connection, command)
        except TransferError as error:
            self._refuse(connection, command, (ResponseCode.NO_PERMISSION, f"[417] {error}"))
        else:
            due_ms = now_ms + self._config.ack_timeout_ms
            self._transfer = _WaitingTransfer(connection, command, target, due_ms)

    def _change(
        self,
        connection: Connection,
        command: Command,
        change: Change,
        now_ms: float,
        wall_ms: int,
    ) -> None:
        try:
            membership = self._core.plan_change(change)
        except NotLeaderError:
            self._outbox.refuse_not_leader(connection, command)
            return
        except MembershipError as error:
            self._refuse(connection, command, (ResponseCode.NO_PERMISSION, f"[504] {error}"))
            return
        if refusal := self._appender.append_membership(membership, now_ms, wall_ms):
            self._refuse(connection, command, refusal)
            return
        index = self._core.ledger.memberships.current_index
        self._pending.waiting.append(
            PendingAppend(
                index,
                now_ms + self._config.ack_timeout_ms,
                connection,
                command.opaque,
                command.serialize_type,
                response(
                    command.opaque,
                    ResponseCode.SUCCESS,
                    ext={"membershipIndex": str(index)},
                    serialize_type=command.serialize_type,
                ),
            )
        )

    def _refuse(self, connection: Connection, command: Command, refusal: Refusal) -> None:
        self._outbox.refuse(connection, command, *refusal)


def _checked_member(member: str) -> str:
    if len(member) > MEMBER_BYTES_MAX or not _MEMBER.fullmatch(member):
        raise CommandError(f"{member[:MEMBER_BYTES_MAX]!r} is no member id")
    return member


def _checked_address(address: str | None) -> str:
    host, _, port = (address or "").rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX
    if not (is_number and 0 < int(port) <= PORT_MAX and _is_host(host)):
        given = (address or "")[:ADDRESS_BYTES_MAX]
        raise CommandError(f"a member's address is host:port of its DLedger port, not {given!r}")
    return f"{host}:{int(port)}"


def _is_host(host: str) -> bool:
    """Whether a host name can be resolved. Every member would retry a bad one for ever."""
    if not host or len(host) > ADDRESS_BYTES_MAX or not host.isascii() or not host.isprintable():
        return False
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return ";" not in host and " " not in host

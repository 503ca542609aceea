"""Encoding of messages between members as remoting frames. Pure.

The messages are our own, with DLedger's request codes. They are one-way: each member sends on the
connection that it opened, so the two directions of a link fail independently.
Source: DESIGN.md decision 6; codes from DLedgerRequestCode (DLEDGER.md C.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import (
    Batch,
    LeadershipTransfer,
    LogEnd,
    Message,
    PushRequest,
    PushResponse,
    Snapshot,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Command,
    CommandError,
    encode_command,
)
from shaketable.system.remoting.requests import Fields
from shaketable.system.store.entry import DamagedEntry, is_valid_batch, verify_batch
from shaketable.system.store.group_events import (
    DamagedMembership,
    decode_membership,
    encode_membership,
    memberships_in,
)

PORT_MAX = 65_535
PORT_DIGITS_MAX = 5
TERM_JUMP_MAX = 1 << 32
"""How far a message's term may exceed ours. With an election every 250 ms a group needs 34 years
for that. Without the limit, one corrupt message could raise the term until no next term fits."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Index = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
"""An index, a position or an entry's term; -1 for none."""

_Member = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]+\Z")]
"""A member's id. Other characters could not be stored as the vote (`save_hard_state`)."""


class _VoteRequest(Fields, rename="camel"):
    term: _Number
    candidate: _Member
    last_term: _Index
    last_index: _Index
    pre_vote: bool
    group: str
    is_transfer: bool = False


class _VoteResponse(Fields, rename="camel"):
    term: _Number
    voter: _Member
    granted: bool
    pre_vote: bool
    group: str


class _PushRequest(Fields, rename="camel"):
    term: _Number
    leader: _Member
    prev_index: _Index
    prev_term: _Index
    commit_index: _Index
    read_round: _Number
    group: str
    prev_position: _Index = -1
    count: _Number = 0
    entry_term: _Index = -1
    position: _Index = -1


class _PushResponse(Fields, rename="camel"):
    term: _Number
    follower: _Member
    success: bool
    match_index: _Index
    read_round: _Number
    prev_index: _Index
    hint_index: _Index
    hint_term: _Index
    group: str


class _SnapshotRequest(Fields, rename="camel"):
    term: _Number
    leader: _Member
    read_round: _Number
    end_index: _Index
    end_term: _Index
    end_position: _Number
    chain_crc: _Number
    membership_index: _Index
    membership: str
    group: str


class _LeadershipTransfer(Fields, rename="camel"):
    term: _Number
    leader: _Member
    group: str


def encode(message: Message, group: str, address: str = "") -> bytes:
    """Return the frame of one message.

    `address`, "host:port" of the sender's DLedger port, is sent with messages that expect a
    response: the receiver may not know yet that the sender is a member (dissertation section 4.1).
    """
    body: Sequence[bytes] = ()
    fields: Fields
    flag = ONEWAY_FLAG
    if isinstance(message, VoteRequest):
        code = RequestCode.DLEDGER_VOTE
        fields = _VoteRequest(
            message.term,
            message.candidate,
            message.last_term,
            message.last_index,
            message.pre_vote,
            group,
            message.is_transfer,
        )
    elif isinstance(message, VoteResponse):
        code, flag = RequestCode.DLEDGER_VOTE, ONEWAY_FLAG | RESPONSE_FLAG
        fields = _VoteResponse(
            message.term, message.voter, message.granted, message.pre_vote, group
        )
    elif isinstance(message, PushRequest):
        code = RequestCode.DLEDGER_PUSH
        fields = _push_fields(message, group)
        body = [batch.data for batch in message.batches]
    elif isinstance(message, SnapshotRequest):
        code = RequestCode.DLEDGER_INSTALL_SNAPSHOT
        fields = _snapshot_fields(message, group)
        body = [message.snapshot.state]
    elif isinstance(message, LeadershipTransfer):
        code = RequestCode.DLEDGER_LEADERSHIP_TRANSFER
        fields = _LeadershipTransfer(message.term, message.leader, group)
    else:
        code, flag = RequestCode.DLEDGER_PUSH, ONEWAY_FLAG | RESPONSE_FLAG
        fields = _PushResponse(
            message.term,
            message.follower,
            message.success,
            message.match_index,
            message.read_round,
            message.prev_index,
            message.hint_index,
            message.hint_term,
            group,
        )
    joined = body[0] if len(body) == 1 else b"".join(body)
    ext = fields.to_ext()
    if address and not flag & RESPONSE_FLAG:
        ext["address"] = address
    return encode_command(Command(code, flag=flag, ext=ext, body=joined))


def _push_fields(push: PushRequest, group: str) -> _PushRequest:
    fields = _PushRequest(
        push.term,
        push.leader,
        push.prev_index,
        push.prev_term,
        push.commit_index,
        push.read_round,
        group,
        push.prev_position,
    )
    if push.batches:
        fields.count = sum(batch.count for batch in push.batches)
        fields.entry_term = push.batches[0].term
        fields.position = push.batches[0].position
    return fields


def _snapshot_fields(request: SnapshotRequest, group: str) -> _SnapshotRequest:
    snapshot = request.snapshot
    return _SnapshotRequest(
        request.term,
        request.leader,
        request.read_round,
        snapshot.end.index,
        snapshot.end.term,
        snapshot.end.position,
        snapshot.end.chain_crc,
        snapshot.membership_index,
        encode_membership(snapshot.membership).decode(),
        group,
    )


def decode(command: Command, group: str) -> Message:
    """Decode one message and verify the CRCs of all its entries.

    Raises CommandError, with a one-line message, for anything but a valid message of this group.
    """
    ext = command.ext
    if ext.get("group") != group:
        raise CommandError(f"message of group {ext.get('group')!r}, this is {group!r}")
    message: Message
    if command.code == RequestCode.DLEDGER_VOTE and not command.is_response:
        vote = _VoteRequest.from_ext(ext)
        message = VoteRequest(
            vote.term,
            vote.candidate,
            vote.last_term,
            vote.last_index,
            vote.pre_vote,
            vote.is_transfer,
        )
    elif command.code == RequestCode.DLEDGER_VOTE:
        answer = _VoteResponse.from_ext(ext)
        message = VoteResponse(answer.term, answer.voter, answer.granted, answer.pre_vote)
    elif command.code == RequestCode.DLEDGER_PUSH and not command.is_response:
        message = _decode_push(_PushRequest.from_ext(ext), bytes(command.body))
    elif command.code == RequestCode.DLEDGER_PUSH:
        ack = _PushResponse.from_ext(ext)
        message = PushResponse(
            ack.term,
            ack.follower,
            ack.success,
            ack.match_index,
            ack.read_round,
            ack.prev_index,
            ack.hint_index,
            ack.hint_term,
        )
    elif command.code == RequestCode.DLEDGER_INSTALL_SNAPSHOT:
        message = _decode_snapshot(_SnapshotRequest.from_ext(ext), bytes(command.body))
    elif command.code == RequestCode.DLEDGER_LEADERSHIP_TRANSFER:
        transfer = _LeadershipTransfer.from_ext(ext)
        message = LeadershipTransfer(transfer.term, transfer.leader)
    else:
        raise CommandError(f"code {command.code} is no message between members")
    return message


def check_terms(message: Message, own_term: int) -> None:
    """Raise CommandError for terms that no correct member can send.

    These are a term too far above `own_term`, and entries of a later term than the sender's: a
    member's log never holds entries of a term that it has not reached.
    """
    if message.term - own_term > TERM_JUMP_MAX:
        raise CommandError(
            f"term {message.term} from {sender_of(message)} lies more than {TERM_JUMP_MAX} "
            f"above {own_term}"
        )
    held = 0
    if isinstance(message, VoteRequest):
        held = message.last_term
    elif isinstance(message, PushRequest):
        held = max(message.prev_term, *(batch.term for batch in message.batches), 0)
    elif isinstance(message, PushResponse):
        held = message.hint_term
    elif isinstance(message, SnapshotRequest):
        held = message.snapshot.end.term
    if held > message.term:
        raise CommandError(
            f"an entry of term {held} from {sender_of(message)}, which is in term {message.term}"
        )


def _decode_push(fields: _PushRequest, data: bytes) -> PushRequest:
    batches: tuple[Batch, ...] = ()
    if fields.count:
        first = fields.prev_index + 1
        batch = Batch(first, fields.count, fields.entry_term, fields.position, data)
        try:
            memberships = () if is_valid_batch(batch) else _verified_memberships(batch)
        except (DamagedEntry, DamagedMembership) as error:
            raise CommandError(f"damaged entries from {fields.leader}: {error}") from None
        if memberships:
            batch = msgspec.structs.replace(batch, memberships=memberships)
        batches = (batch,)
    return PushRequest(
        fields.term,
        fields.leader,
        fields.prev_index,
        fields.prev_term,
        fields.commit_index,
        fields.read_round,
        batches,
        fields.prev_position,
    )


def _verified_memberships(batch: Batch) -> tuple[tuple[int, Membership], ...]:
    """Verify each entry of a batch; return its memberships.

    Raises DamagedEntry or DamagedMembership.
    """
    verify_batch(batch, None)
    return memberships_in(batch.data)


def _decode_snapshot(fields: _SnapshotRequest, state: bytes) -> SnapshotRequest:
    try:
        membership = decode_membership(fields.membership.encode())
    except DamagedMembership as error:
        raise CommandError(f"damaged snapshot from {fields.leader}: {error}") from None
    end = LogEnd(fields.end_index, fields.end_term, fields.end_position, fields.chain_crc)
    snapshot = Snapshot(end, membership, fields.membership_index, state)
    return SnapshotRequest(fields.term, fields.leader, snapshot, fields.read_round)


def address_of(command: Command) -> tuple[str, int] | None:
    """Return (host, port) where the sender of a message listens, None if the message lacks it."""
    host, _, port = command.ext.get("address", "").rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX
    if not (host and is_number and 0 < int(port) <= PORT_MAX):
        return None
    return host, int(port)


def sender_of(message: Message) -> str:
    """Return the id of the member that sent the message."""
    if isinstance(message, VoteRequest):
        return message.candidate
    if isinstance(message, VoteResponse):
        return message.voter
    if isinstance(message, PushResponse):
        return message.follower
    return message.leader

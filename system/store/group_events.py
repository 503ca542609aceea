"""Entries about the group itself, as messages on a reserved topic.

Queue 0 holds one TERM_START a term, queue 1 membership changes, queue 2 topic configurations,
queue 3 the offsets that consumer groups commit, queue 4 the state taken over from before the
group. They are well-formed messages, so that any RocketMQ store reader parses our logs (DESIGN.md
decision 3). A membership entry has channel 1 in its DLedger header, where DLedger itself always
writes 0, so it is found without parsing its body.
"""

from __future__ import annotations

import struct

import msgspec

from shaketable.system.raft.membership import Membership
from shaketable.system.store.disk import StoreError

EVENT_TOPIC = b"RMQ_SYS_DLEDGER_EVENT"
TERM_START_QUEUE = 0
MEMBERSHIP_QUEUE = 1
TOPIC_QUEUE = 2
OFFSET_QUEUE = 3
MIGRATION_QUEUE = 4
TERM_START_PROPERTIES = b"TAGS\x01TERM_START\x02"
MEMBERSHIP_PROPERTIES = b"TAGS\x01MEMBERSHIP\x02"
TOPIC_PROPERTIES = b"TAGS\x01TOPIC\x02"
OFFSET_PROPERTIES = b"TAGS\x01GROUP_OFFSET\x02"
MIGRATION_PROPERTIES = b"TAGS\x01TAKEN_OVER\x02"
MESSAGE_CHANNEL = 0
MEMBERSHIP_CHANNEL = 1

_SIZE_AND_INDEX = struct.Struct(">4xiq").unpack_from
_CHANNEL_AT_32 = struct.Struct(">32xi").unpack_from
_BODY_LENGTH = struct.Struct(">i").unpack_from
_MESSAGE_BODY_LENGTH_AT = 84
_BODY_LENGTH_AT = 48 + _MESSAGE_BODY_LENGTH_AT
"""In an entry whose message has IPv4 hosts, as all of ours do."""


class DamagedMembership(StoreError):  # noqa: N818 - a finding about the bytes
    """A membership entry cannot be read."""


def encode_membership(membership: Membership) -> bytes:
    """Return a membership as a message body."""
    return msgspec.json.encode(membership)


def decode_membership(body: bytes | memoryview) -> Membership:
    """Decode a membership from a message body. Raises DamagedMembership."""
    try:
        membership = msgspec.json.decode(body, type=Membership)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise DamagedMembership(f"a membership entry cannot be read: {error}") from None
    members = membership.members
    if not membership.voters or len(set(members)) != len(members):
        raise DamagedMembership(f"a membership needs voters, each member once: {members}")
    return membership


def memberships_in(data: bytes | memoryview) -> tuple[tuple[int, Membership], ...]:
    """Return (index, membership) of each membership entry in verified, encoded entries.

    Raises DamagedMembership.
    """
    found: list[tuple[int, Membership]] = []
    at = 0
    while at < len(data):
        size, index = _SIZE_AND_INDEX(data, at)
        if _CHANNEL_AT_32(data, at)[0] == MEMBERSHIP_CHANNEL:
            found.append((index, membership_of(data[at : at + size])))
        at += size
    return tuple(found)


def membership_of(entry: bytes | memoryview) -> Membership:
    """Decode the membership in one whole entry. Raises DamagedMembership."""
    if len(entry) < _BODY_LENGTH_AT + 4:
        raise DamagedMembership("a membership entry is too short")
    (length,) = _BODY_LENGTH(entry, _BODY_LENGTH_AT)
    body_at = _BODY_LENGTH_AT + 4
    return decode_membership(entry[body_at : body_at + max(0, length)])


def body_at(data: bytes, at: int) -> bytes:
    """Return the body of the message at byte `at`, whose hosts must be IPv4 (all of ours are)."""
    at += _MESSAGE_BODY_LENGTH_AT
    return data[at + 4 : at + 4 + _BODY_LENGTH(data, at)[0]]

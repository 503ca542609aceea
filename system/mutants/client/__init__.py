"""Planted bugs of the client (`system.client`)."""

from __future__ import annotations

from shaketable.system.client import ClientParts, GroupConsumer, GroupMembership


def client_parts(membership: type[GroupMembership]) -> ClientParts:
    """Return a client whose consumers, those that are pushed to as well, are members so."""

    class _GroupConsumer(GroupConsumer):
        membership_type = membership

    return ClientParts(membership=membership, group_consumer=_GroupConsumer)

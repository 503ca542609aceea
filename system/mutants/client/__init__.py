"""Planted bugs in the client (`system.client`)."""

from __future__ import annotations

from shaketable.system.client import ClientParts, GroupConsumer, GroupMembership


def client_parts(membership: type[GroupMembership]) -> ClientParts:
    """Return client parts whose consumers, push consumers included, use this membership."""

    class _GroupConsumer(GroupConsumer):
        membership_type = membership

    return ClientParts(membership=membership, group_consumer=_GroupConsumer)

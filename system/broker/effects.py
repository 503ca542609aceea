"""The work that the broker hands to its shell."""

from __future__ import annotations

from dataclasses import dataclass, field

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message, RoleChange, Snapshot, Write

Connection = int
"""A client connection's number, assigned by the shell."""


@dataclass(slots=True)
class BrokerEffects:
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

    writes: list[Write] = field(default_factory=list)
    write_seq: int = 0
    messages: list[tuple[str, Message]] = field(default_factory=list)
    replies: dict[Connection, list[bytes]] = field(default_factory=dict)
    role_changes: list[RoleChange] = field(default_factory=list)
    membership: Membership | None = None
    installed: Snapshot | None = None
    has_more: bool = False
    is_checkpoint_due: bool = False

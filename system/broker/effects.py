"""What the broker asks of its shell."""

from __future__ import annotations

from dataclasses import dataclass, field

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message, RoleChange, Snapshot, Write

Connection = int
"""Names a client's connection; the shell's business."""


@dataclass(slots=True)
class BrokerEffects:
    """Work for the shell, in the order of `system.raft.protocol.Effects`.

    `membership`, where it is not None, is whom to keep connections with from now on.
    `installed`, where it is not None, replaced everything applied before: checkpoint files
    and key index of the old state stand for nothing any more. `has_more` says that more is
    left to apply than one step takes: `take` should be called again soon, with nothing else
    having happened. `is_checkpoint_due` says that key items fill half of their bound: a
    checkpoint should be taken now, since applying stops at the bound.
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

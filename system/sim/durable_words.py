"""A member says nothing that rests on what is not durable, and disturbs nobody without asking.

Checked where a message leaves, so that no crash is needed to see that the order was wrong.
Source: Raft figure 2 ("updated on stable storage before responding to RPCs"); Ongaro's
dissertation sections 3.10 and 9.6 (PreVote; a transfer alone goes without); DLEDGER.md E12, E15,
E16, E18.
"""

from __future__ import annotations

from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import (
    Message,
    PushResponse,
    Role,
    SaveState,
    VoteResponse,
    Write,
)
from shaketable.system.sim.shadow import Shadow
from shaketable.system.sim.violation import Violated

STALL_SLACK_MS = 500.0
"""A leader notices at a heartbeat that its disk has stalled."""


def check_said(shadow: Shadow, peer: str, message: Message) -> None:
    """Raise Violated where a vote or an acknowledgement leaves before it is durable."""
    if isinstance(message, PushResponse):
        if message.match_index > shadow.durable_index:
            raise Violated(
                "acknowledged-is-durable",
                f"{message.match_index} is acknowledged, {shadow.durable_index} is durable",
                shadow.name,
            )
    elif isinstance(message, VoteResponse) and message.granted and not message.canvass:
        state = shadow.state
        is_kept = state.term == message.term and state.voted_for == peer
        if not is_kept and state.term <= message.term:
            raise Violated(
                "vote-is-durable", f"{peer} gets a vote of term {message.term}, {state} is durable",
                shadow.name,
            )  # fmt: skip


def check_campaign(shadow: Shadow, core: RaftCore, write: Write) -> None:
    """Raise Violated where a member stands for election that a majority would not elect."""
    if not isinstance(write, SaveState) or write.voted_for != shadow.name:
        return
    asked = shadow.asked_term == write.term - 1
    if not asked and len(shadow.grants) + 1 < core.membership.quorum:
        raise Violated(
            "canvass-before-campaign",
            f"term {write.term} is opened with {len(shadow.grants)} of"
            f" {core.membership.quorum - 1} members asked for it",
            shadow.name,
        )
    shadow.grants.clear()


def check_stalled(shadow: Shadow, core: RaftCore, waiting_ms: float) -> None:
    """Raise Violated where a member leads whose disk has stood still for too long."""
    limit_ms = core.config.disk_stall_max_ms + STALL_SLACK_MS
    if core.role is Role.LEADER and waiting_ms > limit_ms:
        raise Violated(
            "stalled-disk-leads-not", f"a write waits for {waiting_ms:.0f} ms", shadow.name
        )

"""Views of messages by positions that no client was told: of what is not committed yet.

Ids of messages are positions in a broker's log, so a client can name one that is there and not
committed. Any member answers a view, and none may return such a message.
Source: RocketMQ's DefaultMessageStore.lookMessageByOffset, which trusts the position.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol

from shaketable.system.broker.broker import Broker
from shaketable.system.raft.batch import ENTRY_HEADER_BYTES
from shaketable.system.raft.core import RaftCore
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.fastjson import loads
from shaketable.system.remoting.requests import SendRequest, ViewMessage
from shaketable.system.sim.event_heap import EventHeap
from shaketable.system.sim.rules.invariants import Invariants
from shaketable.system.sim.rules.violation import Violated
from shaketable.system.store.message import decode_message

CONNECTION = -3
"""The connection for views at every node; their replies are checked."""
_applied_position = attrgetter("_reput.applied_position")


class ViewWorld(Protocol):
    """What the views need of the world they are in."""

    heap: EventHeap
    invariants: Invariants


class Viewed(Protocol):
    """What the views need of a member."""

    broker: Broker
    core: RaftCore

    def handle(self, connection: int, requests: Sequence[SendRequest | Command]) -> None:
        """Handle a client's requests that arrive in one read of the connection."""
        ...


class PositionViews:
    """Asks members for the first message after those that they have applied."""

    def __init__(self, world: ViewWorld) -> None:
        self._world = world
        self._opaque = 0

    def ask(self, member: Viewed) -> None:
        """Ask a member, if there is such a message in its log."""
        end_position = _applied_position(member.broker)
        if member.core.log.end_position <= end_position:
            return
        self._opaque += 1
        fields = ViewMessage(end_position + ENTRY_HEADER_BYTES)
        command = Command(RequestCode.VIEW_MESSAGE_BY_ID, self._opaque, ext=fields.to_ext())
        heap = self._world.heap
        heap.push(heap.now_ms, member.handle, CONNECTION, [command])

    def answered(self, replies: Sequence[bytes]) -> None:
        """Check that a message that is returned is committed. Raises Violated."""
        for reply in replies:
            body_at = 8 + int.from_bytes(reply[5:8], "big")
            if loads(reply[8:body_at])["code"] != ResponseCode.SUCCESS:
                continue
            message = decode_message(reply[body_at:])
            queue = message.topic, message.queue_id
            committed = self._world.invariants.queues.get(queue, [])
            if message.queue_offset >= len(committed):
                raise Violated(
                    "reads-are-committed",
                    f"a view by position returns offset {message.queue_offset} of"
                    f" {message.topic.decode()}/{message.queue_id}, committed up to"
                    f" {len(committed)}",
                )

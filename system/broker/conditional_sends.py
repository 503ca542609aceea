"""Appends on a condition: a message is stored only if it gets the offset that its sender names.

So a client that has read the end of a queue changes what it read, or nothing: compare-and-set on
a log. The leader compares with the offset that its own next append to the queue gets, which
counts all that was appended before, acknowledged or not, on this connection or another. What is
stored at the named offset therefore stands right behind what the sender saw; what is refused was
appended nowhere, though the messages that were in its way may be lost yet.

Source: our own; conditional appends of event stores (EventStoreDB's expectedVersion).
"""

from __future__ import annotations

from shaketable.system.broker.appender import Appender
from shaketable.system.broker.consume_queue import Queue
from shaketable.system.broker.delay_levels import DELAY_MARK
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.outbox import Outbox
from shaketable.system.broker.sends import RETRY_TOPIC_PREFIX, Sends
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.requests import ExpectedOffset, SendMessageV2, SendRequest


class ConditionalSends:
    """Takes APPEND_AT while this member leads, and hands it on as a send where it may be one."""

    def __init__(self, sends: Sends, appender: Appender, outbox: Outbox) -> None:
        self._sends = sends
        self._appender = appender
        self._outbox = outbox

    def append_at(
        self,
        connection: Connection,
        born_host: bytes,
        command: Command,
        now_ms: float,
        wall_ms: int,
    ) -> None:
        """Build the message's entry if it gets the offset asked for. Raises CommandError.

        The caller has found the appender ready and calls its `append` soon.
        """
        expected = ExpectedOffset.from_ext(command.ext).expected_offset
        request = _send_of(command)
        fields = request.fields
        end = self._next_offset((fields.topic.encode(), fields.queue_id))
        if expected == end:
            # Nothing runs in between: the send below gets this very offset.
            self._sends.send(connection, born_host, request, now_ms, wall_ms)
            return
        remark = f"{fields.topic}/{fields.queue_id} does not end at the expected offset"
        ext = {"queueOffset": str(end)}
        self._outbox.answer(connection, command, ResponseCode.QUEUE_END_MOVED, remark, ext)

    def _next_offset(self, queue: Queue) -> int:
        """The offset that the queue's next message gets: a decision that calibration may break."""
        return self._appender.offset_of(queue)


def _send_of(command: Command) -> SendRequest:
    """Return the send that is asked for. Raises CommandError for one that goes elsewhere."""
    fields = SendMessageV2.from_ext(command.ext)
    if fields.batch:
        raise CommandError("a conditional append is of one message")
    if fields.topic.startswith(RETRY_TOPIC_PREFIX) or DELAY_MARK in fields.properties:
        raise CommandError("a conditional append goes to its own queue, and at once")
    body = command.body if isinstance(command.body, memoryview) else memoryview(command.body)
    return SendRequest(command.opaque, command.flag, fields, body, command.serialize_type)

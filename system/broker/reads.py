"""Pulls and offset queries: linearizable at the leader, or what a member knows to be committed.

A linearizable read waits for the core's read round, then until everything is applied that was
committed when the round was confirmed.
Source: RocketMQ's PullMessageProcessor, AdminBrokerProcessor; Ongaro's dissertation section
6.4 (read index); DESIGN.md decision 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from system.broker.effects import Connection
from system.broker.limits import BrokerConfig
from system.broker.outbox import Outbox
from system.broker.pull import pull
from system.broker.reput import Reput
from system.raft.core import RaftCore
from system.raft.protocol import NotLeaderError, Token, TooManyReadsError
from system.remoting.codes import RequestCode, ResponseCode
from system.remoting.command import Command
from system.remoting.requests import PullMessage, QueueOffsetRequest, QueueOffsetResponse

READ_CODES = frozenset(
    (
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
    )
)


@dataclass(frozen=True, slots=True)
class Read:
    """A pull or an offset query on its way: the core's token. `number` tells it from others."""

    number: int
    connection: Connection
    command: Command = field(compare=False)
    request: PullMessage | QueueOffsetRequest = field(compare=False)


class Reads:
    """The reads that were asked for and are not answered yet."""

    def __init__(self, core: RaftCore, reput: Reput, outbox: Outbox, config: BrokerConfig) -> None:
        self._core = core
        self._reput = reput
        self._outbox = outbox
        self._config = config
        self._count = 0
        self._held: deque[tuple[int, Read]] = deque()  # confirmed: (index to be applied, read)

    def ask(self, connection: Connection, command: Command, now_ms: float) -> None:
        """Begin a linearizable read. Raises CommandError for a request that is no good."""
        read = self._read(connection, command)
        if len(self._held) >= self._config.reads_held_max:
            remark = f"[503] {len(self._held)} reads wait for entries to be applied"
            self._outbox.refuse(connection, command, ResponseCode.SYSTEM_BUSY, remark)
            return
        try:
            self._core.read(read, now_ms)
        except NotLeaderError:
            self._outbox.refuse_not_leader(connection, command)
        except TooManyReadsError as error:
            remark = f"[503] {error}"
            self._outbox.refuse(connection, command, ResponseCode.SYSTEM_BUSY, remark)

    def serve_committed(self, connection: Connection, command: Command) -> None:
        """Answer a pull at once, from what is applied here, whoever leads. Raises CommandError."""
        request = PullMessage.from_ext(_without_body(command).ext)
        if self._reput.applied_index < self._core.log.begin.index:
            # A snapshot has replaced the log, and not yet what was applied of the old one.
            remark = "[503] a snapshot is being put in place"
            self._outbox.refuse(connection, command, ResponseCode.SYSTEM_BUSY, remark)
            return
        self._serve(Read(0, connection, command, request))

    def confirm(self, ready: Sequence[Token], refused: Sequence[Token], index: int) -> None:
        """The core says which reads may see what is committed up to `index`, and which not."""
        for token in refused:
            assert isinstance(token, Read)
            self._outbox.refuse_not_leader(token.connection, token.command)
        for token in ready:
            assert isinstance(token, Read)
            self._held.append((index, token))

    def serve(self) -> None:
        """Answer the confirmed reads for which enough is applied."""
        while self._held and self._held[0][0] <= self._reput.applied_index:
            self._serve(self._held.popleft()[1])

    def _read(self, connection: Connection, command: Command) -> Read:
        request: PullMessage | QueueOffsetRequest
        if command.code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
            request = QueueOffsetRequest.from_ext(command.ext)
        else:
            request = PullMessage.from_ext(command.ext)
        self._count += 1
        return Read(self._count, connection, _without_body(command), request)

    def _serve(self, read: Read) -> None:
        request, queues = read.request, self._reput.queues
        queue = (request.topic.encode(), request.queue_id)
        if isinstance(request, PullMessage):
            code, ext, body = pull(queues, self._core.log, self._config, request, queue)
            self._outbox.answer(read.connection, read.command, code, None, ext, body)
            return
        is_max = read.command.code == RequestCode.GET_MAX_OFFSET
        offset = queues.end(queue) if is_max else queues.begin(queue)
        ext = QueueOffsetResponse(offset).to_ext()
        self._outbox.answer(read.connection, read.command, ext=ext)


def _without_body(command: Command) -> Command:
    """A request that is kept must not keep its frame's buffer."""
    command.body = b""
    return command

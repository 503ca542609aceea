"""A client of one broker group that finds the leader by itself.

Source: RocketMQ's DefaultMQProducer (send), DefaultLitePullConsumer (pull) and
DefaultMQAdminExt (maxOffset); DESIGN.md decision 7 for what a response code means.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import trio

from system.client.connection import (
    Connection,
    DamagedResponseError,
    OutcomeUnknownError,
    RefusedError,
)
from system.remoting.codes import RequestCode, outcome_of
from system.remoting.command import Command, CommandError
from system.remoting.requests import (
    PullMessage,
    PullMessageResponse,
    QueueOffsetRequest,
    QueueOffsetResponse,
    SendMessageResponse,
    SendMessageV2,
)
from system.store.message import DamagedMessage, Message, walk_messages

CONNECT_TIMEOUT_S = 1.0
RETRY_AFTER_MIN_S = 0.02
RETRY_AFTER_MAX_S = 0.1
PULL_BYTES_MAX = 256 * 1024

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SendResult:
    """What the broker says of a stored message."""

    message_id: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class PullResult:
    """Messages from the asked offset on (perhaps none), and the queue's range."""

    messages: tuple[Message, ...]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """What one member says of itself (DLedger's METADATA and this member's state)."""

    member: str
    role: str
    term: int
    leader: str | None
    committed_index: int
    end_index: int


class BrokerGroupClient:
    """Sends requests to the group's leader, wherever it is.

    `addresses` maps member ids to (host, port) for clients. Every call takes at most
    `timeout_s`. A definite refusal (not the leader, not ready) is tried again with another
    member until then; an unknown outcome is never tried again, since it might happen twice.
    `answered_by` is the member that answered last.
    """

    def __init__(
        self, addresses: Mapping[str, tuple[str, int]], *, timeout_s: float = 3.0, rng: Random
    ) -> None:
        self._addresses = dict(addresses)
        self._timeout_s = timeout_s
        self._rng = rng
        self._connections: dict[str, Connection] = {}
        self._target = rng.choice(sorted(self._addresses))
        self.answered_by: str | None = None

    async def send(
        self, topic: str, queue_id: int, body: bytes, *, properties: str = "", group: str = "client"
    ) -> SendResult:
        """Append a message to a queue.

        Raises RefusedError (certainly not stored), OutcomeUnknownError.
        """
        fields = SendMessageV2(group, topic, queue_id, properties=properties)

        async def attempt(connection: Connection, timeout_s: float) -> SendResult:
            request = Command(RequestCode.SEND_MESSAGE_V2, ext=fields.to_ext(), body=body)
            response = SendMessageResponse.from_ext(
                (await _call(connection, request, timeout_s)).ext
            )
            return SendResult(response.msg_id, response.queue_id, response.queue_offset)

        return await self._at_leader(attempt)

    async def pull(
        self, topic: str, queue_id: int, offset: int, *, count_max: int = 32, group: str = "client"
    ) -> PullResult:
        """Read committed messages from `offset` on, linearizably.

        Raises RefusedError, OutcomeUnknownError, DamagedResponseError.
        """
        fields = PullMessage(
            group, topic, queue_id, offset, count_max, max_msg_bytes=PULL_BYTES_MAX
        )

        async def attempt(connection: Connection, timeout_s: float) -> PullResult:
            request = Command(RequestCode.PULL_MESSAGE, ext=fields.to_ext())
            answer = await _call(connection, request, timeout_s)
            response = PullMessageResponse.from_ext(answer.ext)
            return PullResult(
                tuple(walk_messages(answer.body)),
                response.next_begin_offset,
                response.min_offset,
                response.max_offset,
            )

        return await self._at_leader(attempt)

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue's end offset, linearizably. Raises as `pull` does."""
        fields = QueueOffsetRequest(topic, queue_id)

        async def attempt(connection: Connection, timeout_s: float) -> int:
            request = Command(RequestCode.GET_MAX_OFFSET, ext=fields.to_ext())
            answer = await _call(connection, request, timeout_s)
            return QueueOffsetResponse.from_ext(answer.ext).offset

        return await self._at_leader(attempt)

    async def metadata(self, member: str) -> Metadata:
        """Ask one member for its own state. Raises as `pull` does."""
        deadline_s = trio.current_time() + self._timeout_s
        connection = await self._connection(member, self._timeout_s)
        left_s = deadline_s - trio.current_time()
        answer = await _call(connection, Command(RequestCode.DLEDGER_METADATA), left_s)
        try:
            return Metadata(
                answer.ext["selfId"],
                answer.ext["role"],
                int(answer.ext["term"]),
                answer.ext["leaderId"] or None,
                int(answer.ext["committedIndex"]),
                int(answer.ext["ledgerEndIndex"]),
            )
        except (KeyError, ValueError) as error:
            raise OutcomeUnknownError(f"{member} sent no metadata: {error!r}") from None

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _at_leader(self, attempt: Callable[[Connection, float], Awaitable[Result]]) -> Result:
        deadline_s = trio.current_time() + self._timeout_s
        while True:
            member = self._target
            try:
                connection = await self._connection(member, deadline_s - trio.current_time())
                result = await attempt(connection, deadline_s - trio.current_time())
            except RefusedError as error:
                self._retarget(member, error.leader)
                pause_s = self._rng.uniform(RETRY_AFTER_MIN_S, RETRY_AFTER_MAX_S)
                if trio.current_time() + pause_s >= deadline_s:
                    raise
                await trio.sleep(pause_s)
            except OutcomeUnknownError:
                self._retarget(member, None)
                raise
            except (CommandError, DamagedMessage) as error:
                self.answered_by = member
                raise DamagedResponseError(f"{member} sent a bad response: {error}") from None
            else:
                self.answered_by = member
                return result

    def _retarget(self, member: str, leader: str | None) -> None:
        """Go on with the leader that was named, else with another member."""
        if leader in self._addresses and leader != member:
            self._target = leader
        else:
            others = [name for name in sorted(self._addresses) if name != member]
            self._target = self._rng.choice(others or [member])

    async def _connection(self, member: str, timeout_s: float) -> Connection:
        connection = self._connections.get(member)
        if connection is not None and connection.is_open:
            return connection
        host, port = self._addresses[member]
        try:
            connection = await Connection.open(host, port, min(timeout_s, CONNECT_TIMEOUT_S))
        except OSError as error:
            raise RefusedError(-1, f"{member} cannot be reached: {error}") from None
        self._connections[member] = connection
        return connection


async def _call(connection: Connection, request: Command, timeout_s: float) -> Command:
    """Call, and turn the response's code into its outcome."""
    answer = await connection.call(request, timeout_s)
    outcome = outcome_of(answer.code)
    if outcome == "ok":
        return answer
    remark = answer.remark or ""
    if outcome == "fail":
        raise RefusedError(answer.code, remark, answer.ext.get("leaderId") or None)
    raise OutcomeUnknownError(f"code {answer.code}: {remark}")

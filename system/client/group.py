"""Clients of one broker group: one that finds the leader by itself, and one that administers it.

Source: RocketMQ's DefaultMQProducer (send), DefaultLitePullConsumer (pull) and
DefaultMQAdminExt (maxOffset); DESIGN.md decision 7 for what a response code means.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import ClassVar, TypeVar

import trio

from shaketable.system.client.connection import (
    Connection,
    DamagedResponseError,
    OutcomeUnknownError,
    RefusedError,
)
from shaketable.system.remoting.codes import RequestCode, ResponseCode, outcome_of
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.requests import (
    BatchMessage,
    ExpectedOffset,
    MemberRequest,
    MetadataResponse,
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffset,
    QueueOffsetRequest,
    QueueOffsetResponse,
    SendMessageResponse,
    SendMessageV2,
    UpdateConsumerOffset,
    encode_batch,
)
from shaketable.system.store.message import DamagedMessage, Message, walk_messages

# Results of client calls.


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of a send (of this client; the producer's is `producer.Sent`)."""

    message_id: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch send: ids in order, contiguous offsets from `first_offset` on."""

    message_ids: tuple[str, ...]
    queue_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class PullResult:
    """Messages from the requested offset on, perhaps none, and the queue's range."""

    messages: tuple[Message, ...]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """The state of one member (DLedger's METADATA, and more).

    Entries up to `committed_index` are committed and durable on it; its pulls see those up to
    `applied_index`. `addresses` pairs members with their DLedger "host:port", if the log has it.
    Entries below `first_index` are replaced by a snapshot. `wall_ms` (since 1970) and
    `monotonic_ms` are its clocks' readings, None if the member does not report them.
    """

    member: str
    role: str
    term: int
    leader: str | None
    committed_index: int
    end_index: int
    applied_index: int = -1
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
    membership_index: int = -1
    first_index: int = 0
    snapshot_index: int = -1
    wall_ms: int | None = None
    monotonic_ms: int | None = None


def metadata_from(fields: MetadataResponse) -> Metadata:
    """Return the response's fields, with its lists parsed."""
    pairs = [pair.partition("-") for pair in _listed(fields.peers)]
    return Metadata(
        fields.self_id,
        fields.role,
        fields.term,
        fields.leader_id or None,
        fields.committed_index,
        fields.ledger_end_index,
        fields.applied_index,
        _listed(fields.voters),
        _listed(fields.learners),
        tuple((member, address) for member, _, address in pairs),
        fields.membership_index,
        fields.begin_index,
        fields.snapshot_index,
        fields.wall_ms,
        fields.monotonic_ms,
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(";") if part)


CONNECT_TIMEOUT_S = 1.0
RETRY_AFTER_MIN_S = 0.02
RETRY_AFTER_MAX_S = 0.1
ATTEMPT_MIN_S = 0.5
"""After a refusal, do not retry with less time left than this."""
PULL_BYTES_MAX = 256 * 1024
UNREACHABLE = -1
"""The code of a RefusedError for a request that was never sent."""
_PERMANENT_REFUSALS = frozenset(
    (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.QUEUE_END_MOVED,
    )
)
"""Every member would refuse again, until the state that the request is about changes."""

Result = TypeVar("Result")


class BrokerGroupClient:
    """Sends requests to the group's leader.

    `addresses` maps member ids to (host, port) for clients; `learn` adds to them. A call takes at
    most `timeout_s`. Until then a temporary refusal (not the leader, not ready, too busy) is
    retried with another member. A request of unknown outcome is never retried, since it might
    take effect twice. `answered_by` is the member that answered last.
    """

    connection_type: ClassVar[type[Connection]] = Connection

    def __init__(
        self, addresses: Mapping[str, tuple[str, int]], *, timeout_s: float = 3.0, rng: Random
    ) -> None:
        self._addresses = dict(addresses)
        self._timeout_s = timeout_s
        self._rng = rng
        self._connections: dict[str, Connection] = {}
        self._target = rng.choice(sorted(self._addresses))
        self.answered_by: str | None = None

    @property
    def timeout_s(self) -> float:
        """How long a call may take."""
        return self._timeout_s

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

    async def send_at(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        expected_offset: int,
        *,
        properties: str = "",
        group: str = "client",
    ) -> SendResult:
        """Append a message to a queue if it gets `expected_offset`: compare-and-set on a log.

        Raises RefusedError (certainly not stored; code QUEUE_END_MOVED if the queue's next message
        gets another offset), OutcomeUnknownError.
        """
        fields = SendMessageV2(group, topic, queue_id, properties=properties)
        ext = fields.to_ext() | ExpectedOffset(expected_offset).to_ext()

        async def attempt(connection: Connection, timeout_s: float) -> SendResult:
            request = Command(RequestCode.APPEND_AT, ext=dict(ext), body=body)
            response = SendMessageResponse.from_ext(
                (await _call(connection, request, timeout_s)).ext
            )
            return SendResult(response.msg_id, response.queue_id, response.queue_offset)

        return await self._at_leader(attempt)

    async def send_batch(
        self,
        topic: str,
        queue_id: int,
        messages: Sequence[bytes | BatchMessage],
        *,
        group: str = "client",
    ) -> BatchResult:
        """Append messages to one queue, one after the other: all of them or none.

        Raises as `send` does, CommandError if a message does not fit the wire format.
        """
        batch = [m if isinstance(m, BatchMessage) else BatchMessage(m) for m in messages]
        body = encode_batch(batch)
        fields = SendMessageV2(group, topic, queue_id, batch=True)

        async def attempt(connection: Connection, timeout_s: float) -> BatchResult:
            request = Command(RequestCode.SEND_BATCH_MESSAGE, ext=fields.to_ext(), body=body)
            answer = await _call(connection, request, timeout_s)
            response = SendMessageResponse.from_ext(answer.ext)
            ids = tuple(response.msg_id.split(","))
            if len(ids) != len(batch):
                raise CommandError(f"{len(ids)} message ids for {len(batch)} messages")
            return BatchResult(ids, response.queue_id, response.queue_offset)

        return await self._at_leader(attempt)

    async def pull(
        self, topic: str, queue_id: int, offset: int, *, count_max: int = 32, group: str = "client"
    ) -> PullResult:
        """Read committed messages from `offset` on, linearizably.

        If `offset` is below the queue's min offset, there are no messages and `next_offset` is
        the min offset. Raises RefusedError, OutcomeUnknownError, DamagedResponseError.
        """
        fields = PullMessage(
            group, topic, queue_id, offset, count_max, max_msg_bytes=PULL_BYTES_MAX
        )

        async def attempt(connection: Connection, timeout_s: float) -> PullResult:
            return await _pull(connection, RequestCode.PULL_MESSAGE, fields, timeout_s)

        return await self._at_leader(attempt)

    async def pull_from(
        self,
        member: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int = 32,
        group: str = "client",
    ) -> PullResult:
        """Read committed messages from one member, leader or not.

        The result may be stale: not linearizable. Raises as `pull` does.
        """
        fields = PullMessage(
            group, topic, queue_id, offset, count_max, max_msg_bytes=PULL_BYTES_MAX
        )

        async def attempt(connection: Connection, timeout_s: float) -> PullResult:
            return await _pull(connection, RequestCode.PULL_COMMITTED, fields, timeout_s)

        return await self._at(member, attempt)

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the queue's next message, linearizably. Raises as `pull` does."""
        return await self._offset(RequestCode.GET_MAX_OFFSET, topic, queue_id)

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the lowest offset that the leader retains. Raises as `pull` does."""
        return await self._offset(RequestCode.GET_MIN_OFFSET, topic, queue_id)

    async def metadata(self, member: str) -> Metadata:
        """Ask one member for its own state. Raises as `pull` does."""

        async def attempt(connection: Connection, timeout_s: float) -> Metadata:
            request = Command(RequestCode.DLEDGER_METADATA)
            answer = await _call(connection, request, timeout_s)
            return metadata_from(MetadataResponse.from_ext(answer.ext))

        return await self._at(member, attempt)

    async def transfer_leadership(self, member: str) -> None:
        """Transfer the leadership to a voter; returns once it leads.

        Raises RefusedError (the transfer was not started) or OutcomeUnknownError (it may still
        take the leadership).
        """
        await self.ask_leader(RequestCode.TRANSFER_LEADERSHIP, MemberRequest(member).to_ext())

    async def ask_leader(self, code: RequestCode, ext: dict[str, str]) -> dict[str, str]:
        """Send any request without a body to the leader; return the response's ext fields.

        Raises as `pull` does.
        """

        async def attempt(connection: Connection, timeout_s: float) -> dict[str, str]:
            return (await _call(connection, Command(code, ext=dict(ext)), timeout_s)).ext

        return await self._at_leader(attempt)

    @property
    def members(self) -> tuple[str, ...]:
        """The members whose client address is known, sorted."""
        return tuple(sorted(self._addresses))

    def learn(self, member: str, host: str, port: int) -> None:
        """Add a member's client address, or replace it."""
        if self._addresses.get(member) != (host, port):
            self._drop(member)
            self._addresses[member] = (host, port)

    def forget(self, member: str) -> None:
        """Stop using a member that has left the group. The last known member is kept."""
        if member in self._addresses and len(self._addresses) > 1:
            self._drop(member)
            del self._addresses[member]
            if self._target == member:
                self._retarget(member, None)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _offset(self, code: RequestCode, topic: str, queue_id: int) -> int:
        fields = QueueOffsetRequest(topic, queue_id)

        async def attempt(connection: Connection, timeout_s: float) -> int:
            answer = await _call(connection, Command(code, ext=fields.to_ext()), timeout_s)
            return QueueOffsetResponse.from_ext(answer.ext).offset

        return await self._at_leader(attempt)

    async def _at(
        self, member: str, attempt: Callable[[Connection, float], Awaitable[Result]]
    ) -> Result:
        """Try one member, once."""
        deadline_s = trio.current_time() + self._timeout_s
        connection = await self._connection(member, self._timeout_s)
        try:
            return await attempt(connection, deadline_s - trio.current_time())
        except (CommandError, DamagedMessage) as error:
            raise DamagedResponseError(f"{member} sent a bad response: {error}") from None

    async def _at_leader(self, attempt: Callable[[Connection, float], Awaitable[Result]]) -> Result:
        deadline_s = trio.current_time() + self._timeout_s
        while True:
            member = self._target
            try:
                connection = await self._connection(member, deadline_s - trio.current_time())
                result = await attempt(connection, deadline_s - trio.current_time())
            except RefusedError as error:
                if error.code in _PERMANENT_REFUSALS:
                    raise
                self._retarget(member, error.leader)
                pause_s = self._rng.uniform(RETRY_AFTER_MIN_S, RETRY_AFTER_MAX_S)
                if trio.current_time() + pause_s + ATTEMPT_MIN_S >= deadline_s:
                    raise  # definite; another attempt would likely time out with unknown outcome
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
        """Continue with the named leader, else with another random member."""
        if leader in self._addresses and leader != member:
            self._target = leader
        else:
            others = [name for name in sorted(self._addresses) if name != member]
            self._target = self._rng.choice(others or [member])

    async def _connection(self, member: str, timeout_s: float) -> Connection:
        connection = self._connections.get(member)
        if connection is not None and connection.is_open:
            return connection
        if member not in self._addresses:
            raise RefusedError(UNREACHABLE, f"no client address of {member} is known")
        host, port = self._addresses[member]
        try:
            connection = await self.connection_type.open(
                host, port, min(timeout_s, CONNECT_TIMEOUT_S)
            )
        except OSError as error:
            raise RefusedError(UNREACHABLE, f"{member} cannot be reached: {error}") from None
        other = self._connections.get(member)
        if other is not None and other.is_open:  # another task connected meanwhile
            connection.close()
            return other
        self._connections[member] = connection
        return connection

    def _drop(self, member: str) -> None:
        connection = self._connections.pop(member, None)
        if connection is not None:
            connection.close()


async def _pull(
    connection: Connection, code: RequestCode, fields: PullMessage, timeout_s: float
) -> PullResult:
    answer = await _call(connection, Command(code, ext=fields.to_ext()), timeout_s)
    response = PullMessageResponse.from_ext(answer.ext)
    return PullResult(
        tuple(walk_messages(answer.body)),
        response.next_begin_offset,
        response.min_offset,
        response.max_offset,
    )


async def _call(connection: Connection, request: Command, timeout_s: float) -> Command:
    """Call, and raise unless the response's code means success."""
    answer = await connection.call(request, timeout_s)
    outcome = outcome_of(answer.code)
    if outcome == "ok":
        return answer
    remark = answer.remark or ""
    if outcome == "fail":
        raise RefusedError(answer.code, remark, answer.ext.get("leaderId") or None)
    raise OutcomeUnknownError(f"code {answer.code}: {remark}")


# Commits and fetches a consumer group's offsets at the leader of one broker group.
#
# For clients that know the group's members; `PullConsumer` finds brokers through name servers.
#
# Source: RocketMQ's RemoteBrokerOffsetStore.


async def commit_offset(
    client: BrokerGroupClient, group: str, topic: str, queue_id: int, offset: int
) -> None:
    """Commit a consumer group's offset in a queue.

    Raises RefusedError (certainly not committed), OutcomeUnknownError.
    """
    fields = UpdateConsumerOffset(group, topic, queue_id, offset)
    await client.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, fields.to_ext())


async def committed_offset(
    client: BrokerGroupClient, group: str, topic: str, queue_id: int
) -> int | None:
    """Return a consumer group's committed offset in a queue, linearizably; None if it has none.

    Raises RefusedError, OutcomeUnknownError, DamagedResponseError.
    """
    fields = QueryConsumerOffset(group, topic, queue_id, set_zero_if_not_found=False)
    ext = await client.ask_leader(RequestCode.QUERY_CONSUMER_OFFSET, fields.to_ext())
    # The response has no fields if nothing was committed.
    return QueueOffsetResponse.from_ext(ext).offset if "offset" in ext else None


# Administration of a broker group: leadership transfer and membership changes.
#
# To replace a member, add the new one as a learner, wait until it votes, then remove the old one.
# Source: RocketMQ's DefaultMQAdminExt for the style of the API; Ongaro's dissertation section 4.

POLL_INTERVAL_S = 0.05
CATCH_UP_TIMEOUT_S = 60.0

ClientAddress = tuple[str, int]
"""Host and port for clients."""


class AdminTimeoutError(Exception):
    """The awaited change did not happen in time. It still may: check `membership`."""


class AdminClient:
    """Requests changes of a group from its leader, through a client that finds the leader.

    Every request raises RefusedError (nothing changed, and why) or OutcomeUnknownError (it
    may have taken effect, or may still do so).
    """

    def __init__(self, client: BrokerGroupClient) -> None:
        self.client = client

    async def membership(self) -> Metadata:
        """Return the leader's view of the group; during an election, wait for the next leader.

        Raises RefusedError if no member leads within the client's timeout.
        """
        deadline_s = trio.current_time() + self.client.timeout_s
        while True:
            answers = await self._ask_all()
            leader = _leader_among(answers, is_sure=False)
            if leader is not None:
                return leader
            if trio.current_time() + POLL_INTERVAL_S >= deadline_s:
                break
            await trio.sleep(POLL_INTERVAL_S)
        answered_members = ", ".join(sorted(answers)) or "none"
        raise RefusedError(
            UNREACHABLE, f"no member reports that it leads; answers: {answered_members}"
        )

    async def _ask_all(self) -> dict[str, Metadata]:
        """Ask every member for its state, until the current leader is certain."""
        answers: dict[str, Metadata] = {}

        async def ask(member: str, scope: trio.CancelScope) -> None:
            with suppress(RefusedError, OutcomeUnknownError):
                answers[member] = await self.client.metadata(member)
            if _leader_among(answers, is_sure=True) is not None:
                scope.cancel()  # do not wait for a member that hangs

        async with trio.open_nursery() as nursery:
            for member in self.client.members:
                nursery.start_soon(ask, member, nursery.cancel_scope)
        return answers

    async def transfer_leadership(self, member: str) -> None:
        """Transfer the leadership to a voter; returns once it leads."""
        await self.client.transfer_leadership(member)

    async def add_member(
        self, member: str, address: str, client_address: ClientAddress | None = None
    ) -> None:
        """Add a member by its DLedger "host:port"; returns once that is committed.

        It joins as a learner and is promoted to a voter once it has caught up (see
        `wait_until_voter`). Given its `client_address`, this client may send it requests.
        """
        await self._ask(RequestCode.ADD_MEMBER, MemberRequest(member, address))
        if client_address is not None:
            self.client.learn(member, *client_address)

    async def remove_member(self, member: str) -> None:
        """Remove a member from the group for good; returns once that is committed.

        A leader that is removed leads until then. Stop the member's process afterwards.
        """
        await self._ask(RequestCode.REMOVE_MEMBER, MemberRequest(member))
        self.client.forget(member)

    async def replace_member(
        self,
        old: str,
        new: str,
        address: str,
        client_address: ClientAddress | None = None,
        *,
        timeout_s: float = CATCH_UP_TIMEOUT_S,
    ) -> None:
        """Add `new`, wait until it votes, then remove `old`: never fewer voters than before.

        Raises as the three steps do; steps that are done are not undone.
        """
        await self.add_member(new, address, client_address)
        await self.wait_until_voter(new, timeout_s)
        await self.remove_member(old)

    async def wait_until_voter(self, member: str, timeout_s: float = CATCH_UP_TIMEOUT_S) -> None:
        """Wait until a member is a voter and the next change may follow. Raises AdminTimeoutError.

        Its promotion is committed then; before that, a new leader might still lose it.
        """
        await self._wait(
            lambda group: (
                member in group.voters and group.membership_index <= group.committed_index
            ),
            timeout_s,
            f"{member} did not become a voter",
        )

    async def _wait(
        self, condition: Callable[[Metadata], bool], timeout_s: float, failure: str
    ) -> None:
        last_seen = "no leader answered"
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    group = await self.membership()
                except (RefusedError, OutcomeUnknownError) as error:
                    last_seen = str(error)
                else:
                    if condition(group):
                        return
                    last_seen = f"voters {group.voters}, learners {group.learners}"
                await trio.sleep(POLL_INTERVAL_S)
        raise AdminTimeoutError(f"{failure} within {timeout_s:g} s: {last_seen}")

    async def _ask(self, code: RequestCode, request: MemberRequest) -> None:
        await self.client.ask_leader(code, request.to_ext())


def _leader_among(answers: Mapping[str, Metadata], *, is_sure: bool) -> Metadata | None:
    """Return the leader of the highest term.

    With `is_sure`, only if a majority of its voters answered without a higher term.
    """
    leaders = [answer for answer in answers.values() if answer.role == "leader"]
    leader = max(leaders, key=lambda answer: answer.term, default=None)
    if leader is None or not is_sure:
        return leader
    agreeing = sum(
        answers[voter].term <= leader.term for voter in leader.voters if voter in answers
    )
    return leader if agreeing > len(leader.voters) // 2 else None

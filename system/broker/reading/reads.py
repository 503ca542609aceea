"""Serves pulls and queries: linearizable at the leader, from committed entries elsewhere.

A linearizable read waits for the core's read index round, then until every entry is applied that
was committed when the round was confirmed. A pull that finds nothing may then be held. Its answer
is still linearizable: committed messages stay, so it was true at some time between the pull's
arrival and the answer.

A member that does not lead answers pulls if slaveReadEnable is set, and queries for single
messages always, as RocketMQ's slaves do: from what it knows to be committed. It refuses other
pulls with PULL_RETRY_IMMEDIATELY (4.9.8), after a short hold if the consumer allows one, since
the consumer would pull again at once. A new leader does the same until it has applied every entry
before its term: it does not know yet which topics may be read.
Source: RocketMQ's PullMessageProcessor, QueryMessageProcessor, AdminBrokerProcessor; Ongaro's
dissertation section 6.4 (read index); DESIGN.md decision 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from shaketable.system.broker.core import Core
from shaketable.system.broker.effects import NOT_APPLIED, Connection, Outbox
from shaketable.system.broker.groups.consumer_groups import ConsumerGroups
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reading.pulls import (
    SUBSCRIPTION_FLAG,
    SUSPEND_FLAG,
    GetMessageResult,
    HeldPulls,
    SubscriptionError,
    TagFilter,
    follower_result,
    pull,
    suggested_broker_id,
    tag_filter,
)
from shaketable.system.broker.reading.queries import (
    ANY_MEMBER_CODES,
    QUERY_CODES,
    Query,
    answer_query,
    parse_query,
)
from shaketable.system.broker.reput import Reput
from shaketable.system.broker.topic_tables.topic_rules import Topics
from shaketable.system.raft.protocol import NotLeaderError, Role, Token, TooManyReadsError
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import PullMessage

PULL_CODES = frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
READ_CODES = PULL_CODES | QUERY_CODES
_NO_OFFSET = 1 << 63
"""After every message: no message ends the hold of a pull that is not answered here."""


@dataclass(frozen=True, slots=True)
class Read:
    """A pending pull or query, and the core's token for it. `number` identifies it.

    `hold_ms` is how long a pull may be held if it finds nothing, from `received_ms` on. A held pull
    `is_confirmed` if a read index round has confirmed that this member leads.
    """

    number: int
    connection: Connection
    command: Command = field(compare=False)
    request: PullMessage | Query = field(compare=False)
    tags: TagFilter | None = field(default=None, compare=False)
    hold_ms: float = field(default=0.0, compare=False)
    received_ms: float = field(default=0.0, compare=False)
    is_confirmed: bool = field(default=False, compare=False)


class Reads:
    """The reads that are not answered yet."""

    held_type: ClassVar[type[HeldPulls[Read]]] = HeldPulls

    def __init__(
        self,
        core: Core,
        reput: Reput,
        outbox: Outbox,
        config: BrokerConfig,
        groups: ConsumerGroups,
        topics: Topics,
        any_member_codes: frozenset[RequestCode] = ANY_MEMBER_CODES,
    ) -> None:
        self._core = core
        self._groups = groups
        self._topics = topics
        self._reput = reput
        self._outbox = outbox
        self._config = config
        self._any_member_codes = any_member_codes
        self._count = 0
        self._confirmed: deque[tuple[int, Read]] = deque()  # (index to be applied, read)
        self._held = self.held_type(config.pulls_held_max, config.filtered_units_max)
        self._hold_context = (reput.queues, topics.is_ready)

    @property
    def held_count(self) -> int:
        """How many pulls wait for messages."""
        return len(self._held)

    def submit(self, connection: Connection, command: Command, now_ms: float) -> None:
        """Start a read of a topic that was checked. Raises CommandError for an illegal request."""
        try:
            read = self._read(connection, command, now_ms)
        except SubscriptionError as error:
            code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
            self._outbox.refuse(connection, command, code, str(error))
            return
        self._start(read, now_ms)

    def serve_committed(self, connection: Connection, command: Command) -> None:
        """Answer a pull at once from the applied state, leader or not. Raises CommandError."""
        request = PullMessage.from_ext(_without_body(command).ext)
        read = Read(0, connection, command, request)
        if self._is_state_installed(read):
            self._answer(read, pull(self._reput.queues, self._config, request, _queue(request)))

    def confirm(self, ready: Sequence[Token], refused: Sequence[Token], index: int) -> None:
        """Handle the core's answers: `ready` reads may be served once `index` is applied."""
        for token in refused:
            assert isinstance(token, Read)
            self._start_on_follower(token)
        for token in ready:
            assert isinstance(token, Read)
            self._confirmed.append((index, token))

    def serve(self, now_ms: float) -> None:
        """Answer the confirmed reads for which enough is applied, and the held pulls due."""
        while self._confirmed and self._confirmed[0][0] <= self._reput.applied_index:
            self._serve(self._confirmed.popleft()[1], is_confirmed=True)
        queues, held = self._reput.queues, self._held
        hold_context = (queues, self._topics.is_ready)
        if hold_context != self._hold_context:  # leadership changed, or a snapshot was installed
            for read in held.take_all(self._hold_context[0]):
                self._restart(read, now_ms)
            self._hold_context = hold_context
        if not held:
            return
        for read in (*held.take_arrived(queues), *held.take_due(queues, now_ms)):
            if read.is_confirmed or self._config.slave_read_enable:
                self._serve(read, is_confirmed=read.is_confirmed)
            else:
                self._start(read, now_ms)

    def drop(self, connection: Connection) -> None:
        """Drop the held pulls of a connection that closed."""
        self._held.drop(connection, self._hold_context[0])

    # ---- starting ---------------------------------------------------------------------

    def _start(self, read: Read, now_ms: float) -> None:
        if isinstance(read.request, PullMessage) and not self._topics.is_ready:
            # A read index would confirm a new leader, but its table of topics is still an old one.
            if self._core.role is Role.LEADER:  # clients take its answers for the group's
                self._refuse_pull(read, read.request)
            else:
                self._start_on_follower(read)
            return
        if len(self._confirmed) >= self._config.reads_held_max:
            self._refuse_busy(read, f"{len(self._confirmed)} reads wait for entries to be applied")
            return
        try:
            self._core.read(read, now_ms)
        except NotLeaderError:
            self._start_on_follower(read)
        except TooManyReadsError as error:
            self._refuse_busy(read, str(error))

    def _restart(self, read: Read, now_ms: float) -> None:
        """Start a held pull again. It may have arrived before this member led: check its topic."""
        request = read.request
        if (
            isinstance(request, PullMessage)
            and self._topics.is_ready
            and (refusal := self._topics.pull_refusal(request.topic, request.queue_id))
        ):
            self._outbox.refuse(read.connection, read.command, *refusal)
        else:
            self._start(read, now_ms)

    def _start_on_follower(self, read: Read) -> None:
        code = read.command.code
        may_serve = code in self._any_member_codes
        if code in PULL_CODES:
            may_serve = self._config.slave_read_enable
        if may_serve:
            if self._is_state_installed(read):
                self._serve(read, is_confirmed=False)
        elif isinstance(read.request, PullMessage):
            self._refuse_pull(read, read.request)
        else:
            self._outbox.refuse_not_leader(read.connection, read.command)

    def _read(self, connection: Connection, command: Command, now_ms: float) -> Read:
        """Parse a command. Raises CommandError, SubscriptionError."""
        self._count += 1
        if command.code not in PULL_CODES:
            request = parse_query(command)
            return Read(self._count, connection, _without_body(command), request)
        fields = PullMessage.from_ext(command.ext)
        tags = self._tags(fields)
        hold_ms = 0.0
        if fields.sys_flag & SUSPEND_FLAG:
            config = self._config
            suspend_ms = fields.suspend_timeout_millis if config.long_polling else None
            hold_ms = config.short_polling_ms if suspend_ms is None else suspend_ms
            hold_ms = max(0.0, min(hold_ms, config.pull_hold_ms_max))
        command = _without_body(command)
        return Read(self._count, connection, command, fields, tags, hold_ms, now_ms)

    def _tags(self, fields: PullMessage) -> TagFilter | None:
        """Return a pull's filter: from its own subscription, else from the group's heartbeats.

        None (every message) if no heartbeat has this subscription version yet. RocketMQ refuses
        such a pull; its clients compare the tags themselves in any case.
        Raises SubscriptionError.
        """
        if fields.sys_flag & SUBSCRIPTION_FLAG:
            return tag_filter(fields.subscription, fields.expression_type)
        group = self._groups.get(fields.consumer_group)
        known = group.subscriptions.get(fields.topic) if group else None
        if known is None or known.version < fields.sub_version:
            return tag_filter(None, fields.expression_type)
        return tag_filter(known.expression, known.expression_type)

    def _is_state_installed(self, read: Read) -> bool:
        """Return whether the applied state belongs to the current log; refuse the read if not."""
        if self._reput.applied_index >= self._core.log.start.index:
            return True
        # A snapshot has replaced the log, but not the applied state yet.
        self._refuse_busy(read, "a snapshot is being put in place")
        return False

    # ---- answering --------------------------------------------------------------------

    def _serve(self, read: Read, *, is_confirmed: bool) -> None:
        if isinstance(read.request, PullMessage):
            self._serve_pull(read, read.request, is_confirmed=is_confirmed)
            return
        found = answer_query(self._reput, self._core.log, self._config, read.request)
        self._outbox.answer(
            read.connection, read.command, found.code, found.remark, found.ext, found.body
        )

    def _serve_pull(self, read: Read, request: PullMessage, *, is_confirmed: bool) -> None:
        """Answer a pull, or hold it if it finds nothing and may be held."""
        queue, config = _queue(request), self._config
        result = pull(self._reput.queues, config, request, queue, read.tags)
        hold_ms = read.hold_ms if result.code == ResponseCode.PULL_NOT_FOUND else 0.0
        if not is_confirmed and result.code == ResponseCode.PULL_OFFSET_MOVED:
            result = follower_result(result, request)
            hold_ms = min(read.hold_ms, config.refused_pull_hold_ms)
        if hold_ms > 0:
            self._hold(read, request.queue_offset, hold_ms, is_confirmed=is_confirmed)
        else:
            self._answer(read, result)

    def _hold(self, read: Read, offset: int, hold_ms: float, *, is_confirmed: bool) -> None:
        """Hold a pull until a message arrives at `offset`; refuse it if too many are held."""
        assert isinstance(read.request, PullMessage)
        if self._held.is_full:
            self._refuse_busy(read, f"{self._config.pulls_held_max} pulls are held already")
            return
        held = replace(read, hold_ms=0.0, is_confirmed=is_confirmed)
        due_ms = read.received_ms + hold_ms
        queue = _queue(read.request)
        self._held.hold(held, self._hold_context[0], queue, offset, read.tags, due_ms)

    def _answer(self, read: Read, result: GetMessageResult) -> None:
        log = self._core.log
        ext = result.fields(suggested_broker_id(result, log.end_position, self._config))
        body = result.body(log)
        self._outbox.answer(read.connection, read.command, result.code, None, ext, body)

    def _refuse_pull(self, read: Read, request: PullMessage) -> None:
        """Refuse a consumer's pull and name the leader; the consumer keeps its offset."""
        if read.hold_ms > 0:
            hold_ms = min(read.hold_ms, self._config.refused_pull_hold_ms)
            self._hold(read, _NO_OFFSET, hold_ms, is_confirmed=False)
            return
        leader = self._core.leader or ""
        remark = f"[404] not the leader, and slaveReadEnable=false; leaderId={leader}"
        if leader == self._core.member:
            remark = NOT_APPLIED
        result = GetMessageResult(
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            request.queue_offset,
            self._reput.queues.min_offset(_queue(request)),
            self._reput.queues.max_offset(_queue(request)),
            [],
        )
        ext = {**result.fields(), "leaderId": leader}
        self._outbox.answer(read.connection, read.command, result.code, remark, ext)

    def _refuse_busy(self, read: Read, why: str) -> None:
        code = ResponseCode.SYSTEM_BUSY
        self._outbox.refuse(read.connection, read.command, code, f"[503] {why}")


def _queue(request: PullMessage) -> tuple[bytes, int]:
    return request.topic.encode(), request.queue_id


def _without_body(command: Command) -> Command:
    """Drop a command's body, since a command that is kept must not pin its frame's buffer."""
    command.body = b""
    return command

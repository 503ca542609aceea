"""The broker of a DLedger group: serves clients from the replicated log.

Requests and messages of other members go in, replies and the core's effects come out
(`take`). A send is answered when its entry is acknowledged by the group, a pull and a
max-offset query when the read index proves that this member still leads.

Source: RocketMQ's SendMessageProcessor, PullMessageProcessor, AdminBrokerProcessor and
DLedgerCommitLog; response codes as in DLEDGER.md A.2 and DESIGN.md decision 7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from system.broker.consume_queue import ConsumeQueues, Queue
from system.broker.limits import EVENT_TOPIC, BrokerConfig
from system.broker.pull import pull
from system.raft.core import RaftCore
from system.raft.protocol import (
    Effects,
    Message,
    NotLeaderError,
    Role,
    RoleChange,
    TooManyReadsError,
    Write,
)
from system.remoting.codes import RequestCode, ResponseCode
from system.remoting.command import Command, CommandError
from system.remoting.frame import SerializeType
from system.remoting.requests import (
    PullMessage,
    QueueOffsetRequest,
    QueueOffsetResponse,
    SendMessageV2,
    SendRequest,
)
from system.remoting.responses import response, send_response
from system.store.entry import EntryTooLarge, iter_messages
from system.store.entry_builder import EntryBuilder
from system.store.message import offset_message_id

Connection = int
"""Names a client's connection; the shell's business."""


@dataclass(slots=True)
class BrokerEffects:
    """Work for the shell, in the order of `system.raft.protocol.Effects`."""

    writes: list[Write] = field(default_factory=list)
    write_seq: int = 0
    messages: list[tuple[str, Message]] = field(default_factory=list)
    replies: dict[Connection, list[bytes]] = field(default_factory=dict)
    role_changes: list[RoleChange] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _PendingSend:
    """A send that waits for its acknowledgement."""

    index: int
    due_ms: float
    connection: Connection
    opaque: int
    serialize_type: int
    reply: bytes


@dataclass(frozen=True, slots=True)
class _Read:
    """A pull or an offset query that waits for its read round: the core's token."""

    number: int
    connection: Connection
    opaque: int
    serialize_type: int
    request: PullMessage | QueueOffsetRequest = field(compare=False)


class Broker:
    """One member's broker around its core. Pure: time is given with each input.

    `applied_to` is the committed index of the checkpoint, -1 without one.
    """

    def __init__(self, core: RaftCore, config: BrokerConfig, *, applied_to: int = -1) -> None:
        self.core = core
        self.queues = ConsumeQueues()
        self._config = config
        self._applied_index = -1
        self._pending: deque[_PendingSend] = deque()
        self._next_offset: dict[Queue, int] = {}
        self._builder: EntryBuilder | None = None
        self._reads = 0
        self._replies: dict[Connection, list[bytes]] = {}
        # What a checkpoint says was committed is committed still.
        core.ledger.commit(applied_to)
        self._apply_to(applied_to)

    # ---- inputs -----------------------------------------------------------------------

    def handle(
        self,
        connection: Connection,
        born_host: bytes,
        requests: Sequence[SendRequest | Command],
        now_ms: float,
        wall_ms: int,
    ) -> None:
        """Take all requests that one read of a connection brought, in order."""
        # A send's offset is its queue's end: first apply what was committed since `take`.
        self._apply_to(self.core.ledger.commit_index)
        for request in requests:
            try:
                if isinstance(request, SendRequest):
                    self._send(connection, born_host, request, now_ms, wall_ms)
                else:
                    self._command(connection, request, now_ms)
            except CommandError as error:
                self._refuse(connection, request, ResponseCode.MESSAGE_ILLEGAL, str(error))
        self._append_built(now_ms)

    def receive(self, message: Message, now_ms: float) -> None:
        """Take a message of another member."""
        self.core.receive(message, now_ms)

    def tick(self, now_ms: float) -> None:
        """Let time pass; sends that were not acknowledged in time are answered "unknown"."""
        self.core.tick(now_ms)
        while self._pending and self._pending[0].due_ms <= now_ms:
            self._answer_unknown(self._pending.popleft(), "[502] no quorum acknowledged in time")

    def synced(self, write_seq: int) -> None:
        """Writes up to `write_seq` are durable."""
        self.core.synced(write_seq)

    def gone(self, connection: Connection) -> None:
        """A client's connection closed: nobody waits for its replies any more."""
        self._replies.pop(connection, None)

    def take(self, now_ms: float, wall_ms: int) -> BrokerEffects:
        """Return what is to be done, answers to clients among it."""
        if self.core.needs_term_start:
            self._start_term(now_ms, wall_ms)
        effects = self.core.take()
        for change in effects.role_changes:
            if change.role is not Role.LEADER:
                self._leave_leadership()
        self._apply_to(effects.commit_index)
        self._acknowledge(effects.acknowledged_index)
        self._serve_reads(effects)
        replies, self._replies = self._replies, {}
        return BrokerEffects(
            effects.writes, effects.write_seq, effects.messages, replies, effects.role_changes
        )

    # ---- sends ------------------------------------------------------------------------

    def _send(
        self,
        connection: Connection,
        born_host: bytes,
        request: SendRequest,
        now_ms: float,
        wall_ms: int,
    ) -> None:
        if not self.core.is_ready:
            self._refuse_not_leader(connection, request)
            return
        if len(self._pending) >= self._config.pending_sends_max:
            self._refuse(connection, request, ResponseCode.SYSTEM_BUSY, "[503] too many pending")
            return
        fields = request.fields
        topic = fields.topic.encode()
        properties = fields.properties.encode()
        self._check_send(fields, topic, properties, len(request.body))
        queue = (topic, fields.queue_id)
        offset = self._next_offset.get(queue)
        if offset is None:
            offset = self.queues.end(queue)
        if self._builder is None:
            self._builder = self._new_builder()
        try:
            position = self._builder.add(
                topic,
                fields.queue_id,
                offset,
                request.body,
                properties,
                flag=fields.flag,
                sys_flag=fields.sys_flag,
                born_ms=fields.born_ms,
                born_host=born_host,
                store_ms=wall_ms,
                reconsume_times=fields.reconsume_times,
            )
        except EntryTooLarge as error:
            raise CommandError(str(error)) from None
        self._next_offset[queue] = offset + 1
        if request.is_oneway:
            return
        message_id = offset_message_id(self._config.store_host, position)
        reply = send_response(
            request.opaque, message_id, fields.queue_id, offset, request.serialize_type
        )
        self._pending.append(
            _PendingSend(
                self._builder.end.index,
                now_ms + self._config.ack_timeout_ms,
                connection,
                request.opaque,
                request.serialize_type,
                reply,
            )
        )

    def _check_send(
        self, fields: SendMessageV2, topic: bytes, properties: bytes, body_bytes: int
    ) -> None:
        """Raise CommandError for what RocketMQ calls an illegal message: nothing is appended."""
        config = self._config
        if not topic or len(topic) > config.topic_bytes_max:
            raise CommandError(
                f"topic of {len(topic)} bytes, 1..{config.topic_bytes_max} are legal"
            )
        if topic.startswith(b"RMQ_SYS_"):
            raise CommandError(f"topic {fields.topic} is reserved")
        if not 0 <= fields.queue_id < config.queues_per_topic:
            raise CommandError(
                f"queue {fields.queue_id} is not in 0..{config.queues_per_topic - 1}"
            )
        if body_bytes > config.message_bytes_max:
            raise CommandError(f"body of {body_bytes} bytes, at most {config.message_bytes_max}")
        if len(properties) > config.properties_bytes_max:
            raise CommandError(f"properties of {len(properties)} bytes, at most 32767")

    def _new_builder(self) -> EntryBuilder:
        config = self._config
        return EntryBuilder(
            self.core.log.end(), self.core.term, config.data_file_bytes, config.store_host
        )

    def _append_built(self, now_ms: float) -> None:
        if self._builder is not None and (batches := self._builder.take()):
            self.core.append(batches, now_ms)

    def _start_term(self, now_ms: float, wall_ms: int) -> None:
        """Append the new leader's own entry, by which older ones get committed."""
        self._next_offset.clear()
        self._builder = self._new_builder()
        self._builder.add(
            EVENT_TOPIC,
            0,
            self.core.log.term_count,
            f"{self.core.member} leads term {self.core.term}".encode(),
            b"TAGS\x01TERM_START\x02",
            store_ms=wall_ms,
            born_ms=wall_ms,
        )
        self._append_built(now_ms)

    def _leave_leadership(self) -> None:
        self._builder = None
        self._next_offset.clear()
        for pending in self._pending:
            self._answer_unknown(pending, "[501] the term changed before a quorum acknowledged")
        self._pending.clear()

    def _acknowledge(self, index: int) -> None:
        """Answer the sends that the group acknowledged (DLedger's QuorumAckChecker)."""
        while self._pending and self._pending[0].index <= index:
            pending = self._pending.popleft()
            self._reply(pending.connection, pending.reply)

    def _answer_unknown(self, pending: _PendingSend, why: str) -> None:
        reply = response(
            pending.opaque,
            ResponseCode.SYSTEM_ERROR,
            why,
            serialize_type=pending.serialize_type,
        )
        self._reply(pending.connection, reply)

    # ---- committed entries ------------------------------------------------------------

    def _apply_to(self, index: int) -> None:
        """Dispatch committed entries to their consume queues."""
        while self._applied_index < index:
            batches = self.core.log.batches_from(
                self._applied_index + 1, self._config.apply_bytes_max
            )
            for batch in batches:
                part = batch if batch.last_index <= index else batch.until(index)
                for _, _, position, size, topic, queue_id, offset in iter_messages(
                    part.data, part.position
                ):
                    self.queues.append((topic, queue_id), offset, position, size)
                self._applied_index = part.last_index
                if self._applied_index == index:
                    break

    # ---- reads ------------------------------------------------------------------------

    def _command(self, connection: Connection, command: Command, now_ms: float) -> None:
        if command.is_response:
            return
        request: PullMessage | QueueOffsetRequest
        if command.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            request = PullMessage.from_ext(command.ext)
        elif command.code == RequestCode.GET_MAX_OFFSET:
            request = QueueOffsetRequest.from_ext(command.ext)
        elif command.code == RequestCode.DLEDGER_METADATA:
            self._reply(connection, self._metadata(command))
            return
        else:
            self._refuse(
                connection,
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"request code {command.code} is not supported",
            )
            return
        self._reads += 1
        read = _Read(self._reads, connection, command.opaque, command.serialize_type, request)
        try:
            self.core.read(read, now_ms)
        except NotLeaderError:
            self._refuse_not_leader(connection, command)
        except TooManyReadsError as error:
            self._refuse(connection, command, ResponseCode.SYSTEM_BUSY, str(error))

    def _serve_reads(self, effects: Effects) -> None:
        for token in effects.reads_ready:
            assert isinstance(token, _Read)
            self._reply(token.connection, self._serve(token))
        for token in effects.reads_refused:
            assert isinstance(token, _Read)
            self._refuse_not_leader(token.connection, token)

    def _serve(self, read: _Read) -> bytes:
        queue = (read.request.topic.encode(), read.request.queue_id)
        if isinstance(read.request, QueueOffsetRequest):
            ext = QueueOffsetResponse(self.queues.end(queue)).to_ext()
            return response(read.opaque, 0, ext=ext, serialize_type=read.serialize_type)
        code, ext, body = pull(self.queues, self.core.log, self._config, read.request, queue)
        return response(read.opaque, code, None, ext, body, serialize_type=read.serialize_type)

    def _metadata(self, command: Command) -> bytes:
        """DLedger's METADATA and this member's state; what it calls committed is durable here."""
        core = self.core
        ext = {
            "selfId": core.member,
            "role": core.role.value,
            "term": str(core.term),
            "leaderId": core.leader or "",
            "committedIndex": str(core.ledger.checkpoint_index),
            "ledgerEndIndex": str(core.log.end_index),
        }
        return response(command.opaque, 0, ext=ext, serialize_type=command.serialize_type)

    # ---- replies ----------------------------------------------------------------------

    def _refuse_not_leader(
        self, connection: Connection, request: SendRequest | Command | _Read
    ) -> None:
        leader = self.core.leader
        if leader == self.core.member:
            remark = "[505] the leader's term start is not committed yet"
        else:
            remark = f"[404] not the leader; leaderId={leader or ''}"
        self._refuse(connection, request, ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def _refuse(
        self,
        connection: Connection,
        request: SendRequest | Command | _Read,
        code: ResponseCode,
        remark: str,
    ) -> None:
        if not isinstance(request, _Read) and request.is_oneway:
            return
        ext = {"leaderId": self.core.leader or ""}
        self._reply(
            connection,
            response(
                request.opaque,
                code,
                remark,
                ext,
                serialize_type=getattr(request, "serialize_type", SerializeType.JSON),
            ),
        )

    def _reply(self, connection: Connection, reply: bytes) -> None:
        self._replies.setdefault(connection, []).append(reply)

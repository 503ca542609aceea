"""A broker of a DLedger group: serves clients from the replicated log.

Client requests and messages from other members go in; replies and the core's effects come
out of `take`. A send is answered once a quorum has acknowledged its entry. A pull or an
offset query is answered once a read index confirms that this member still leads.

Source: RocketMQ's SendMessageProcessor, PullMessageProcessor, AdminBrokerProcessor and
DLedgerCommitLog; response codes as in DLEDGER.md A.2 and DESIGN.md decision 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from shaketable.system.broker.admin import ADMIN_CODES, Admin
from shaketable.system.broker.appender import Appender
from shaketable.system.broker.broker_state import encode_state, snapshot_ranges
from shaketable.system.broker.consume_queue import ConsumeQueues, UnitReader
from shaketable.system.broker.core import Core, Dispatch
from shaketable.system.broker.deliveries import DelayDelivery
from shaketable.system.broker.effects import BrokerEffects, Connection, Outbox
from shaketable.system.broker.groups.group_requests import GroupRequests
from shaketable.system.broker.limits import BrokerConfig, DataFile, expired_end
from shaketable.system.broker.mode import DLEDGER, Mode
from shaketable.system.broker.reading.key_items import KeyReader
from shaketable.system.broker.reading.reads import READ_CODES, Reads
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.broker.sends import ConditionalSends, Sends, batch_request
from shaketable.system.broker.topic_tables.topics import TopicConfig
from shaketable.system.raft.protocol import LogEnd, Message, Role, Snapshot
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.requests import SendRequest
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint

__all__ = ["Broker", "BrokerEffects", "Connection"]


class Broker:
    """One member's broker around its core. Pure: every input carries the time.

    Args:
        core: keeps the log.
        config: the broker's limits.
        applied_to: committed index from DLedger's checkpoint file, -1 without one. A committed
            entry stays committed, so `take` applies up to it, in bounded steps.
        checkpoint: the broker's own checkpoint, as loaded.
        reader: reads the consume queue units that the checkpoint saved.
        key_reader: reads the key index that the checkpoint saved.
        plain_log: iterates over the messages of a plain commit log (`plain_dispatches`). They
            count as committed, and are applied before the log's first entry unless the
            checkpoint includes them.
        mode: the parts that depend on how the log is kept.
    """

    groups_type: ClassVar[type[GroupRequests]] = GroupRequests
    sends_type: ClassVar[type[Sends]] = Sends
    conditional_type: ClassVar[type[ConditionalSends]] = ConditionalSends
    reads_type: ClassVar[type[Reads]] = Reads
    delays_type: ClassVar[type[DelayDelivery]] = DelayDelivery

    def __init__(
        self,
        core: Core,
        config: BrokerConfig,
        *,
        applied_to: int = -1,
        checkpoint: BrokerCheckpoint | None = None,
        reader: UnitReader | None = None,
        key_reader: KeyReader | None = None,
        plain_log: Callable[[], Iterable[Dispatch]] | None = None,
        mode: Mode = DLEDGER,
    ) -> None:
        self.core = core
        self._config = config
        self._reput = mode.reput(
            core.ledger,
            config,
            checkpoint,
            reader,
            key_reader,
            plain_log,
            log_format=mode.format,
        )
        self._outbox = Outbox(core, mode.not_leader)
        self._appender = Appender(core, self._reput, config, mode.format, mode.to_migrate)
        self._pending = mode.pending(core, self._outbox)
        self._groups = self.groups_type(
            core, self._reput, self._appender, self._pending, self._outbox, config, mode
        )
        topics = self._groups.topics
        self._sends = self.sends_type(self._appender, self._pending, self._outbox, config, topics)
        self._conditional = self.conditional_type(self._sends, self._appender, self._outbox)
        consumers = self._groups.heartbeats.groups
        codes = mode.any_member_codes
        self._reads = self.reads_type(
            core, self._reput, self._outbox, config, consumers, topics, codes
        )
        self._admin = Admin(core, self._reput, self._appender, self._pending, self._outbox, config)
        self._delays = self.delays_type(core, self._reput, self._appender, config)
        self._checkpoint: BrokerCheckpoint | None = None  # taken, not yet reported as saved
        self._is_disk_full = False
        self._is_over_full_ratio = False
        core.ledger.commit(min(max(applied_to, self._reput.applied_index), core.log.end_index))

    @property
    def queues(self) -> ConsumeQueues:
        """The consume queues, up to the applied index."""
        return self._reput.queues

    @property
    def tables(self) -> BrokerTables:
        """Topics and group offsets."""
        return self._reput.tables

    @property
    def applied_index(self) -> int:
        """The last entry dispatched to the consume queues; pulls see nothing after it."""
        return self._reput.applied_index

    @property
    def is_ready(self) -> bool:
        """True for a leader that serves clients: it has applied every entry before its term."""
        return self._appender.is_ready

    @property
    def topics_version(self) -> int:
        """How many topic entries were applied: cheap to read, the same on every member."""
        return self._groups.topic_version

    @property
    def topic_table(self) -> tuple[int, list[TopicConfig]]:
        """The topics' version, which only rises, and all committed topics."""
        return self._groups.topic_version, list(self._reput.tables.topics)

    # ---- inputs -----------------------------------------------------------------------

    def handle(
        self,
        connection: Connection,
        born_host: bytes,
        requests: Sequence[SendRequest | Command],
        now_ms: float,
        wall_ms: int,
    ) -> None:
        """Handle the requests from one read of a connection, in order.

        Their entries reach the core in `take`, or before the next input that may change the
        core's state, so that many clients share a batch.
        """
        if self.core.is_ready and not self._appender.is_ready:
            # A send's offset is its queue's max offset, which is known only once every entry
            # of earlier terms is applied.
            self._reput.apply_some(self._dispatch_limit(self.core.ledger.commit_index))
        is_ready = self._appender.is_ready
        for request in requests:
            try:
                if not isinstance(request, SendRequest):
                    self._append_built(now_ms)
                    self._command(connection, born_host, request, now_ms, wall_ms)
                elif is_ready:
                    self._sends.send(connection, born_host, request, now_ms, wall_ms)
                else:
                    self._outbox.refuse_not_leader(connection, request)
            except CommandError as error:
                self._outbox.refuse(connection, request, ResponseCode.MESSAGE_ILLEGAL, str(error))

    def receive(self, message: Message, now_ms: float) -> None:
        """Handle a message from another member."""
        self._append_built(now_ms)
        self.core.receive(message, now_ms)

    def tick(self, now_ms: float) -> None:
        """Advance the time; answer appends that no quorum acknowledged in time as unknown."""
        self._append_built(now_ms)
        self.core.tick(now_ms)
        self._pending.expire(now_ms)
        self._groups.tick(now_ms)

    def synced(self, write_seq: int, now_ms: float | None = None) -> None:
        """Note that the writes up to `write_seq` are durable."""
        self.core.synced(write_seq, now_ms)

    def connection_closed(self, connection: Connection) -> None:
        """Drop the replies and held pulls of a client connection that closed."""
        self._outbox.drop(connection)
        self._reads.drop(connection)
        self._groups.connection_closed(connection)

    def resign(self, now_ms: float) -> None:
        """Prepare to stop: a leader transfers its leadership, and refuses appends meanwhile."""
        self._append_built(now_ms)
        self.core.resign(now_ms)

    def disk_full(self, is_full: bool, now_ms: float) -> None:
        """Note that the disk is full, or has room again.

        While it is full, appends are refused with SYSTEM_BUSY and "[415]": certainly not stored.
        """
        self._append_built(now_ms)
        self._is_disk_full = is_full
        self.core.disk_full(is_full or self._is_over_full_ratio, now_ms)

    def disk_usage(
        self, used_ratio: float, files: Sequence[DataFile], now_ms: float, wall_ms: int
    ) -> None:
        """Handle the shell's disk measurement, taken about once a second, and expire data files.

        `used_ratio` is the used part of the disk, 0 to 1. `files` are the log's data files
        without the one being written, oldest first. Expiry shows as a `Compact` in the writes.
        """
        self._append_built(now_ms)
        self._is_over_full_ratio = used_ratio > self._config.expiry.full_ratio
        self.core.disk_full(self._is_disk_full or self._is_over_full_ratio, now_ms)
        end = expired_end(
            files,
            self._config.expiry,
            used_ratio=used_ratio,
            wall_ms=wall_ms,
            compactable_index=self._compactable_index(),
            snapshot_from=self.core.snapshot_from,
        )
        if end is not None and end.index > self.core.log.start.index:
            self._compact(end)

    def take(self, now_ms: float, wall_ms: int) -> BrokerEffects:
        """Return the work for the shell since the last call, with the replies to clients."""
        core = self.core
        self._append_built(now_ms)
        if self._groups.has_commits:
            self._groups.build(now_ms)
            self._append_built(now_ms)
        if core.needs_term_start:
            self._pending.start_term()
            self._appender.start_term(now_ms, wall_ms)
        elif (learner := core.learner_to_promote) is not None:
            self._admin.promote(learner, now_ms, wall_ms)
        self._appender.migrate(now_ms, wall_ms)
        self._delays.deliver(now_ms, wall_ms)
        effects = core.take()
        if effects.installed is not None:
            self._checkpoint = None  # it describes the replaced state
            self._reput.install(effects.installed)
        has_more = self._reput.apply_some(self._dispatch_limit(effects.commit_index))
        if core.role is Role.LEADER:
            self._acknowledge(effects.acknowledged_index)
        else:
            self._leave_leadership()
        ready, refused = self._groups.claim_reads(
            effects.reads_ready, effects.reads_refused, effects.commit_index, now_ms
        )
        self._reads.confirm(ready, refused, effects.commit_index)
        self._reads.serve(now_ms)
        self._admin.settle(now_ms)
        return BrokerEffects(
            effects.writes,
            effects.write_seq,
            effects.messages,
            self._outbox.take(),
            effects.role_changes,
            effects.membership,
            effects.installed,
            has_more or self._delays.has_more,
            self._reput.is_checkpoint_due,
        )

    def take_checkpoint(self) -> BrokerCheckpoint | None:
        """Return a checkpoint of the applied state to save; None if nothing is new.

        Save it once the writes handed out so far are durable, and before those that come with
        `BrokerEffects.installed`; then call `checkpointed`. Until then the next checkpoint
        contains the same units and keys again, so a save that failed (DiskFull) is repeated.
        The shell should take one every few seconds.
        """
        # An entry is committed only after its write was handed out. Once those writes are
        # durable the log holds every applied entry, so the checkpoint is never ahead of it.
        self._checkpoint = self._reput.checkpoint()
        return self._checkpoint

    def checkpointed(self, checkpoint: BrokerCheckpoint) -> None:
        """Note that a checkpoint is durable. Ignored unless it is the last one taken."""
        if checkpoint is self._checkpoint:
            self._reput.checkpointed(checkpoint)
            self._checkpoint = None

    # ---- decisions that planted bugs override, each in its own method -------------------

    def _dispatch_limit(self, commit_index: int) -> int:
        """Return the last entry to dispatch to the consume queues.

        Consumers must not see an entry that a new leader may still overwrite.
        """
        return commit_index

    def _acknowledge(self, index: int) -> None:
        """Answer the appends that a quorum acknowledged (DLedger's QuorumAckChecker)."""
        self._pending.acknowledge(index)

    def _compactable_index(self) -> int:
        """Return the last entry that a snapshot may replace: applied, committed, durable here."""
        return min(self._reput.applied_index, self.core.ledger.checkpoint_index)

    # ---- steps ------------------------------------------------------------------------

    def _command(
        self,
        connection: Connection,
        born_host: bytes,
        command: Command,
        now_ms: float,
        wall_ms: int,
    ) -> None:
        if command.is_response:
            return
        if command.code in READ_CODES:
            if not self._groups.refuses_pull(connection, command, wall_ms):
                self._reads.submit(connection, command, now_ms)
        elif self._groups.serves(command.code):
            self._groups.handle(connection, command, now_ms, wall_ms)
        elif command.code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.APPEND_AT):
            self._append(connection, born_host, command, now_ms, wall_ms)
        elif command.code == RequestCode.PULL_COMMITTED:
            self._reads.serve_committed(connection, command)
        elif command.code == RequestCode.DLEDGER_METADATA:
            self._admin.metadata(connection, command, now_ms, wall_ms)
        elif command.code in ADMIN_CODES:
            self._admin.handle(connection, command, now_ms, wall_ms)
        else:
            self._outbox.refuse(
                connection,
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"request code {command.code} is not supported",
            )

    def _append(
        self,
        connection: Connection,
        born_host: bytes,
        command: Command,
        now_ms: float,
        wall_ms: int,
    ) -> None:
        """Build the entries of a batch or of a conditional append."""
        if not self._appender.is_ready:
            self._outbox.refuse_not_leader(connection, command)
        elif command.code == RequestCode.APPEND_AT:
            self._conditional.append_at(connection, born_host, command, now_ms, wall_ms)
        else:
            send = batch_request(command)
            self._sends.send_batch(connection, born_host, send, now_ms, wall_ms)

    def _append_built(self, now_ms: float) -> None:
        """Append the entries built since the last call; refuse their requests if the core does."""
        if refusal := self._appender.append(now_ms):
            self._pending.refuse_unappended(refusal)

    def _leave_leadership(self) -> None:
        self._appender.end_term()
        self._pending.end_term()

    def _compact(self, end: LogEnd) -> None:
        """Replace all entries up to `end` by a snapshot."""
        membership_index, membership = self.core.membership_at(end.index)
        ranges = snapshot_ranges(self.queues.offsets_at(end.position))
        state = encode_state(self._reput.tables.state(ranges))
        self.core.compact(Snapshot(end, membership, membership_index, state))
        self.queues.forget_below(end.position)

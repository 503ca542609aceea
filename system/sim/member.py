"""A simulated node: the real broker, core, log and log writer on a simulated disk and network.

It keeps the order of the real node's shell (`system.node`): after each input it takes the broker's
effects; one flusher carries out all pending writes at once and then reports them durable (group
commit); messages and replies are sent at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.broker_state import ranges_of
from shaketable.system.broker.core import Dispatch
from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.mode import DLEDGER
from shaketable.system.broker.topic_tables.taken_over import plain_dispatches, upgraded_snapshot
from shaketable.system.invariants.durability import check_sent, watermark_of
from shaketable.system.invariants.queues import (
    check_answered,
    check_bounds,
    check_progress,
    check_transfer,
    check_woken,
)
from shaketable.system.invariants.saved_files import check_checkpoint, check_snapshot
from shaketable.system.invariants.steps import Steps
from shaketable.system.invariants.ticks import Ticks
from shaketable.system.mutants import Mutant
from shaketable.system.node.disks.data_files import DataFiles
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.ledger import LogView
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import (
    Append,
    Install,
    LeadershipTransfer,
    LogEnd,
    Message,
    RaftConfig,
    Role,
    RoleChange,
    Snapshot,
    Truncate,
    VoteResponse,
    Write,
)
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import SendRequest
from shaketable.system.sim.disk import PowerLoss, SimDisk
from shaketable.system.sim.event_heap import EventHeap
from shaketable.system.sim.initial_disks.older_stores import OlderStores
from shaketable.system.sim.initial_disks.plain_messages import PlainMessages
from shaketable.system.sim.key_queries import KeyQueries, PositionViews
from shaketable.system.sim.network import Network
from shaketable.system.sim.rules.acknowledgements import Acknowledgements
from shaketable.system.sim.rules.invariants import (
    Invariants,
    check_campaign,
    check_no_lease,
    check_stalled,
    check_start,
)
from shaketable.system.sim.rules.kept_files import (
    check_end_synced,
    check_handles,
    check_loaded,
    check_saved,
    check_watermark,
    check_watermark_synced,
)
from shaketable.system.sim.rules.shadow import Shadow
from shaketable.system.sim.run_trace import Counts, Trace, describe, numbers_of
from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.sim.schedules.schedule import Settings
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint, CheckpointFiles
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import DiskFull, StoreError
from shaketable.system.store.key_index import Sizes
from shaketable.system.store.log_writer import FLUSH_INTERVAL_MS, AckPolicy, LogWriter
from shaketable.system.store.segment_files import OutsideLog

ROOT = "/store"
PLAIN_FOLDER = f"{ROOT}/commitlog"
BACKLOG_MAX = 20_000
"""Most inputs that a paused process keeps until it resumes: socket buffers are bounded."""
WALL_MS = 1_700_000_000_000
"""The wall clock at the start of a run, in milliseconds since 1970."""
STEP_MS = 0.1
"""How soon a broker that lags in applying entries goes on with it."""
QUEUE_FILE_BYTES = 20 * 200
CHECK_EVERY = 16
"""A member's queues are checked after so many of its steps."""
VIEW_EVERY = 50
"""A member is asked for a message that may not be committed after so many of its steps."""


class MemberWorld(Protocol):
    """What a member needs of the world it is in."""

    settings: Settings
    mutant: Mutant
    bootstrap: tuple[str, ...]
    ack: AckPolicy
    raft_config: RaftConfig
    broker_config: BrokerConfig
    heap: EventHeap
    rngs: RandomStreams
    network: Network
    plain_log: PlainMessages
    older: OlderStores
    trace: Trace
    counts: Counts
    invariants: Invariants
    key_queries: KeyQueries | None
    position_views: PositionViews
    members: dict[str, SimMember]
    acting: SimMember | None
    """The member whose code runs now: what it raises is its own."""

    def answer(self, member: SimMember, connection: int, replies: list[bytes]) -> None:
        """Carry a member's replies to the client that holds that connection. Raises Violated."""
        ...

    def changed_role(self, member: SimMember, change: RoleChange) -> None:
        """A member's role, term or leader changed."""
        ...

    def ordered(self, member: SimMember, writes: Sequence[Write]) -> None:
        """A member is about to hand writes to its disk."""
        ...


class SimMember:
    """One node and its incarnations. `disk` is the current incarnation's view of its disk."""

    def __init__(self, world: MemberWorld, name: str, *, is_joining: bool = False) -> None:
        self.world = world
        self.name = name
        self._bootstrap = Membership(() if is_joining else world.bootstrap)
        self.disk = SimDisk()
        self.incarnation = 0
        self.is_up = False
        self.is_damaged = False
        """Its log or a file was damaged by a fault: a failing start is explained."""
        self.loses_unsynced = True
        """Whether a crash at a disk operation loses what was not synced."""
        self.must_detect = False
        """A file was damaged in a way that every start must detect."""
        self.saved_index = -1
        """Up to where the last checkpoint covers the log; -1 if a file was damaged since."""
        self._stopped_at: LogEnd | None = None
        self._must_be_aborted = False
        self.is_removed = False
        """Removed for good: nothing restarts it."""
        self.is_paused = False
        self.slow_factor = 1.0
        self.slow_until_ms = 0.0
        self.stalled_until_ms = 0.0
        self.wall_offset_ms = 0
        self._rate = 1.0
        self._rate_since_ms = 0.0
        self._local_since_ms = 0.0
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.disk_rng = world.rngs.stream(f"disk/{name}")
        self._crash_rng = world.rngs.stream(f"crash/{name}")
        self.broker: Broker
        self.core: RaftCore
        self.log: CommitLog
        self.flush: Flush
        self.shadow: Shadow
        self.steps: Steps
        self.ticks: Ticks
        self.acknowledgements: Acknowledgements
        if not is_joining:
            tear = world.rngs.stream(f"native_log/{name}").random()
            world.plain_log.write(self.disk, PLAIN_FOLDER, tear)

    # ---- clocks -----------------------------------------------------------------------

    def local_ms(self) -> float:
        """Return the node's monotonic clock."""
        return self._local_since_ms + (self.world.heap.now_ms - self._rate_since_ms) * self._rate

    def wall_ms(self) -> int:
        """Return the node's wall clock."""
        return WALL_MS + self.wall_offset_ms + int(self.world.heap.now_ms)

    def run_clock_at(self, rate: float) -> None:
        """Run the node's clock at another rate from now on."""
        self._local_since_ms = self.local_ms()
        self._rate_since_ms = self.world.heap.now_ms
        self._rate = rate
        if self.is_up:
            self._set_timer()

    # ---- starting and ending ----------------------------------------------------------

    def start(self) -> None:
        """Start a process on what the disk holds. Raises StoreError."""
        world = self.world
        settings, mutant = world.settings, world.mutant
        self.incarnation += 1
        self.disk.begin_process()
        if self.incarnation == 1:
            world.older.write_older_files(self.disk, ROOT, self.name)
        stopped_at, self._stopped_at = self._stopped_at, None
        self.log = mutant.commit_log.open(
            self.disk,
            ROOT,
            self.name,
            settings.data_file_bytes,
            settings.index_file_bytes,
            PLAIN_FOLDER if settings.plain_log else None,
        )
        check_start(self.log, self.name, stopped_at, must_be_aborted=self._must_be_aborted)
        writer = mutant.log_writer(self.log, world.ack)
        folder = f"{ROOT}/dledger-{self.name}"
        files = CheckpointFiles(
            self.disk,
            ROOT,
            folder,
            ranges_of,
            queue_file_bytes=QUEUE_FILE_BYTES,
            key_sizes=Sizes(settings.key_slots, settings.key_file_items),
        )
        checkpoint = files.load(self.log)
        check_loaded(self.name, self.saved_index, checkpoint, self.log)
        plain_log = self._plain_log()
        snapshot = self.log.snapshot
        if snapshot is None and plain_log is not None:
            begin = self.log.start
            snapshot = upgraded_snapshot(
                begin, self._bootstrap, plain_log, checkpoint, files.queues
            )
        self.core = self._new_core(snapshot)
        self.broker = mutant.broker(
            self.core,
            world.broker_config,
            applied_to=self.log.committed_index,
            checkpoint=checkpoint,
            reader=files.queues,
            key_reader=files.keys if settings.key_items_max else None,
            plain_log=plain_log,
            mode=replace(DLEDGER, to_migrate=world.older.to_migrate(self.name)),
        )
        self._data_files = DataFiles(self.log, settings.data_file_bytes)
        self.shadow = world.invariants.started(self.name, self.core, self.log, self.local_ms())
        self.steps = Steps(self.name, self.core)
        self.ticks = Ticks(self.name)
        self.acknowledgements = Acknowledgements(self.name, self.core)
        self.is_up = True
        self.is_paused = False
        self._is_stepping = False
        self._pumps = 0
        self._backlog = []
        self.flush = Flush(self, writer, files)
        self._must_be_aborted = True
        if checkpoint is not None:
            self.flush.check_keys(checkpoint)
        self._timer_ms = float("inf")
        if settings.expiry_check_ms:
            world.heap.push(
                world.heap.now_ms + settings.expiry_check_ms, self._expiry_due, self.incarnation
            )
        self.pump()

    def _plain_log(self) -> Callable[[], Iterable[Dispatch]] | None:
        log = self.log.plain_log
        return None if log is None else lambda: plain_dispatches(log.messages())

    def _new_core(self, snapshot: Snapshot | None) -> RaftCore:
        world, log = self.world, self.log
        view = LogView(
            log,
            log.spans,
            log.end.index,
            log.end.position,
            world.settings.tail_bytes_max,
            start=log.start,
        )
        rng = world.rngs.stream(f"election/{self.name}/{self.incarnation}")
        return world.mutant.core(
            self.name,
            (),
            view,
            term=log.state.term,
            voted_for=log.state.voted_for,
            uniform_ms=rng.uniform,
            now_ms=self.local_ms(),
            config=world.raft_config,
            membership=self._bootstrap,
            memberships=log.memberships,
            snapshot=snapshot,
        )

    def crash(self, *, loses_unsynced: bool) -> None:
        """Kill the process, wherever its flush is; with `loses_unsynced`, crash the machine."""
        self.shadow.in_flight = self.flush.abort(self._crash_rng.randint(1, 12))
        self._end(loses_unsynced=loses_unsynced)

    def _end(self, *, loses_unsynced: bool) -> None:
        self.is_up = self.shadow.is_up = False
        self.is_paused = False
        self.incarnation += 1
        platter = self.disk.platter
        lost = platter.lost_bytes
        self.disk = self.disk.restart(loses_unsynced=loses_unsynced, rng=self._crash_rng)
        self.world.counts.lost_bytes += platter.lost_bytes - lost

    def stop(self, *, loses_power: bool) -> None:
        """Stop the process in order, as by SIGTERM. Raises DiskFailed, PowerLoss."""
        self._must_be_aborted = False  # a crash after the marker's removal looks like a clean stop
        self.shadow.in_flight = self.flush.finish()
        self._stopped_at = self.log.end
        self._end(loses_unsynced=loses_power)

    def pause(self) -> None:
        """Pause the process, as by SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        """Resume the process: handle all inputs that came while it was paused, in order."""
        if not self.is_paused:
            return
        self.is_paused = False
        backlog, self._backlog = self._backlog, []
        for action, args in backlog:
            if self.is_up and not self.is_paused:
                action(*args)

    def postponed(self, action: Callable[..., None], *args: Any) -> bool:
        """Return whether the process is paused; if so, keep the input until it resumes."""
        if not self.is_paused:
            return False
        if len(self._backlog) < BACKLOG_MAX:
            self._backlog.append((action, args))
        return True

    # ---- inputs -----------------------------------------------------------------------

    def receive(self, source: str, message: Message) -> None:
        """Receive a message from another member."""
        if not self.is_up or self.postponed(self.receive, source, message):
            return
        world = self.world
        world.acting = self
        trace = world.trace
        trace.event(world.heap.now_ms, self.name, *numbers_of(message))
        if trace.write is not None:
            trace.line(world.heap.now_ms, self.name, f"<- {source} {describe(message)}")
        world.counts.states.add((self.core.role.value, type(message).__name__))
        if isinstance(message, LeadershipTransfer):
            self.shadow.asked_term = message.term
        elif isinstance(message, VoteResponse) and message.pre_vote and message.granted:
            self.shadow.grants[message.voter] = None
        now_ms = self.local_ms()
        self.shadow.stickiness.received(self.core, message, now_ms)
        self.steps.heard(message)
        self.acknowledgements.heard(message)
        self.broker.receive(message, now_ms)
        self.pump()

    def handle(self, connection: int, requests: Sequence[SendRequest | Command]) -> None:
        """Handle a client's requests that arrive in one read of the connection."""
        if not self.is_up or self.postponed(self.handle, connection, requests):
            return
        world = self.world
        world.acting = self
        trace = world.trace
        trace.event(world.heap.now_ms, self.name, connection, len(requests))
        if trace.write is not None:
            first = requests[0].opaque
            text = f"<- client {connection} requests {first}..{requests[-1].opaque}"
            trace.line(world.heap.now_ms, self.name, text)
        self.broker.handle(connection, bytes(8), requests, self.local_ms(), self.wall_ms())
        self.pump()

    def _tick(self, incarnation: int, at_ms: float) -> None:
        if incarnation != self.incarnation or at_ms != self._timer_ms:
            return
        if self.postponed(self._tick, incarnation, at_ms):
            return
        self._timer_ms = float("inf")
        world = self.world
        world.acting = self
        local_ms = self.local_ms()
        if local_ms >= self.core.deadline_ms:
            world.trace.event(world.heap.now_ms, self.name)
            if world.trace.write is not None:
                world.trace.line(world.heap.now_ms, self.name, f"tick as {self.core.role.value}")
            world.counts.states.add((self.core.role.value, "tick"))
            self.broker.tick(local_ms)
            self.ticks.ticked(local_ms)
            check_answered(self.name, self.broker, local_ms)
            check_woken(self.name, self.broker)
            check_stalled(self.shadow, self.core, self.flush.waiting_ms)
            check_transfer(self.name, self.core, local_ms)
            unmoved_ms = local_ms - self.flush.unmoved_since_ms
            check_progress(self.name, self.core, unmoved_ms, local_ms)
            self.steps.ticked(local_ms)
            self.pump()
        self._set_timer()

    def _set_timer(self) -> None:
        """Tick the core at its deadline; an earlier deadline replaces a later one."""
        heap = self.world.heap
        left_ms = (self.core.deadline_ms - self.local_ms()) / self._rate
        at_ms = heap.now_ms + max(left_ms, 0.001)
        if at_ms < self._timer_ms:
            self._timer_ms = at_ms
            heap.push(at_ms, self._tick, self.incarnation, at_ms)

    # ---- effects ----------------------------------------------------------------------

    def pump(self) -> None:
        """Carry out the broker's effects."""
        world, now_ms = self.world, self.local_ms()
        effects = self.broker.take(now_ms, self.wall_ms())
        invariants, shadow = world.invariants, self.shadow
        if effects.installed is not None:
            self.flush.forget_checkpoint()
        if effects.writes:
            invariants.ordered(shadow, effects.writes)
            for write in effects.writes:
                check_campaign(shadow, self.core, write)
            world.ordered(self, effects.writes)
            self.flush.add(effects.writes, effects.write_seq)
        commit_index = self.core.ledger.commit_index
        if commit_index != shadow.commit_index:
            invariants.committed(shadow, commit_index)
        self._check_step(effects, now_ms)
        self._pumps += 1
        if self._pumps % CHECK_EVERY == 0:
            check_bounds(self.name, self.broker, self.core)
            world.older.check_serving(self.broker, self.name)
            check_handles(self.name, self.disk)
        if self._pumps % VIEW_EVERY == 0:
            world.position_views.ask(self)
        if effects.role_changes:
            self._note_roles(effects.role_changes)
        send = world.network.send
        for peer, message in effects.messages:
            check_sent(shadow, peer, message)
            shadow.stickiness.check_vote(self.name, peer, message)
            send(self.name, peer, message)
        for connection, replies in effects.replies.items():
            world.answer(self, connection, replies)
        if effects.is_checkpoint_due:
            self.flush.checkpoint_soon()
        if effects.has_more:
            self.step_soon()
        self._set_timer()

    def _check_step(self, effects: BrokerEffects, now_ms: float) -> None:
        flush = self.flush
        stalled_ms = now_ms - flush.stalled_since_ms
        self.steps.stepped(effects.writes, effects.messages, now_ms, stalled_ms=stalled_ms)
        self.ticks.stepped(self.core, now_ms)
        is_fresh, flush.has_synced_entries = flush.has_synced_entries, False
        self.acknowledgements.check(self.shadow, effects.messages, is_fresh=is_fresh)

    def step_soon(self) -> None:
        """Let the broker go on applying entries."""
        if not self._is_stepping:
            self._is_stepping = True
            heap = self.world.heap
            heap.push(heap.now_ms + STEP_MS, self._pump_again, self.incarnation)

    def _note_roles(self, changes: Sequence[RoleChange]) -> None:
        world = self.world
        for change in changes:
            world.invariants.changed_role(self.shadow, change)
            if change.role is Role.LEADER:
                check_no_lease(world.members.values(), self)
            world.changed_role(self, change)

    def _pump_again(self, incarnation: int) -> None:
        self._is_stepping = False
        if incarnation == self.incarnation and not self.postponed(self._pump_again, incarnation):
            self.world.acting = self
            self.pump()

    # ---- expiry -----------------------------------------------------------------------

    def _expiry_due(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.postponed(self._expiry_due, incarnation):
            return
        self.measure_disk()
        settings = self.world.settings
        self.world.heap.push(
            self.world.heap.now_ms + settings.expiry_check_ms, self._expiry_due, incarnation
        )

    def measure_disk(self, *, older_by_ms: int = 0) -> None:
        """Report disk usage and file ages to the broker, so that files expire."""
        if self.is_up and not self.postponed(self._measure, older_by_ms):
            self._measure(older_by_ms)

    def _measure(self, older_by_ms: int) -> None:
        self.world.acting = self
        try:
            files = self._data_files.full_files(self.core.ledger.checkpoint_index)
        except OutsideLog:
            return  # the log is being replaced: next time
        used_ratio = self.disk.used_ratio(ROOT)
        wall_ms = self.wall_ms() + older_by_ms
        self.world.invariants.measured(
            self.shadow,
            files,
            used_ratio=used_ratio,
            wall_ms=wall_ms,
            expiry=self.world.broker_config.expiry,
            snapshot_from=self.core.snapshot_from,
        )
        before = self.core.ledger.snapshot
        self.broker.disk_usage(used_ratio, files, self.local_ms(), wall_ms)
        if (snapshot := self.core.ledger.snapshot) is not before and snapshot is not None:
            check_snapshot(self.name, self.broker, snapshot.state)
        self.pump()


# A simulated node's flusher: group commit on virtual time, in the order of `system.node.flusher`.
#
# All pending writes are taken together; they are carried out when the disk's time has passed, and
# only then reported durable. A crash in between leaves the disk in the middle of them.

CHECKPOINT_PAUSE_MS = 100.0
"""Minimum time between two checkpoints, where the broker asks for an early one."""
KEY_CHECK_MS = 3000.0
FULL_RETRY_MS = 200.0
"""How soon writes that found the disk full are retried."""


class Flush:
    """The flusher of one incarnation."""

    def __init__(self, member: SimMember, writer: LogWriter, files: CheckpointFiles) -> None:
        self._member = member
        self._world = member.world
        self._writer = writer
        self._files = files
        self._incarnation = member.incarnation
        self._writes: list[Write] = []
        self._write_seq = 0
        self._in_flight: Sequence[Write] = ()
        self._is_busy = False
        self._is_full = False
        self._waiting_since_ms = float("inf")
        self.stalled_since_ms = float("inf")
        """Since when, at most, the oldest write has waited, by the node's own clock."""
        self.unmoved_since_ms = float("inf")
        """Since when writes have waited, and none was reported, by that clock."""
        self.has_synced_entries = False
        """Whether entries or a snapshot became durable in this step."""
        self._watermark_lags = False
        self._is_timed = False
        self._watermark_ms = self._checkpoint_ms = self._synced_ms = self._world.heap.now_ms
        self._checkpointed = writer.log.committed_index
        self._checkpoint: tuple[int, BrokerCheckpoint] | None = None
        self._is_soon = False
        self._keys_checked_ms = float("-inf")

    def add(self, writes: list[Write], write_seq: int) -> None:
        """Queue writes; the last one has number `write_seq`."""
        if not self._is_busy:
            self._waiting_since_ms = self._world.heap.now_ms
            self.stalled_since_ms = self.unmoved_since_ms = self._member.local_ms()
        self._writes += writes
        self._write_seq = write_seq
        if not self._is_busy:
            self._start()

    @property
    def waiting_ms(self) -> float:
        """How long, at least, the oldest write has waited; negative if there is none."""
        return self._world.heap.now_ms - self._waiting_since_ms

    def forget_checkpoint(self) -> None:
        """Drop the pending checkpoint: its state was replaced by a snapshot."""
        self._checkpoint = None
        self._member.saved_index = -1

    def checkpoint_soon(self) -> None:
        """Take a checkpoint soon: the broker's backlog for it is filling up."""
        if not self._is_soon:
            self._is_soon = True
            heap = self._world.heap
            due_ms = max(heap.now_ms, self._checkpoint_ms + CHECKPOINT_PAUSE_MS)
            heap.push(due_ms, self._checkpoint_now)

    def _checkpoint_now(self) -> None:
        member = self._member
        if self._incarnation != member.incarnation or member.postponed(self._checkpoint_now):
            return
        self._world.acting = member
        if not self._is_busy:  # else the write in flight takes it when done
            self._note_progress()
            member.pump()

    def finish(self) -> Sequence[Write]:
        """Stop cleanly: carry out the writes in flight, save what may be saved.

        Returns the writes that were in flight. Raises DiskFailed, PowerLoss.
        """
        writes = self._in_flight
        if self._is_busy:
            self._writer.carry_out(writes)
        else:
            self._take_checkpoint()
        log = self._writer.log
        with suppress(DiskFull):  # all of these are only hints
            log.save_checkpoint(self._member.core.ledger.checkpoint_index)
            log.advance_watermark()
        self._files.close()
        log.close()
        return writes

    def check_keys(self, checkpoint: BrokerCheckpoint) -> None:
        """Check now and then whether the key index finds what a checkpoint covers."""
        world = self._world
        if world.key_queries is None or world.heap.now_ms < self._keys_checked_ms + KEY_CHECK_MS:
            return
        self._keys_checked_ms = world.heap.now_ms
        begin = max(checkpoint.start_position, self._member.log.start.position)
        world.counts.keys_found += world.key_queries.check(
            self._files.keys, begin, checkpoint.applied_position
        )
        world.key_queries.check_tags(self._files.queues, begin, checkpoint.applied_position)

    def abort(self, operations: int) -> Sequence[Write]:
        """Kill the process: up to `operations` disk operations of the flush still happen.

        Returns the writes of which some may have happened.
        """
        if self._is_busy and not self._member.disk.is_dead:
            platter = self._member.disk.platter
            platter.stop_at = platter.operations + operations
            # The rest fails, and no caller waits for the result any more.
            with suppress(PowerLoss, StoreError):
                self._writer.carry_out(self._in_flight)
        return self._in_flight

    # ---- writes -----------------------------------------------------------------------

    def _start(self) -> None:
        member = self._member
        heap, settings = self._world.heap, self._world.settings
        self._is_busy = True
        self._in_flight, self._writes = self._writes, []
        took_ms = settings.sync_ms + settings.sync_jitter_ms * member.disk_rng.random()
        begin_ms = max(heap.now_ms, member.stalled_until_ms)
        at_ms = begin_ms + took_ms * member.slow_factor
        if at_ms > member.slow_until_ms + took_ms:  # after the fault the disk has its usual speed
            at_ms = max(begin_ms, member.slow_until_ms) + took_ms
        heap.push(at_ms, self._done, self._write_seq)

    def _done(self, write_seq: int) -> None:
        member, world = self._member, self._world
        if self._incarnation != member.incarnation or member.postponed(self._done, write_seq):
            return
        if world.heap.now_ms < member.stalled_until_ms:
            world.heap.push(member.stalled_until_ms, self._done, write_seq)
            return
        world.acting = member
        writes = self._in_flight
        watermark = watermark_of(member.log)
        left = self._writer.carry_out(writes)
        if not any(isinstance(write, Truncate | Install) for write in writes):
            check_watermark(member.name, watermark, member.log)
        self._in_flight = ()
        self._waiting_since_ms = world.heap.now_ms if self._writes else float("inf")
        self.stalled_since_ms = member.local_ms() if self._writes else float("inf")
        if not left:  # else some were written, and those that the core waits for perhaps not
            self.unmoved_since_ms = self.stalled_since_ms
        done = writes[: len(writes) - len(left)]
        self.has_synced_entries = any(isinstance(write, Append | Install) for write in done)
        if left and any(isinstance(write, Append) for write in done):
            self._check_end_synced()
        world.invariants.synced(member.shadow, done)
        world.trace.event(world.heap.now_ms, member.name, write_seq, len(done))
        if world.trace.write is not None:
            text = f"synced {len(done)} writes, log ends at {member.log.end.index}"
            world.trace.line(world.heap.now_ms, member.name, text)
        self._watermark_lags = True
        durable_seq = write_seq - len(left)
        if done:
            member.broker.synced(durable_seq, member.local_ms())
        self._save_checkpoint(durable_seq)
        self._note_progress()
        self._is_busy = False
        self._handle_full_disk(left)
        member.pump()
        if self._writes and not self._is_busy:
            self._start()

    def _handle_full_disk(self, left: Sequence[Write]) -> None:
        """Keep in order the writes that a full disk refused, and retry them a little later."""
        member, heap = self._member, self._world.heap
        if left:
            self._writes[:0] = left
            self._is_busy = True
            heap.push(heap.now_ms + FULL_RETRY_MS, self._try_again)
        if bool(left) != self._is_full:
            self._is_full = bool(left)
            member.steps.disk_full(self._is_full)
            member.acknowledgements.disk_full(self._is_full)
            member.broker.disk_full(self._is_full, member.local_ms())

    def _try_again(self) -> None:
        member = self._member
        if self._incarnation == member.incarnation and not member.postponed(self._try_again):
            self._start()

    def _check_end_synced(self) -> None:
        """Check that what came before a write without room is synced; others show at a crash."""
        member = self._member
        if self._writer.ack == "fsync":
            folder = f"{ROOT}/dledger-{member.name}"
            check_end_synced(member.name, member.log, member.disk.platter, folder)

    # ---- hints, which may lag --------------------------------------------------------

    def _note_progress(self) -> None:
        """Advance the durable watermark and save checkpoints; both may lag."""
        heap, settings = self._world.heap, self._world.settings
        now_ms = heap.now_ms
        if self._writer.ack == "page-cache" and now_ms - self._synced_ms >= FLUSH_INTERVAL_MS:
            self._writer.sync()
            self._synced_ms = now_ms
        if self._watermark_lags:
            due_ms = self._watermark_ms + settings.mark_lag_ms
            if now_ms >= due_ms:
                self._writer.advance_watermark()
                member = self._member
                folder = f"{ROOT}/dledger-{member.name}"
                check_watermark_synced(member.name, member.log, member.disk.platter, folder)
                self._watermark_ms = now_ms
                self._watermark_lags = False
            elif not self._is_timed:
                self._is_timed = True
                heap.push(due_ms, self._watermark_due)
        is_soon = self._is_soon and now_ms - self._checkpoint_ms >= CHECKPOINT_PAUSE_MS
        if is_soon or now_ms - self._checkpoint_ms >= settings.checkpoint_interval_ms:
            self._checkpoint_ms = now_ms
            self._is_soon = False
            self._take_checkpoint()

    def _take_checkpoint(self) -> None:
        """Save the committed index; take the broker's checkpoint, to be saved when durable."""
        core = self._member.core
        checkpoint_index = core.ledger.checkpoint_index
        if checkpoint_index > self._checkpointed:
            with suppress(DiskFull):  # it is a hint, and is saved again later
                self._member.log.save_checkpoint(checkpoint_index)
                self._checkpointed = checkpoint_index
        checkpoint = self._member.broker.take_checkpoint()
        if checkpoint is not None:
            check_checkpoint(self._member.name, self._member.broker, checkpoint)
            self._checkpoint = self._write_seq, checkpoint
            if not self._writes:
                self._save_checkpoint(self._write_seq)

    def _save_checkpoint(self, durable_seq: int) -> None:
        """Save the pending checkpoint, once the writes handed out before it are durable."""
        if self._checkpoint is None or self._checkpoint[0] > durable_seq:
            return
        checkpoint = self._checkpoint[1]
        self._checkpoint = None
        try:
            self._files.save(checkpoint)
        except DiskFull:
            self._keys_checked_ms = -KEY_CHECK_MS  # the next one takes back what this one wrote
            return
        self._note_saved(checkpoint)
        self._member.broker.checkpointed(checkpoint)
        self._world.counts.checkpoints += 1
        self.check_keys(checkpoint)
        self._member.step_soon()

    def _note_saved(self, checkpoint: BrokerCheckpoint) -> None:
        member = self._member
        check_saved(member.name, member.disk.platter, ROOT, checkpoint, self._files)
        member.saved_index = max(member.saved_index, checkpoint.applied_index)

    def _watermark_due(self) -> None:
        member = self._member
        if self._incarnation != member.incarnation or member.postponed(self._watermark_due):
            return
        self._world.acting = member
        self._is_timed = False
        if not self._is_busy:  # else the flush in flight advances the watermark
            self._note_progress()

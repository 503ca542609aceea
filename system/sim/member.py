"""A simulated node: the real broker, core, log and log writer on a simulated disk and network.

It keeps the order of the real node's shell (`system.node`): after each input it takes the broker's
effects; one flusher carries out all pending writes at once and then reports them durable (group
commit); messages and replies are sent at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.broker_state import ranges_of
from shaketable.system.broker.log_format import Dispatch
from shaketable.system.broker.mode import DLEDGER
from shaketable.system.broker.topic_tables.taken_over import native_dispatches, upgraded_snapshot
from shaketable.system.node.disks.data_files import DataFiles
from shaketable.system.raft.batch import LogEnd
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.log_view import LogView
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import (
    LeadershipTransfer,
    Message,
    PushResponse,
    Role,
    RoleChange,
    SaveState,
    Snapshot,
    VoteResponse,
    Write,
)
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import SendRequest
from shaketable.system.sim.disks.disk import SimDisk
from shaketable.system.sim.disks.flush import Flush
from shaketable.system.sim.group_operator import REFUSED_CONNECTION
from shaketable.system.sim.limits import broker_config
from shaketable.system.sim.rules.bounds import (
    check_answered,
    check_bounds,
    check_handles,
    check_transfer,
)
from shaketable.system.sim.rules.electable import check_no_lease
from shaketable.system.sim.rules.shadow import Shadow
from shaketable.system.sim.rules.violation import Violated
from shaketable.system.sim.run_trace import describe, numbers_of
from shaketable.system.store.broker_checkpoint import CheckpointFiles
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.keys.key_file import Sizes
from shaketable.system.store.segment_files import OutsideLog

if TYPE_CHECKING:
    from shaketable.system.sim.rules.shadow import Shadow
    from shaketable.system.sim.world import World


ROOT = "/store"
NATIVE_FOLDER = f"{ROOT}/commitlog"
BACKLOG_MAX = 20_000
"""Most inputs that a paused process keeps until it resumes: socket buffers are bounded."""
WALL_MS = 1_700_000_000_000
"""The wall clock at the start of a run, in milliseconds since 1970."""
STEP_MS = 0.1
"""How soon a broker that lags in applying entries goes on with it."""
QUEUE_FILE_BYTES = 20 * 200
CHECK_EVERY = 16
"""A member's queues are checked after so many of its steps."""


class SimMember:
    """One node and its incarnations. `disk` is the current incarnation's view of its disk."""

    def __init__(self, world: World, name: str, *, is_joining: bool = False) -> None:
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
        if not is_joining:
            tear = world.rngs.stream(f"native_log/{name}").random()
            world.native.write(self.disk, NATIVE_FOLDER, tear)

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
        self.disk.forget_handles()
        if self.incarnation == 1:
            world.older.write_older_files(self.disk, ROOT, self.name)
        stopped_at, self._stopped_at = self._stopped_at, None
        self.log = mutant.commit_log.open(
            self.disk,
            ROOT,
            self.name,
            settings.data_file_bytes,
            settings.index_file_bytes,
            NATIVE_FOLDER if settings.native_log else None,
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
        native = self._native()
        snapshot = self.log.snapshot
        if snapshot is None and native is not None:
            begin = self.log.start
            snapshot = upgraded_snapshot(begin, self._bootstrap, native, checkpoint, files.queues)
        self.core = self._new_core(snapshot)
        self.broker = mutant.broker(
            self.core,
            world.broker_config,
            applied_to=self.log.committed_index,
            checkpoint=checkpoint,
            reader=files.queues,
            key_reader=files.keys if settings.key_items_max else None,
            native=native,
            mode=replace(DLEDGER, to_migrate=world.older.to_migrate(self.name)),
        )
        self._data_files = DataFiles(self.log, settings.data_file_bytes)
        self.shadow = world.invariants.started(self.name, self.core, self.log)
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

    def _native(self) -> Callable[[], Iterable[Dispatch]] | None:
        log = self.log.native
        return None if log is None else lambda: native_dispatches(log.messages())

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
            check_answered(self.name, self.broker, local_ms)
            check_stalled(self.shadow, self.core, self.flush.waiting_ms)
            check_transfer(self.name, self.core, local_ms)
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
        world = self.world
        effects = self.broker.take(self.local_ms(), self.wall_ms())
        invariants, shadow = world.invariants, self.shadow
        if effects.installed is not None:
            self.flush.forget_checkpoint()
        if effects.writes:
            invariants.ordered(shadow, effects.writes)
            for write in effects.writes:
                check_campaign(shadow, self.core, write)
            self.flush.add(effects.writes, effects.write_seq)
        commit_index = self.core.ledger.commit_index
        if commit_index != shadow.commit_index:
            invariants.committed(shadow, commit_index)
        self._pumps += 1
        if self._pumps % CHECK_EVERY == 0:
            check_bounds(self.name, self.broker, self.core)
            world.older.check_serving(self.broker, self.name)
            check_handles(self.name, self.disk)
        if effects.role_changes:
            self._note_roles(effects.role_changes)
        send = world.network.send
        for peer, message in effects.messages:
            check_sent(shadow, peer, message)
            shadow.stickiness.check_vote(self.name, peer, message)
            send(self.name, peer, message)
        for connection, replies in effects.replies.items():
            self._answer(connection, replies)
        if effects.is_checkpoint_due:
            self.flush.checkpoint_soon()
        if effects.has_more:
            self.step_soon()
        self._set_timer()

    def _answer(self, connection: int, replies: list[bytes]) -> None:
        if connection >= 0:
            self.world.clients.reply(self, connection, replies)
        elif connection == REFUSED_CONNECTION:
            self.world.operator.answered(replies)
        # The operator checks the committed membership, not answers.

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
            world.actions.changed_role(self.name, change)
            world.counts.states.add((change.role.value, "entered"))
            if world.trace.write is not None:
                text = f"is {change.role.value} of term {change.term}, leader {change.leader}"
                world.trace.line(world.heap.now_ms, self.name, text)

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
        if report_disk_usage(self, ROOT, self._data_files, older_by_ms):
            self.pump()


# A member sends nothing that depends on writes not yet durable, and campaigns only after a
# pre-vote.
#
# Checked when a message is sent, so that no crash is needed to show a wrong order. Source: Raft
# figure 2 ("updated on stable storage before responding to RPCs"); Ongaro's dissertation sections
# 3.10 and 9.6 (pre-vote; only a leadership transfer does without); DLEDGER.md E12, E15, E16, E18.

STALL_SLACK_MS = 500.0
"""A leader notices only at a heartbeat that its disk has stalled."""


def check_sent(shadow: Shadow, peer: str, message: Message) -> None:
    """Raise Violated where a vote or an acknowledgement is sent before it is durable."""
    if isinstance(message, PushResponse):
        if message.match_index > shadow.durable_index:
            raise Violated(
                "acknowledged-is-durable",
                f"{message.match_index} is acknowledged, {shadow.durable_index} is durable",
                shadow.name,
            )
    elif isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
        state = shadow.state
        is_kept = state.term == message.term and state.voted_for == peer
        if not is_kept and state.term <= message.term:
            raise Violated(
                "vote-is-durable", f"{peer} gets a vote of term {message.term}, {state} is durable",
                shadow.name,
            )  # fmt: skip


def check_campaign(shadow: Shadow, core: RaftCore, write: Write) -> None:
    """Raise Violated where a member campaigns without a majority of pre-votes.

    Only a transferred leadership needs none.
    """
    if not isinstance(write, SaveState) or write.voted_for != shadow.name:
        return
    asked = shadow.asked_term == write.term - 1
    if not asked and len(shadow.grants) + 1 < core.membership.quorum:
        raise Violated(
            "pre-vote-before-campaign",
            f"term {write.term} is opened with {len(shadow.grants)} of"
            f" {core.membership.quorum - 1} members asked for it",
            shadow.name,
        )
    shadow.grants.clear()


def check_stalled(shadow: Shadow, core: RaftCore, waiting_ms: float) -> None:
    """Raise Violated where a member still leads whose disk has stalled for too long."""
    limit_ms = core.config.disk_stall_max_ms + STALL_SLACK_MS
    if core.role is Role.LEADER and waiting_ms > limit_ms:
        raise Violated(
            "stalled-disk-leads-not", f"a write waits for {waiting_ms:.0f} ms", shadow.name
        )


# What a node's shell measures of its disk each second, so that the broker lets files expire.


def report_disk_usage(
    member: SimMember, root: str, data_files: DataFiles, older_by_ms: int
) -> bool:
    """Report disk usage, as if `older_by_ms` had passed; False while the log is being replaced."""
    try:
        files = data_files.full_files(member.core.ledger.checkpoint_index)
    except OutsideLog:
        return False  # next time
    used_ratio = member.disk.used_ratio(root)
    wall_ms = member.wall_ms() + older_by_ms
    member.world.invariants.measured(
        member.shadow,
        files,
        used_ratio=used_ratio,
        wall_ms=wall_ms,
        expiry=broker_config(member.world.settings).expiry,
    )
    member.broker.disk_usage(used_ratio, files, member.local_ms(), wall_ms)
    return True


# Whether a log detects, at a start, how the last process ended.


def check_start(
    log: CommitLog, name: str, stopped_at: LogEnd | None, *, must_be_aborted: bool
) -> None:
    """Check the abort marker, and that a clean stop lost nothing. Raises Violated.

    `stopped_at` is the log's end at the clean stop; None where the last process did not stop
    cleanly.
    """
    if stopped_at is not None and log.was_aborted:
        raise Violated("abort-marks-a-crash", "a stop in order is taken for a crash", name)
    if stopped_at is not None and log.end != stopped_at:
        raise Violated("stop-keeps-all", f"the log ends at {log.end}, was stopped at {stopped_at}")
    if must_be_aborted and not log.was_aborted:
        raise Violated("abort-marks-a-crash", "a crash is taken for a stop in order", name)

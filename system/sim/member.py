"""A simulated node: the real broker, core, log and log writer between a simulated disk and net.

It orders things exactly as the node's shell does (`system.node`): after every input it takes the
broker's effects; writes go to one flusher, which carries out all that is pending, then says what
is durable (group commit); messages and replies leave at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from system.broker.broker import Broker
from system.broker.limits import BrokerConfig
from system.raft.core import RaftCore
from system.raft.log_view import LogView
from system.raft.protocol import Message, RaftConfig, Write
from system.remoting.command import Command
from system.remoting.requests import SendRequest
from system.sim.disk import PowerLoss, SimDisk
from system.sim.run_trace import describe, numbers_of
from system.store.commit_log import CommitLog
from system.store.disk import DiskFailed, DiskFull
from system.store.log_writer import LogWriter

if TYPE_CHECKING:
    from system.sim.invariants import Shadow
    from system.sim.world import World

ROOT = "/store"
BACKLOG_MAX = 20_000
"""What a process that stands still may find when it goes on: socket buffers are bounded."""
WALL_MS = 1_700_000_000_000
"""The wall clock at the start of a run."""
FULL_RETRY_MS = 200.0
"""How soon writes that found the disk full are tried again."""


class SimMember:
    """One node and its incarnations. `disk` is its disk for the present one."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.disk = SimDisk()
        self.incarnation = 0
        self.is_up = False
        self.is_rotten = False
        """A bit of its log was flipped: that it does not start is explained."""
        self.loses_unsynced = True
        """Whether a crash at an operation takes what was not synced."""
        self.is_gone = False
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
        self._disk_draw = world.draws.stream(f"disk/{name}")
        self._crash_draw = world.draws.stream(f"crash/{name}")
        self.broker: Broker
        self.core: RaftCore
        self.log: CommitLog
        self.writer: LogWriter
        self.shadow: Shadow

    # ---- clocks -----------------------------------------------------------------------

    def local_ms(self) -> float:
        """The node's own monotonic clock."""
        return self._local_since_ms + (self.world.heap.now_ms - self._rate_since_ms) * self._rate

    def wall_ms(self) -> int:
        """The node's wall clock."""
        return WALL_MS + self.wall_offset_ms + int(self.world.heap.now_ms)

    def run_clock_at(self, rate: float) -> None:
        """Let the node's clock run at another rate from now on."""
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
        self.log = mutant.commit_log.open(
            self.disk, ROOT, self.name, settings.data_file_bytes, settings.index_file_bytes
        )
        self.writer = mutant.log_writer(self.log, world.ack)
        self.core = self._new_core()
        limits = BrokerConfig(data_file_bytes=settings.data_file_bytes)
        self.broker = mutant.broker(self.core, limits, applied_to=self.log.committed_index)
        self.shadow = world.invariants.started(self.name, self.core, self.log)
        self.is_up = True
        self.is_paused = False
        self._backlog = []
        self._writes: list[Write] = []
        self._write_seq = 0
        self._in_flight: Sequence[Write] = ()
        self._is_flushing = False
        self._is_full = False
        self._mark_is_behind = False
        self._mark_is_timed = False
        self._marked_ms = self._checkpoint_ms = world.heap.now_ms
        self._checkpointed = self.log.committed_index
        self._timer_ms = float("inf")
        self.pump()
        self._set_timer()

    def _new_core(self) -> RaftCore:
        world, log = self.world, self.log
        view = LogView(
            log, log.spans, log.end.index, log.end.position, world.settings.tail_bytes_max
        )
        dice = world.draws.stream(f"election/{self.name}/{self.incarnation}")
        return world.mutant.core(
            self.name,
            [peer for peer in world.bootstrap if peer != self.name],
            view,
            term=log.state.term,
            voted_for=log.state.voted_for,
            uniform_ms=dice.uniform,
            now_ms=self.local_ms(),
            config=world.raft_config,
        )

    def crash(self, *, loses_unsynced: bool) -> None:
        """End the process, wherever its flusher is; perhaps the machine with it."""
        if self._is_flushing and not self.disk.is_dead:
            platter = self.disk.platter
            platter.stop_at = platter.operations + self._crash_draw.randint(1, 12)
            with suppress(PowerLoss, DiskFailed, DiskFull):
                self.writer.carry_out(self._in_flight)
        self.shadow.in_flight = self._in_flight
        self.is_up = self.shadow.is_up = False
        self.is_paused = False
        self.incarnation += 1
        platter = self.disk.platter
        lost = platter.lost_bytes
        self.disk = self.disk.restart(loses_unsynced=loses_unsynced, rng=self._crash_draw)
        self.world.counts.lost_bytes += platter.lost_bytes - lost

    def pause(self) -> None:
        """Stand still."""
        self.is_paused = True

    def go_on(self) -> None:
        """Find all that came while standing still, in order, and what is due."""
        if not self.is_paused:
            return
        self.is_paused = False
        backlog, self._backlog = self._backlog, []
        for action, args in backlog:
            if self.is_up and not self.is_paused:
                action(*args)

    def _postponed(self, action: Callable[..., None], *args: Any) -> bool:
        """Whether the process stands still; then the input waits for it to go on."""
        if not self.is_paused:
            return False
        if len(self._backlog) < BACKLOG_MAX:
            self._backlog.append((action, args))
        return True

    # ---- inputs -----------------------------------------------------------------------

    def receive(self, source: str, message: Message) -> None:
        """A message of another member arrives."""
        if not self.is_up or self._postponed(self.receive, source, message):
            return
        world = self.world
        world.acting = self
        trace = world.trace
        trace.event(world.heap.now_ms, self.name, *numbers_of(message))
        if trace.write is not None:
            trace.line(world.heap.now_ms, self.name, f"<- {source} {describe(message)}")
        world.counts.states.add((self.core.role.value, type(message).__name__))
        self.broker.receive(message, self.local_ms())
        self.pump()

    def handle(self, connection: int, requests: Sequence[SendRequest | Command]) -> None:
        """A client's requests arrive in one piece."""
        if not self.is_up or self._postponed(self.handle, connection, requests):
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
        if self._postponed(self._tick, incarnation, at_ms):
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
            self.pump()
        self._set_timer()

    def _set_timer(self) -> None:
        """Have the core ticked at its deadline; an earlier deadline replaces a later one."""
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
        if effects.writes:
            invariants.ordered(shadow, effects.writes)
            self._writes += effects.writes
            self._write_seq = effects.write_seq
            if not self._is_flushing:
                self._start_flush()
        commit_index = self.core.ledger.commit_index
        if commit_index != shadow.commit_index:
            invariants.committed(shadow, commit_index)
        if effects.role_changes:
            for change in effects.role_changes:
                invariants.changed_role(shadow, change)
                world.counts.states.add((change.role.value, "entered"))
                if world.trace.write is not None:
                    text = f"is {change.role.value} of term {change.term}, leader {change.leader}"
                    world.trace.line(world.heap.now_ms, self.name, text)
        send = world.network.send
        for peer, message in effects.messages:
            send(self.name, peer, message)
        for connection, replies in effects.replies.items():
            world.clients.reply(self, connection, replies)
        self._set_timer()

    # ---- the flusher ------------------------------------------------------------------

    def _start_flush(self) -> None:
        """Take all that is pending; it is carried out when the disk's time has passed."""
        heap, settings = self.world.heap, self.world.settings
        self._is_flushing = True
        self._in_flight, self._writes = self._writes, []
        took_ms = settings.sync_ms + settings.sync_jitter_ms * self._disk_draw.random()
        at_ms = max(heap.now_ms, self.stalled_until_ms) + took_ms * self.slow_factor
        if at_ms > self.slow_until_ms + took_ms:  # the rest is done at the usual pace
            at_ms = max(heap.now_ms, self.stalled_until_ms, self.slow_until_ms) + took_ms
        heap.push(at_ms, self._flushed, self.incarnation, self._write_seq)

    def _flushed(self, incarnation: int, write_seq: int) -> None:
        if incarnation != self.incarnation or self._postponed(
            self._flushed, incarnation, write_seq
        ):
            return
        world = self.world
        if world.heap.now_ms < self.stalled_until_ms:
            world.heap.push(self.stalled_until_ms, self._flushed, incarnation, write_seq)
            return
        world.acting = self
        writes = self._in_flight
        left = self.writer.carry_out(writes)
        self._in_flight = ()
        done = writes[: len(writes) - len(left)]
        world.invariants.synced(self.shadow, done)
        world.trace.event(world.heap.now_ms, self.name, write_seq, len(done))
        if world.trace.write is not None:
            text = f"synced {len(done)} writes, log ends at {self.log.end.index}"
            world.trace.line(world.heap.now_ms, self.name, text)
        self._mark_is_behind = True
        self.broker.synced(write_seq - len(left))
        self._note_progress()
        self._is_flushing = False
        if left:
            self._wait_for_space(left)
        elif self._is_full:
            self._is_full = False
            self.core.disk_full(False, self.local_ms())
        self.pump()
        if self._writes and not self._is_flushing:
            self._start_flush()

    def _wait_for_space(self, left: Sequence[Write]) -> None:
        """Keep what the full disk did not take, in order, and try again a little later."""
        heap = self.world.heap
        self._writes[:0] = left
        self._is_full = self._is_flushing = True
        heap.push(heap.now_ms + FULL_RETRY_MS, self._try_again, self.incarnation)
        self.core.disk_full(True, self.local_ms())

    def _try_again(self, incarnation: int) -> None:
        if incarnation == self.incarnation and not self._postponed(self._try_again, incarnation):
            self._start_flush()

    def _note_progress(self) -> None:
        """Move the synced-to mark and the checkpoint, which may both lag."""
        heap, settings = self.world.heap, self.world.settings
        due_ms = self._marked_ms + settings.mark_lag_ms
        if self._mark_is_behind and heap.now_ms >= due_ms:
            self.writer.advance_mark()
            self._marked_ms = heap.now_ms
            self._mark_is_behind = False
        elif self._mark_is_behind and not self._mark_is_timed:
            self._mark_is_timed = True
            heap.push(due_ms, self._mark_due, self.incarnation)
        checkpoint_index = self.core.ledger.checkpoint_index
        is_due = heap.now_ms - self._checkpoint_ms >= settings.checkpoint_interval_ms
        if is_due and checkpoint_index > self._checkpointed:
            self.log.save_checkpoint(checkpoint_index)
            self._checkpoint_ms = heap.now_ms
            self._checkpointed = checkpoint_index

    def _mark_due(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self._postponed(self._mark_due, incarnation):
            return
        self.world.acting = self
        self._mark_is_timed = False
        if not self._is_flushing:  # else the flush under way moves the mark
            self._note_progress()


def raft_config(settings: Any) -> RaftConfig:
    """Return the core's configuration of a run."""
    return RaftConfig(
        election_timeout_min_ms=settings.election_timeout_min_ms,
        election_timeout_max_ms=settings.election_timeout_max_ms,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        quorum_silence_max_ms=settings.quorum_silence_max_ms,
        retransmit_after_ms=settings.retransmit_after_ms,
        lease_ms=settings.lease_ms,
        push_bytes_max=settings.push_bytes_max,
        in_flight_pushes_max=settings.in_flight_pushes_max,
        tail_bytes_max=settings.tail_bytes_max,
    )

"""The whole-node world: unchanged nodes and clients on trio, one seed, the core world's faults.

Everything follows from the schedule: time is the heap's, sockets and disks are simulated, and the
order in which trio runs its tasks comes from a random stream.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

import trio
from trio._core import _run

from shaketable.system.broker.limits import ExpiryConfig
from shaketable.system.invariants.saved_files import check_equal_states
from shaketable.system.invariants.violated import Violated
from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.node.config import NodeConfig
from shaketable.system.raft.protocol import Message, Role, RoleChange, Write
from shaketable.system.remoting.command import watched_frames
from shaketable.system.sim.broken_starts.broken_confs import check_refused
from shaketable.system.sim.clients import TOPIC_BYTES, stored_numbers
from shaketable.system.sim.disk import PowerLoss
from shaketable.system.sim.fault_actions import RESTART_AFTER_MS, FaultActions
from shaketable.system.sim.initial_disks.older_stores import OlderStores
from shaketable.system.sim.initial_disks.plain_messages import PlainMessages
from shaketable.system.sim.member import PLAIN_FOLDER, QUEUE_FILE_BYTES
from shaketable.system.sim.rules.call_invariants import watched_calls
from shaketable.system.sim.rules.client_history import (
    APPEND,
    OK,
    UNKNOWN,
    Operation,
    check_delivered,
    check_history,
    check_refusals,
)
from shaketable.system.sim.rules.invariants import Invariants
from shaketable.system.sim.rules.master_slave_invariants import MasterSlaveInvariants
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.run_trace import Counts, Trace
from shaketable.system.sim.schedules.faults import ALWAYS_DETECTED, REBUILT, DamageFile, damage_file
from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.sim.schedules.schedule import Options, Schedule, draw_schedule, raft_config
from shaketable.system.sim.trio_world.clients import TrioClients
from shaketable.system.sim.trio_world.clocks import CURRENT, Deadlock, HeapClock
from shaketable.system.sim.trio_world.host import CLIENT_PORT, PEER_PORT, STORE_ROOT, Host
from shaketable.system.sim.trio_world.tcp_network import TcpNetwork
from shaketable.system.sim.trio_world.tcp_pipe import bad_frame
from shaketable.system.sim.trio_world.trio_operator import StatusQueries, TrioOperator
from shaketable.system.sim.world import CATCH_UP_MS, SETTLE_MS_MAX, SeedResult, delayed_due_by_ms
from shaketable.system.store.disk import DiskFailed, DiskFull, StoreError
from shaketable.system.store.log_writer import AckPolicy

GROUP = "simulated"


class TrioWorld:
    """One run. `run` returns the first violated invariant, or None."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        mutant: Mutant = HEALTHY,
        trace: Trace | None = None,
        stops_at_violation: bool = True,
        configs: Mapping[str, NodeConfig] | None = None,
    ) -> None:
        """Assemble a world.

        Args:
            schedule: the seed, settings, faults and calls.
            mutant: the parts of its nodes; one with a planted bug, perhaps.
            trace: records everything that happens.
            stops_at_violation: whether the first violated invariant ends the run.
            configs: the nodes' configurations by machine, if not from the settings.
        """
        settings = self.settings = schedule.settings
        self.mutant = mutant
        self.trace = trace or Trace()
        self.rngs = RandomStreams(schedule.seed)
        self.clock = HeapClock()
        self.heap = self.clock.heap
        self.counts = Counts()
        self.invariants = Invariants(self.counts)
        self.broker_invariants = MasterSlaveInvariants()
        self.network = TcpNetwork(
            self.clock,
            self.rngs,
            self._link_times,
            self._note_segment,
            lambda found: self.violated(found, found.node),
            settings.chopped,
        )
        self.plain_log = PlainMessages(
            self.rngs, settings.plain_log, settings.data_file_bytes, TOPIC_BYTES
        )
        held = {queue: [*messages] for queue, messages in self.plain_log.queues.items()}
        self.invariants.queues.update(held)
        self._configs = configs or {}
        self.bootstrap = tuple(configs or (f"n{number}" for number in range(settings.members)))
        self.members: dict[str, Host] = {}
        self.older = OlderStores(self.rngs, settings, self.bootstrap, self.plain_log, TOPIC_BYTES)
        self.invariants.older_index = self.older.committed_index
        for name in self.bootstrap:
            self._add_host(name)
        self.clients = TrioClients(self, settings.clients)
        self.operator = TrioOperator(self)
        self.status = StatusQueries(self)
        self.healed_ms = float(max((fault.end_ms for fault in schedule.faults), default=0))
        self.delayed_due_by_ms = delayed_due_by_ms(schedule)
        self._schedule = schedule
        self.actions = FaultActions(self)
        self.found: Violation | None = None
        """The first violated invariant."""
        self.due_index = -1
        """What is committed in time to be applied everywhere at the end."""
        self.on_log_line: LogLine | None = None
        """Called with each line that nodes log."""
        self._stops_at_violation = stops_at_violation
        self._nursery: trio.Nursery | None = None
        self._stopping: dict[
            str, bool
        ] = {}  # nodes that are stopping, and whether they lose power then

    # ---- running ----------------------------------------------------------------------

    def run(self) -> Violation | None:
        """Run to the end, or to the first violated invariant."""
        heap, schedule = self.heap, self._schedule
        for fault in schedule.faults:
            heap.push(fault.start_ms, self.actions.apply, fault)
        heap.push(max(0.0, self.settings.run_ms - CATCH_UP_MS), self._note_due)
        for call in schedule.calls:
            heap.push(call.at_ms, self.clients.call, call)
        if not self._configs:
            heap.push(0.0, self.spawn, self.status.ask_for_ever)
        heap.push(float(self.settings.run_ms), self._finish)
        self.run_with(trio.sleep_forever)
        if self.found is None:
            try:
                self._check_end()
            except Violated as found:
                self.violated(found, found.node)
        return self.found

    def run_with(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run all members until `main` returns, or until the run is finished."""
        for host in self.members.values():
            self.heap.push(0.0, self.restart, host)
        self.clock.on_failure = self._finish
        with (
            node_log_to(self.trace, self.clock, self.on_log_line),
            watched_frames(self._bad_frame),
            watched_calls(lambda found: self.violated(found, _current_host())),
        ):
            run_seeded(partial(self._main, main), self.clock, self.rngs.stream("scheduler"))
        self._raise_failure()
        self._finish_counts()

    def spawn(self, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start a task, which ends with the run at the latest."""
        if self._nursery is not None:
            self._nursery.start_soon(work, *args)

    def violated(self, found: Violated, node: str) -> None:
        """Record a violated invariant: the first one ends the run."""
        if self.found is None:
            self.found = Violation(
                found.invariant, found.finding, self.clock.now_ms, found.node or node
            )
            if self._stops_at_violation:
                self._finish()

    def _bad_frame(self, problem: str) -> None:
        found = bad_frame(problem, _current_host())
        self.violated(found, found.node)

    async def _main(self, main: Callable[[], Awaitable[None]]) -> None:
        trio.socket.set_custom_socket_factory(self.network)
        trio.socket.set_custom_hostname_resolver(self.network)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await main()
            self._finish()
        for party in (self.clients, self.operator, self.status):
            try:
                party.close()
            except Violated as found:
                self.violated(found, found.node)

    def _finish(self) -> None:
        """End the run here: no task goes on."""
        if self._nursery is None:
            return
        nursery, self._nursery = self._nursery, None
        for host in self.members.values():
            host.end()
        self.clock.stop()
        nursery.cancel_scope.cancel()

    def _raise_failure(self) -> None:
        failure = self.clock.failure
        if isinstance(failure, Violated):
            self.violated(failure, failure.node)
        elif isinstance(failure, Deadlock):
            self.violated(Violated("no-deadlock", str(failure)), "")
        elif failure is not None:
            raise failure

    # ---- members ----------------------------------------------------------------------

    def _add_host(self, name: str, *, is_joining: bool = False) -> Host:
        address = address_of(name)
        self.network.add_host(name, address)
        config = self._configs.get(name) or self._config_of(name, address, is_joining=is_joining)
        host = self.members[name] = Host(self, name, address, config)
        if config.plain_log is not None:
            tear = self.rngs.stream(f"native_log/{name}").random()
            self.plain_log.write(host.disk, str(config.plain_log), tear)
        return host

    def _config_of(self, name: str, address: str, *, is_joining: bool) -> NodeConfig:
        settings = self.settings
        members = (*self.bootstrap, name) if is_joining else self.bootstrap
        return NodeConfig(
            self_id=name,
            group=GROUP,
            peers={member: (address_of(member), PEER_PORT) for member in members},
            listen_port=CLIENT_PORT,
            store_root=Path(STORE_ROOT),
            host=address,
            data_file_bytes=settings.data_file_bytes,
            index_file_bytes=settings.index_file_bytes,
            is_joining=is_joining,
            ack_policy=cast("AckPolicy", settings.ack),
            raft=raft_config(settings),
            expiry=ExpiryConfig(reserved_ms=settings.reserved_ms),
            queue_file_bytes=QUEUE_FILE_BYTES,
            pending_sends_max=settings.pending_sends_max,
            plain_log=Path(PLAIN_FOLDER) if settings.plain_log and not is_joining else None,
            is_key_indexed=settings.key_items_max > 0,
            hash_slots=settings.key_slots,
            index_items_max=settings.key_file_items,
        )

    @property
    def present(self) -> dict[str, Host]:
        """All members except those removed for good, in the order they were added."""
        return {name: host for name, host in self.members.items() if not host.is_removed}

    def new_member(self) -> Host:
        """Start an empty node that waits to be added to the group."""
        host = self._add_host(f"n{len(self.members)}", is_joining=True)
        self.clients.learn(host)
        self.operator.learn(host)
        self.status.client.learn(host.name, host.address, CLIENT_PORT)
        self.heap.push(self.clock.now_ms, self.restart, host)
        return host

    def shut_down(self, name: str) -> None:
        """Stop a node for good."""
        host = self.members[name]
        if host.is_removed:
            return
        if host.is_up:
            self.crash(host, loses_unsynced=False)
        host.is_removed = True
        self.clients.forget(name)
        self.operator.forget(name)
        self.status.client.forget(name)

    def lose_disk(self, host: Host) -> None:
        """Lose a node's disk: a new node with a new id replaces it."""
        self.shut_down(host.name)
        self.operator.replace(host.name)

    def flip_log_bit(self, host: Host, place: float, bit: int) -> bool:
        """Kill a node and flip one bit of its log before the durable watermark.

        Return False where there is no such bit. After the watermark it would be a torn tail, which
        a node rightly truncates.
        """
        if host.node is None:
            return False
        try:
            host.log.advance_watermark()
        except (DiskFailed, DiskFull, PowerLoss):
            return False  # the node will see that error, too
        first, end = host.log.start.position, host.log.synced.position
        if end - first < 1:
            return False
        position = first + int(place * (end - first))
        file_bytes = self.settings.data_file_bytes
        start = position // file_bytes * file_bytes
        path = f"{STORE_ROOT}/dledger-{host.name}/data/{start:020}"
        platter = host.disk.platter
        if path not in platter.inodes or position - start >= platter.written_size(path):
            return False  # after a file's last entry
        self.crash(host, loses_unsynced=False)
        if position - start >= platter.written_size(path):
            return False  # the process was about to replace its log by a snapshot
        platter.flip_bit(path, position - start, bit)
        host.is_damaged = True
        return True

    def stop(self, host: Host, *, loses_power: bool) -> None:
        """Stop a node cleanly; it takes some time, and is restarted."""
        self._stopping[host.name] = loses_power
        self.counts.stops += 1
        host.stop()

    def damage(self, host: Host, fault: DamageFile) -> bool:
        """Kill a node and damage one of its files; return False where there is none."""
        if host.node is not None:
            with suppress(DiskFailed, DiskFull, PowerLoss):
                host.log.advance_watermark()
        self.crash(host, loses_unsynced=False)
        platter = host.disk.platter
        if not damage_file(platter, STORE_ROOT, host.name, fault.file, fault.way, fault.place):
            return False
        self.counts.files_damaged += 1
        host.is_damaged = host.is_damaged or fault.file not in REBUILT
        host.must_detect = fault.file in ALWAYS_DETECTED
        return True

    def client_addresses(self) -> dict[str, tuple[str, int]]:
        """Return the members' addresses for clients."""
        return {name: (host.address, CLIENT_PORT) for name, host in self.members.items()}

    def node_rng_factory(self, host: Host) -> Callable[[str], Random]:
        """Return a factory of a node's random streams, new ones for each incarnation."""
        prefix = f"node/{host.name}/{host.incarnation}"
        return lambda purpose: self.rngs.stream(f"{prefix}/{purpose}")

    def leader(self) -> str | None:
        """Return the leader; if several members claim to lead, the one of the highest term."""
        leaders = [
            host
            for host in self.members.values()
            if host.node is not None and host.node.broker.core.role is Role.LEADER
        ]
        return max(leaders, key=_term).name if leaders else None

    def crash(self, host: Host, *, loses_unsynced: bool) -> None:
        """Kill a host's process; with `loses_unsynced`, crash the machine."""
        self.counts.crashes += 1
        self.trace.event(self.clock.now_ms, host.name, loses_unsynced)
        text = "crash with loss of what was not synced" if loses_unsynced else "crash"
        self._line(host.name, text)
        host.crash(loses_unsynced=loses_unsynced)

    def restart(self, host: Host) -> None:
        """Start a host that is down."""
        if host.is_up or host.is_removed or self._nursery is None:
            return
        if host.incarnation:
            self.counts.restarts += 1
        host.start()

    # ---- reports of hosts -------------------------------------------------------------

    def node_started(self, host: Host) -> None:
        """A node has recovered and serves."""
        if host.must_detect:
            raise Violated("damage-is-noticed", "it starts on what is damaged", host.name)
        assert host.node is not None, "it has started"
        end_index = host.node.commit_log.end.index
        self.trace.event(self.clock.now_ms, host.name, end_index)
        self._line(host.name, f"starts, log up to {end_index}, term {_term(host)}")

    def lost_power(self, host: Host) -> None:
        """A host's disk lost power in the middle of an operation."""
        if host.is_up:
            self.counts.fault("crash_at_operation")
            self.crash(host, loses_unsynced=host.loses_unsynced)
            self.heap.push(self.clock.now_ms + RESTART_AFTER_MS, self.restart, host)

    def process_ended(self, host: Host, error: BaseException | None) -> None:
        """A node's process ended by itself: a violation, unless a fault explains it."""
        if isinstance(error, PowerLoss):
            self.lost_power(host)
            return
        loses_power = self._stopping.pop(host.name, None)
        is_damage = host.is_damaged and not host.disk.explains(error)
        self.crash(host, loses_unsynced=error is None and bool(loses_power))
        if error is None:
            if loses_power is not None:
                self.heap.push(self.clock.now_ms + RESTART_AFTER_MS, self.restart, host)
            return
        if is_damage and isinstance(error, StoreError):
            self.lose_disk(host)  # as its error says: restore it from the group
            return
        if isinstance(error, DiskFailed | DiskFull):
            self.counts.stopped_by_disk += 1
            self.heap.push(self.clock.now_ms + RESTART_AFTER_MS, self.restart, host)
            return
        found = Violated("node-runs-on", f"{type(error).__name__}: {error}", host.name)
        found.__cause__ = error
        self.violated(found, host.name)

    def changed_role(self, host: Host, change: RoleChange) -> None:
        """A node's role, term or leader changed."""
        self.actions.changed_role(host.name, change)
        self.counts.states.add((change.role.value, "entered"))
        text = f"is {change.role.value} of term {change.term}, leader {change.leader}"
        self._line(host.name, text)

    def _note_due(self) -> None:
        self.due_index = self.invariants.committed_index

    def ordered(self, host: Host, writes: Sequence[Write]) -> None:
        """A node is about to hand writes to its disk."""
        self.actions.ordered(host, writes)

    def received(self, host: Host, role: str, message: Message) -> None:
        """A node receives a message from another member."""
        self.counts.states.add((role, type(message).__name__))

    def note_operation(self, operation: Operation) -> None:
        """A client's operation ended."""
        self.trace.event(operation.end_ms, operation.outcome, operation.number, operation.offset)
        if self.trace.write is not None:
            self._line(f"c{operation.client}", repr(operation))

    def _note_segment(self, source: str, target: str, size: int, checksum: int) -> None:
        self.trace.event(self.clock.now_ms, f"{source}>{target}", size, checksum)
        if self.trace.write is not None:
            self._line(target, f"<- {source} tcp {size} {checksum:08x}")

    def _line(self, node: str, text: str) -> None:
        if self.trace.write is not None:
            self.trace.line(self.clock.now_ms, node, text)

    def _link_times(self, source: str, target: str) -> tuple[float, float]:
        settings = self.settings
        if source in self.members and target in self.members:
            return settings.link_delay_ms, settings.link_jitter_ms
        return settings.client_delay_ms, settings.client_delay_ms

    def _check_end(self) -> None:
        """Check what must hold at the end; a subclass may check other things."""
        check_end(self)

    def _finish_counts(self) -> None:
        counts = self.counts
        counts.events = self.heap.popped
        counts.messages = self.network.sent
        counts.messages_lost = self.network.lost
        counts.disk_operations = sum(host.disk.platter.operations for host in self.members.values())


def address_of(name: str) -> str:
    """Return a node's IP address; `system.sim.group_operator` uses the same scheme."""
    return f"10.0.0.{1 + int(name[1:])}"


def _current_host() -> str:
    """Return the host of the running task; "" in a task of trio's own, as connections' readers."""
    process = CURRENT.get(None)
    return "" if process is None else process.host


def _term(host: Host) -> int:
    return host.node.broker.core.term if host.node is not None else -1


# The log of simulated nodes and name servers: part of the trace, and passed to `on_log_line`.

_LOGS = ("shaketable.node", "shaketable.name_server")

LogLine = Callable[[float, str, str, str], None]
"""Called with each line: virtual milliseconds, host, level, text."""


class _Handler(logging.Handler):
    def __init__(self, trace: Trace, clock: HeapClock, on_log_line: LogLine | None) -> None:
        super().__init__()
        self._trace = trace
        self._clock = clock
        self._on_said = on_log_line

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get(None)
        name = process.host if process is not None else "-"
        text = record.getMessage()
        if self._trace.write is not None:
            self._trace.line(self._clock.now_ms, name, f"log {text}")
        if self._on_said is not None:
            self._on_said(self._clock.now_ms, name, record.levelname, text)


@contextmanager
def node_log_to(
    trace: Trace, clock: HeapClock, on_log_line: LogLine | None = None
) -> Iterator[None]:
    """Send the nodes' logs to the trace's lines and to `on_log_line`, or discard them.

    The loggers are restored afterwards.
    """
    logs = [logging.getLogger(name) for name in _LOGS]
    before = [(log.level, log.propagate) for log in logs]
    handler = _Handler(trace, clock, on_log_line)
    for log in logs:
        log.propagate = False
        if trace.write is None and on_log_line is None:
            log.setLevel(logging.CRITICAL + 1)
        else:
            log.setLevel(logging.INFO)
            log.addHandler(handler)
    try:
        yield
    finally:
        for log, (level, propagate) in zip(logs, before, strict=True):
            log.removeHandler(handler)
            log.propagate = propagate
            log.setLevel(level)


# trio.run under a seed: its run queue is shuffled by our random stream, reproducibly.
#
# trio shuffles the ready tasks with a module-level Random, and in a deterministic order only if a
# module flag is set. Both are private, so trio's version is pinned, and both are restored.

Result = TypeVar("Result")


def run_seeded(main: Callable[[], Awaitable[Result]], clock: HeapClock, rng: Random) -> Result:
    """Run `main` on virtual time, with tasks in an order that `rng` decides.

    Raises what `main` raises.
    """
    with _scheduling_drawn_from(rng):
        return trio.run(main, clock=clock, strict_exception_groups=True)


@contextmanager
def _scheduling_drawn_from(rng: Random) -> Iterator[None]:
    private = vars(_run)
    before = {name: private[name] for name in ("_r", "_ALLOW_DETERMINISTIC_SCHEDULING")}
    private.update(_r=rng, _ALLOW_DETERMINISTIC_SCHEDULING=True)
    try:
        yield
    finally:
        private.update(before)


# What must hold when a run of whole nodes is over: the clients' history, and recovery of all nodes.


def check_end(world: TrioWorld) -> None:
    """Check the clients' history, and that the group recovered. Raises Violated."""
    history = world.clients.history
    check_history(history)
    check_refusals(history, stored_numbers(world.older.newer(world.invariants.queues)))
    _check_live(world)
    world.counts.broken += check_refused(world.bootstrap[0])


def _check_live(world: TrioWorld) -> None:
    """Check that after the last fault appends succeed and all members catch up."""
    due_ms = world.healed_ms + SETTLE_MS_MAX
    if due_ms > world.settings.run_ms - world.settings.idle_ms:
        return  # a schedule that leaves no time to settle promises nothing
    _check_acknowledged(world, due_ms)
    world.operator.check_done()
    committed = world.invariants.committed_index
    for host in world.members.values():
        if host.is_removed:
            continue
        if host.node is None:
            raise Violated("every-node-runs", "still down at the end", host.name)
        index = host.node.broker.applied_index
        if not world.due_index <= index <= committed:
            raise Violated(
                "every-node-catches-up",
                f"applied {index} of {committed} committed entries at the end",
                host.name,
            )
        world.older.config.check(host.node.broker, host.name)
    queues = world.invariants.queues
    check_delivered(
        world.clients.history,
        queues,
        stored_numbers(world.older.newer(queues)),
        from_position=world.invariants.expired_position,
        due_by_ms=world.delayed_due_by_ms,
    )
    hosts = {name: host for name, host in world.members.items() if not host.is_removed}
    nodes = {name: host.node for name, host in hosts.items() if host.node is not None}
    check_equal_states({name: node.broker for name, node in nodes.items()})
    world.older.check_kept(world.invariants.queues)


def _check_acknowledged(world: TrioWorld, due_ms: float) -> None:
    """Check that appends succeed after the last fault, at least one in time.

    A client detects that its connection to a crashed node is broken only when it next uses it. That
    says nothing about the group, unless all operations end like that.
    """
    timeout_ms = world.settings.client_timeout_ms
    since = [
        operation
        for operation in world.clients.history
        if operation.kind == APPEND and operation.invoke_ms >= world.healed_ms
    ]
    asked = [operation for operation in since if operation.invoke_ms <= due_ms]
    if not asked or any(op.outcome == OK and op.end_ms <= due_ms for op in asked):
        return
    is_known = any(op.outcome != UNKNOWN or op.end_ms - op.invoke_ms >= timeout_ms for op in asked)
    if is_known or not any(op.outcome == OK for op in since):
        raise Violated(
            "appends-succeed",
            f"none was acknowledged within {SETTLE_MS_MAX:.0f} ms after the last fault",
        )


OPERATIONS_PER_S = 60
"""Fewer than in the core world: a whole node costs ten times as much per message."""


def run_seed(
    seed: int,
    options: Options | None = None,
    *,
    schedule: Schedule | None = None,
    mutant: Mutant | None = None,
    trace: Callable[[str], None] | None = None,
) -> SeedResult:
    """Run a seed's schedule, or the given one, to its end or the first violation.

    `mutant` plants a bug; `trace` is called with each line of the trace.
    """
    if schedule is None:
        schedule = draw_schedule(seed, options or Options(operations_per_s=OPERATIONS_PER_S))
    recorder = Trace(trace)
    world = TrioWorld(schedule, mutant=mutant or HEALTHY, trace=recorder)
    violation = world.run()
    ends = (
        f"{name} {shadow.end_index} {shadow.end_crc} {shadow.commit_index}"
        for name, shadow in world.invariants.shadows.items()
    )
    digest = recorder.final_digest(ends, violation)
    history = tuple(world.clients.history)
    return SeedResult(schedule.seed, violation, world.counts, digest, history)

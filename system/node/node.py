"""A node: runs the broker core with its disk, replication and clients in one trio nursery.

`NodeParts` are the parts that differ between a group's member and a master-slave broker.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Protocol

import msgspec
import trio

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.limits import DataFile
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.connections.link import (
    Link,
    Reception,
    guarded,
    listen,
    port_of,
    write_until_broken,
)
from shaketable.system.node.connections.registration import Registration, RegistrationState
from shaketable.system.node.machine import Machine, sleep
from shaketable.system.node.recorder import Recorder
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message, Role, Write
from shaketable.system.remoting.command import Command, Frame
from shaketable.system.remoting.name_server_requests import TopicConfig
from shaketable.system.remoting.requests import SendRequest, decode_request
from shaketable.system.store.broker_checkpoint import CheckpointFiles
from shaketable.system.store.commit_log import OutsideLog
from shaketable.system.store.disk import DiskFull
from shaketable.system.store.log_writer import WritableLog
from shaketable.system.store.message import host_bytes

# The parts that differ.


class WriteQueue(Protocol):
    """Carries out the core's writes (`system.node.flusher.Flusher`)."""

    def add(self, writes: Sequence[Write], write_seq: int) -> None:
        """Queue writes with consecutive numbers, of which the last is `write_seq`."""

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is carried out."""

    async def until_durable(self) -> None:
        """Wait until everything added so far is durable."""

    async def run(self) -> None:
        """Carry out writes until cancelled. Raises DiskFailed."""


class Replication(Protocol):
    """Connections with the other replicas of the log (`system.node.members.Members`)."""

    @property
    def broker_id(self) -> int | None:
        """The broker id to register at name servers now, None for none."""

    @property
    def slave_port(self) -> int | None:
        """The port that it listens on for slaves, None if it serves none."""

    async def open(self) -> None:
        """Listen. Raises PortInUseError."""

    async def run(self) -> None:
        """Serve and keep connections until cancelled."""

    async def stop(self) -> None:
        """Save what is pending, after `run` was cancelled."""

    def send(self, peer: str, message: Message) -> None:
        """Send a message from the core to another member."""

    def follow(self, membership: Membership) -> None:
        """Use this membership from now on."""

    def on_registered(self, ext: Mapping[str, str]) -> bool:
        """Handle a name server's response; return False to register again soon."""

    def effects_applied(self) -> None:
        """Check whether there is more to send, after effects were carried out."""


class FullFiles(Protocol):
    """Finds data files that may expire (`system.node.disks.data_files.DataFiles`)."""

    def full_files(self, index: int) -> list[DataFile]:
        """Return the full files that end at or before `index`, oldest first."""


@dataclass(frozen=True, slots=True)
class WriteHooks:
    """The callbacks of a write queue.

    `on_synced(write_seq)`: writes up to this one are carried out. `on_disk_full(is_full)`: the disk
    became full, or has room again. `before_install()`: awaited before a snapshot replaces the log.
    """

    on_synced: Callable[[int], None]
    on_disk_full: Callable[[bool], None]
    before_install: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts of one node.

    `new_replication` is called with the function that schedules effects and the node's `Reception`.
    """

    commit_log: WritableLog
    data_files: FullFiles
    new_write_queue: Callable[[WriteHooks], WriteQueue]
    new_replication: Callable[[Callable[[], None], Reception], Replication]


CLIENT_OUT_BYTES_MAX = 64 << 20
DISK_MEASURE_INTERVAL_MS = 1000.0
TRANSFER_POLL_MS = 10.0
FINAL_WRITES_TIMEOUT_MS = 2000.0
"""How long a stopping node waits for its disk. After a timeout the next start replays more."""

log = logging.getLogger("shaketable.node")


class Node:
    """One running node. `run` ends when cancelled, or with an error that must stop the node."""

    def __init__(
        self,
        config: NodeConfig,
        machine: Machine,
        broker: Broker,
        parts: NodeParts,
        files: CheckpointFiles,
        recorder: Recorder | None = None,
    ) -> None:
        self.broker = broker
        self.commit_log = parts.commit_log
        self._recorder = recorder
        self.config = config
        self._machine = machine
        self._clock = machine.clock
        self._flusher = parts.new_write_queue(
            WriteHooks(self._on_synced, self._on_disk_full, self._before_install)
        )
        self._checkpointer = Checkpointer(
            broker, files, machine, self._flusher.until_durable, self._schedule_effects
        )
        self._data_files = parts.data_files
        self._reception = Reception(machine.new_poll(), self._carry_out)
        self._replication = parts.new_replication(self._schedule_effects, self._reception)
        self._has_effects = self._is_carrying_out = False
        self._clients: dict[int, Link] = {}
        self._numbers = count(1)
        self._dirty = trio.Event()
        self._shutdown_requested = trio.Event()
        self._timer_changed = trio.Event()
        self._timer_due_ms = 0.0
        self._measure = trio.Event()
        self._older_by_ms = 0
        self._registration = (
            Registration(
                config,
                machine.clock,
                self._registration_state,
                self._topics,
                self._replication.on_registered,
            )
            if config.name_servers
            else None
        )

    async def run(self) -> None:
        """Serve until cancelled, or until `request_shutdown`.

        Raises PortInUseError, StoreError or InvariantError.
        """
        config = self.config
        await self._replication.open()
        client_listeners = await listen(config.host, config.listen_port, "clients")
        port = port_of(client_listeners)
        if self._registration is not None:
            self._registration.listens(port, self._replication.slave_port)
        log.info("event=serving node=%s clients=%s:%d", config.self_id, config.host, port)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flusher.run)
            nursery.start_soon(self._checkpointer.run)
            nursery.start_soon(self._watch_disk)
            nursery.start_soon(self._replication.run)
            nursery.start_soon(self._pump)
            nursery.start_soon(self._timer)
            nursery.start_soon(self._reception.run)
            nursery.start_soon(self._shut_down_when_requested, nursery.cancel_scope)
            if self._registration is not None:
                nursery.start_soon(self._registration.run)
            await trio.serve_listeners(
                guarded(self._serve_client, config.client_connections_max),
                client_listeners,
            )

    def request_shutdown(self) -> None:
        """Let `run` end cleanly; a leader first transfers leadership, if a follower can lead."""
        self._shutdown_requested.set()

    async def _shut_down_when_requested(self, scope: trio.CancelScope) -> None:
        await self._shutdown_requested.wait()
        core = self.broker.core
        self.broker.resign(self._clock.now_ms())
        self._schedule_effects()
        # Bounded: the core gives a transfer up after a timeout.
        while core.role is Role.LEADER and core.transferee is not None:
            await sleep(self._clock, TRANSFER_POLL_MS)
        self._schedule_effects()
        await sleep(self._clock, TRANSFER_POLL_MS)  # let pending replies go out
        with self._clock.move_on_at(self._clock.now_ms() + FINAL_WRITES_TIMEOUT_MS):
            await self._flusher.until_durable()  # so that `stop` can save a checkpoint
        scope.cancel()

    async def stop(self) -> None:
        """Save checkpoints and close files, after `run` ended. Raises StoreError."""
        await self._replication.stop()
        if self._flusher.is_idle:
            await self._checkpointer.save()
        if self._recorder is not None:
            self._recorder.close()
        await self._machine.run_disk_work(self._close_files)

    def _close_files(self) -> None:
        with suppress(DiskFull):  # only hints: recovery works without them
            self.commit_log.save_checkpoint(self.broker.core.ledger.checkpoint_index)
            self.commit_log.advance_watermark()
        self._checkpointer.close()
        self.commit_log.close()

    # ---- time and effects -------------------------------------------------------------

    def _schedule_effects(self) -> None:
        """Have effects carried out, at the latest in the next step of the scheduler."""
        self._has_effects = True
        if not self._reception.is_reading:
            self._dirty.set()

    async def _pump(self) -> None:
        """Carry out effects once for all inputs of a scheduler step."""
        while True:
            await self._dirty.wait()
            self._dirty = trio.Event()
            self._carry_out()

    def _carry_out(self) -> None:
        """Carry out effects, if there may be any.

        Called directly after client requests and after a flush: each scheduler step between a
        request and its reply costs as much as ten messages.
        """
        if self._is_carrying_out:  # reentrant call: leave the rest to the pump
            self._dirty.set()
            return
        if not self._has_effects:
            return
        self._has_effects, self._is_carrying_out = False, True
        try:
            self._apply_effects()
        finally:
            self._is_carrying_out = False

    def _apply_effects(self) -> None:
        effects = self.broker.take(self._clock.now_ms(), self._clock.wall_ms())
        if effects.installed is not None:
            self._checkpointer.discard_pending()
        if effects.writes:
            self._flusher.add(effects.writes, effects.write_seq)
        for peer, message in effects.messages:
            self._replication.send(peer, message)
        for number, replies in effects.replies.items():
            self._reply(number, replies)
        for change in effects.role_changes:
            log.info(
                "event=role role=%s term=%d leader=%s",
                change.role.value,
                change.term,
                change.leader or "-",
            )
        if effects.membership is not None:
            self._replication.follow(effects.membership)
        self._replication.effects_applied()
        if self._registration is not None:
            self._registration.refresh()
        if effects.has_more:
            self._schedule_effects()
        if effects.is_checkpoint_due:
            self._checkpointer.checkpoint_soon()
        if self.broker.core.deadline_ms < self._timer_due_ms:
            self._timer_changed.set()

    async def _timer(self) -> None:
        while True:
            now_ms = self._clock.now_ms()
            self._timer_due_ms = self.broker.core.deadline_ms
            if now_ms >= self._timer_due_ms:
                self.broker.tick(now_ms)
                self._schedule_effects()
                await trio.lowlevel.checkpoint()
                continue
            with self._clock.move_on_at(self._timer_due_ms):
                await self._timer_changed.wait()
                self._timer_changed = trio.Event()

    def _on_synced(self, write_seq: int) -> None:
        self.broker.synced(write_seq, self._clock.now_ms())
        self._has_effects = True
        self._carry_out()

    def _on_disk_full(self, is_full: bool) -> None:
        log.warning("event=disk_full is_full=%s", is_full)
        self.broker.disk_full(is_full, self._clock.now_ms())
        self._schedule_effects()

    async def _before_install(self) -> None:
        """Wait until no checkpoint of the old log is being saved, before a snapshot replaces it."""
        await self._checkpointer.until_idle()

    def measure_disk(self, older_by_ms: int = 0) -> None:
        """Measure the disk now. Tests can make the data files look `older_by_ms` older."""
        self._older_by_ms = older_by_ms
        self._measure.set()

    async def _watch_disk(self) -> None:
        """Periodically report to the broker how full the disk is and which files may expire."""
        root = str(self.config.store_root)
        core = self.broker.core

        def measure() -> tuple[float, list[DataFile]]:
            files = self._data_files.full_files(core.ledger.checkpoint_index)
            return self._machine.disk.used_ratio(root), files

        while True:
            with self._clock.move_on_at(self._clock.now_ms() + DISK_MEASURE_INTERVAL_MS):
                await self._measure.wait()
            self._measure = trio.Event()
            older_by_ms, self._older_by_ms = self._older_by_ms, 0
            try:
                used_ratio, files = await self._machine.run_disk_work(measure)
            except OutsideLog:
                continue  # the log was truncated or replaced meanwhile: try again next time
            wall_ms = self._clock.wall_ms() + older_by_ms
            self.broker.disk_usage(used_ratio, files, self._clock.now_ms(), wall_ms)
            self._schedule_effects()

    # ---- registration at name servers -------------------------------------------------

    def _registration_state(self) -> RegistrationState:
        broker = self.broker
        return RegistrationState(
            self._replication.broker_id, broker.core.term, broker.topics_version
        )

    def _topics(self) -> list[TopicConfig]:
        _, topics = self.broker.topic_table
        return [msgspec.convert(topic.to_wire(), TopicConfig) for topic in topics]

    def _reply(self, number: int, replies: list[bytes]) -> None:
        link = self._clients.get(number)
        if link is None:
            return
        if not link.send(replies[0] if len(replies) == 1 else b"".join(replies)):
            log.warning("event=client_too_slow connection=%d action=closed", number)
            link.close()

    # ---- connections ------------------------------------------------------------------

    async def _serve_client(self, stream: trio.SocketStream) -> None:
        number = next(self._numbers)
        host, port = stream.socket.getpeername()[:2]
        born_host = host_bytes(host, port)
        link = self._clients[number] = Link(stream.socket, CLIENT_OUT_BYTES_MAX)

        def on_frames(frames: list[Frame]) -> None:
            requests: list[SendRequest | Command] = [decode_request(frame) for frame in frames]
            self.broker.handle(
                number, born_host, requests, self._clock.now_ms(), self._clock.wall_ms()
            )
            self._schedule_effects()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write_until_broken, link)
                await self._reception.read(link, on_frames)
                nursery.cancel_scope.cancel()
        finally:
            del self._clients[number]
            self.broker.connection_closed(number)
            self._schedule_effects()  # the other consumers of its groups are notified


# Saves the broker's checkpoint every few seconds, concurrently with the log's writes.
#
# Source: RocketMQ's FlushConsumeQueueService and DefaultMessageStore's StoreCheckpoint.

CHECKPOINT_INTERVAL_MS = 3000.0
CHECKPOINT_PAUSE_MS = 100.0
"""The minimum time between two checkpoints, when the broker asks for one early."""


class Checkpointer:
    """Takes and saves the checkpoints of one broker.

    `until_durable()` waits until all writes that the broker emitted so far are durable.
    `on_saved()` is called after a checkpoint is saved: the broker may continue applying.
    """

    def __init__(
        self,
        broker: Broker,
        files: CheckpointFiles,
        machine: Machine,
        until_durable: Callable[[], Awaitable[None]],
        on_saved: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._files = files
        self._clock = machine.clock
        self._run_disk_work = machine.run_disk_work
        self._until_durable = until_durable
        self._on_saved = on_saved
        self._due = trio.Event()
        self._waiting = trio.CancelScope()
        self._saving = trio.Lock()

    async def run(self) -> None:
        """Save periodically until cancelled. Raises DiskFailed."""
        while True:
            await sleep(self._clock, CHECKPOINT_PAUSE_MS)
            rest_ms = CHECKPOINT_INTERVAL_MS - CHECKPOINT_PAUSE_MS
            with self._clock.move_on_at(self._clock.now_ms() + rest_ms):
                await self._due.wait()
            self._due = trio.Event()
            with trio.CancelScope() as self._waiting:
                await self.save()

    async def save(self) -> None:
        """Save the applied state, if it changed. On a full disk, retry at the next interval."""
        checkpoint = self._broker.take_checkpoint()
        if checkpoint is None:
            return
        # A checkpoint must not be ahead of the durable log: after a power loss it would describe
        # entries that no longer exist.
        await self._until_durable()
        async with self._saving:
            with suppress(DiskFull), trio.CancelScope(shield=True):
                await self._run_disk_work(partial(self._files.save, checkpoint))
                self._broker.checkpointed(checkpoint)
                self._on_saved()

    def checkpoint_soon(self) -> None:
        """Save soon: what the broker buffers between checkpoints is filling up."""
        self._due.set()

    def discard_pending(self) -> None:
        """Drop a checkpoint that was taken but not saved: a snapshot replaces its state."""
        self._waiting.cancel()

    async def until_idle(self) -> None:
        """Wait until no checkpoint is being saved: only then may a snapshot replace the log."""
        async with self._saving:
            pass

    def close(self) -> None:
        """Close the files."""
        self._files.close()

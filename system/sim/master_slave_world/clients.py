"""Clients of a master and its slaves: they send, read anywhere in a queue, and commit offsets.

Responses are checked at once. An offset of a queue never holds two messages, since the master keeps
what it wrote; a reader of expired messages is sent on to the first message that is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from shaketable.system.client import (
    DamagedResponseError,
    MessageQueue,
    OutcomeUnknownError,
    Producer,
    PullConsumer,
    Pulled,
    RefusedError,
)
from shaketable.system.invariants.violated import Violated
from shaketable.system.master_slave.ha import HEADER, HEARTBEAT_INTERVAL_MS, REPORT
from shaketable.system.sim.master_slave_world.setup import (
    BROKER,
    NAME_SERVER_ADDRESS,
    NAME_SERVER_PORT,
    NOWHERE,
    SAME_END,
    ForeignSlave,
    Setup,
)
from shaketable.system.sim.rules.client_history import APPEND, FAIL, OK, PULL, UNKNOWN, Operation
from shaketable.system.sim.trio_world.clocks import CURRENT, Process
from shaketable.system.sim.trio_world.host import PEER_PORT
from shaketable.system.sim.trio_world.world import TrioWorld

TOPIC = "simulated"
QUEUES = 2
GROUP = "readers"
TIMEOUT_S = 1.5
PRODUCERS, READERS = 2, 2
DELAYED = 0.1
LEVELS = 4
"""Delay levels in use; those of the last ones may have been there before."""
BATCHED = 0.3
READS_ANY_BROKER = 0.7
READS_FAR_BACK = 0.3
COMMITS = 0.15
READ_EVERY_MS = 120.0
FOREIGN_HOST, FOREIGN_ADDRESS = "stranger", "10.0.1.100"
LAGGING_HOST, LAGGING_ADDRESS = "laggard", "10.0.1.102"
LISTENER_HOST, LISTENER_ADDRESS = "listener", "10.0.1.101"
CONNECTED_MAX_S = 5.0
"""A correct master closes the connection of a foreign slave at once."""
REPORT_INTERVAL_S = 0.2
LISTENS_S = 16.0
"""Three heartbeats; a master closes the connection of a slave that is silent for longer."""
HEARTBEAT_SLACK_S = 1.0


class MasterSlaveClients:
    """All clients of a world, and their history."""

    def __init__(self, world: TrioWorld, setup: Setup) -> None:
        self.history: list[Operation] = []
        self._world = world
        self._setup = setup
        self._stored: dict[tuple[int, int], bytes] = {}
        """By queue and offset: the message that some client knows is stored there."""
        self._ends = dict.fromkeys(range(QUEUES), 0)
        self._producer: Producer | None = None
        self._consumer: PullConsumer | None = None

    def start(self) -> None:
        """Start all clients, each as a process of its own."""
        for number in range(PRODUCERS + READERS):
            process = Process(f"c{number}", f"10.0.1.{number + 1}", 0)
            self._world.network.add_host(process.host, process.address)
            work = self._produce if number < PRODUCERS else self._read
            self._world.spawn(self._run, process, work)

    async def _run(self, process: Process, work: Callable[[int], Awaitable[None]]) -> None:
        CURRENT.set(process)
        await work(int(process.host[1:]))

    # ---- producers --------------------------------------------------------------------

    async def _produce(self, number: int) -> None:
        world, setup = self._world, self._setup
        rng = world.rngs.stream(f"native_world/producer/{number}")
        pause_s = PRODUCERS / setup.sends_per_s
        async with Producer(
            f"{NAME_SERVER_ADDRESS}:{NAME_SERVER_PORT}", timeout_s=TIMEOUT_S, rng=rng
        ) as producer:
            await self._make_topic(producer)
            while world.clock.now_ms < setup.healed_ms:
                queue = rng.randrange(QUEUES)
                size = rng.randint(1, setup.body_bytes_max)
                if rng.chance(BATCHED):
                    await self._send_batch(producer, number, queue, [size // 4 or 1] * 4)
                else:
                    delay = {"DELAY": str(self._level())} if rng.chance(DELAYED) else {}
                    await self._send(producer, number, queue, size, delay)
                await trio.sleep(rng.exponential(pause_s, 10 * pause_s))

    def _level(self) -> int:
        """Return a delay level; levels follow one another, so that old files hold some messages.

        A slave then learns the delivery progress of the first levels from no file that it copies.
        """
        part = self._world.clock.now_ms / self._setup.healed_ms
        return 1 + min(int(part * LEVELS), LEVELS - 1)

    async def _make_topic(self, producer: Producer) -> None:
        while True:
            try:
                await producer.create_topic(TOPIC, QUEUES)
            except (RefusedError, OutcomeUnknownError):
                await trio.sleep(0.2)
            else:
                return

    async def _send(
        self, producer: Producer, number: int, queue: int, size: int, properties: dict[str, str]
    ) -> None:
        operation = self._operation(number, APPEND, queue, size)
        try:
            sent = await producer.send(
                TOPIC,
                operation.body,
                keys=f"k{operation.number}",
                properties=properties,
                queue=_queue(queue),
            )
        except RefusedError:
            self._end(operation, FAIL)
        except OutcomeUnknownError as error:
            self._unknown(operation, error)
        else:
            if not properties:  # else the offset is that in the schedule topic
                self._note_stored(queue, sent.offset, operation.body)
            self._end(operation, OK)

    async def _send_batch(
        self, producer: Producer, number: int, queue: int, sizes: list[int]
    ) -> None:
        operations = [self._operation(number, APPEND, queue, size) for size in sizes]
        bodies = [operation.body for operation in operations]
        try:
            sent = await producer.send_batch(TOPIC, bodies, queue=_queue(queue))
        except RefusedError:
            outcome = FAIL
        except OutcomeUnknownError as error:
            outcome = UNKNOWN
            self._check_damaged(error)
        else:
            outcome = OK
            for place, body in enumerate(bodies, sent.offset):
                self._note_stored(queue, place, body)
        for operation in operations:
            self._end(operation, outcome)

    # ---- readers ----------------------------------------------------------------------

    async def _read(self, number: int) -> None:
        world, setup = self._world, self._setup
        rng = world.rngs.stream(f"native_world/reader/{number}")
        names = f"{NAME_SERVER_ADDRESS}:{NAME_SERVER_PORT}"
        async with PullConsumer(names, group=GROUP, timeout_s=TIMEOUT_S) as consumer:
            while world.clock.now_ms < setup.healed_ms:
                await trio.sleep(rng.exponential(READ_EVERY_MS, 1_000.0) / 1_000)
                queue = rng.randrange(QUEUES)
                end = self._ends[queue]
                back = rng.randint(0, end) if rng.chance(READS_FAR_BACK) else rng.randint(0, 20)
                broker_id = rng.randint(0, setup.slaves) if rng.chance(READS_ANY_BROKER) else 0
                if rng.chance(COMMITS):
                    await self._commit(consumer, queue, max(0, end - back))
                else:
                    await self._pull(consumer, number, queue, max(0, end - back), broker_id)

    async def _pull(
        self, consumer: PullConsumer, number: int, queue: int, offset: int, broker_id: int
    ) -> None:
        operation = self._operation(number, PULL, queue, 0)
        operation.offset = offset
        try:
            pulled = await consumer.pull(_queue(queue), offset, broker_id=broker_id)
        except RefusedError:
            self._end(operation, FAIL)
        except OutcomeUnknownError as error:
            self._unknown(operation, error)
        else:
            operation.end, operation.count = pulled.max_offset, len(pulled.messages)
            self._end(operation, OK)
            self._check_pulled(operation, pulled)

    async def _commit(self, consumer: PullConsumer, queue: int, offset: int) -> None:
        try:
            await consumer.commit(_queue(queue), offset)
        except (RefusedError, OutcomeUnknownError) as error:
            self._check_damaged(error)

    # ---- what they know ---------------------------------------------------------------

    def _check_pulled(self, operation: Operation, pulled: Pulled) -> None:
        offset, queue = operation.offset, operation.queue
        for place, message in enumerate(pulled.messages, offset):
            if message.queue_offset != place:
                self._violated(Violated("reads-agree", f"{operation!r} has gaps"))
                return
            self._note_stored(queue, place, message.body)
        end = offset + len(pulled.messages)
        if pulled.messages and pulled.next_offset != end:
            text = f"{operation!r} is told to continue at {pulled.next_offset}"
            self._violated(Violated("reads-go-on", text))
        if pulled.status == "OFFSET_ILLEGAL":
            is_expired = offset < pulled.min_offset
            right = pulled.min_offset if is_expired else pulled.max_offset
            if pulled.next_offset != right or pulled.min_offset <= offset < pulled.max_offset:
                found = Violated(
                    "reads-go-on",
                    f"{operation!r} is led to {pulled.next_offset},"
                    f" the queue is {pulled.min_offset}..{pulled.max_offset}",
                )
                self._violated(found)

    def _note_stored(self, queue: int, offset: int, body: bytes) -> None:
        """Record the message at an offset; no other may ever be stored there."""
        self._ends[queue] = max(self._ends[queue], offset + 1)
        if self._stored.setdefault((queue, offset), body) != body:
            self._violated(
                Violated("reads-agree", f"two messages at offset {offset} of queue {queue}")
            )

    def _operation(self, client: int, kind: str, queue: int, size: int) -> Operation:
        number = len(self.history) + 1
        operation = Operation(number, client, kind, queue, -1, self._world.clock.now_ms)
        if kind == APPEND:
            operation.body = b"%d." % number + bytes(max(0, size - 8))
        self._world.counts.operations += 1
        self.history.append(operation)
        return operation

    def _unknown(self, operation: Operation, error: OutcomeUnknownError) -> None:
        self._check_damaged(error)
        self._end(operation, UNKNOWN)

    def _check_damaged(self, error: Exception) -> None:
        if isinstance(error, DamagedResponseError):
            self._violated(Violated("answers-are-whole", str(error)))

    def _end(self, operation: Operation, outcome: str) -> None:
        operation.outcome = outcome
        operation.end_ms = self._world.clock.now_ms
        counts = self._world.counts
        if outcome == FAIL:
            counts.refused += 1
        elif outcome == UNKNOWN:
            counts.unknown += 1
        elif operation.kind == APPEND:
            counts.acknowledged += 1
        else:
            counts.reads += 1
        self._world.note_operation(operation)

    def _violated(self, found: Violated) -> None:
        self._world.violated(found, "")


def _queue(number: int) -> MessageQueue:
    return MessageQueue(TOPIC, BROKER, number)


class ForeignSlaves:
    """All foreign slaves of a run."""

    def __init__(self, world: TrioWorld, master: str, address: str) -> None:
        self._world = world
        self._master = master
        self._address = address
        self._started = 0

    def connect(self, slave: ForeignSlave) -> None:
        """Start one."""
        if not self._started:
            self._world.network.add_host(FOREIGN_HOST, FOREIGN_ADDRESS)
        process = Process(FOREIGN_HOST, FOREIGN_ADDRESS, self._started)
        self._started += 1
        self._world.spawn(self._run, process, slave)

    def lag(self) -> None:
        """Start one that copies the log, and never says that it has the last byte.

        RocketMQ's slaves report whatever bytes they have; ours report whole messages.
        """
        self._world.network.add_host(LAGGING_HOST, LAGGING_ADDRESS)
        self._world.spawn(self._lag, Process(LAGGING_HOST, LAGGING_ADDRESS, 0))

    async def _lag(self, process: Process) -> None:
        CURRENT.set(process)
        while self._world.clock.now_ms < self._world.healed_ms:
            with suppress(OSError, trio.BrokenResourceError):
                async with await trio.open_tcp_stream(self._address, PEER_PORT) as stream:
                    await self._copy(stream)
            await trio.sleep(REPORT_INTERVAL_S)

    async def _copy(self, stream: trio.SocketStream) -> None:
        world, buffer, reported = self._world, b"", 0
        await stream.send_all(REPORT.pack(0))
        while world.clock.now_ms < world.healed_ms:
            with trio.move_on_after(REPORT_INTERVAL_S) as waiting:
                data = await stream.receive_some()
            if not waiting.cancelled_caught:
                if not data:
                    return
                buffer += data
            while len(buffer) >= HEADER.size:
                position, size = HEADER.unpack_from(buffer)
                if len(buffer) < HEADER.size + size:
                    break
                reported = max(reported, position + size - 1)
                buffer = buffer[HEADER.size + size :]
            world.broker_invariants.copied_elsewhere(BROKER, reported)
            await stream.send_all(REPORT.pack(reported))

    def listen(self) -> None:
        """Start one that says what it has, all of it, and then only listens."""
        self._world.network.add_host(LISTENER_HOST, LISTENER_ADDRESS)
        self._world.spawn(self._listen, Process(LISTENER_HOST, LISTENER_ADDRESS, 0))

    async def _listen(self, process: Process) -> None:
        """Check that the master's heartbeats keep time."""
        CURRENT.set(process)
        node = self._world.members[self._master].node
        if node is None:
            return
        clock, limit_s = self._world.clock, HEARTBEAT_INTERVAL_MS / 1e3 + HEARTBEAT_SLACK_S
        until_ms = clock.now_ms + LISTENS_S * 1e3
        async with await trio.open_tcp_stream(self._address, PEER_PORT) as stream:
            await stream.send_all(REPORT.pack(node.commit_log.end.position))
            while clock.now_ms < until_ms:
                with trio.move_on_after(limit_s) as waiting:
                    if not await stream.receive_some():
                        break
                if waiting.cancelled_caught:
                    text = f"a slave is sent nothing for {limit_s:g} s"
                    self._world.violated(Violated("heartbeats-keep-time", text), self._master)
                    return

    async def _run(self, process: Process, slave: ForeignSlave) -> None:
        CURRENT.set(process)
        node = self._world.members[self._master].node
        if node is None:
            return
        position = slave.ahead_bytes
        if position != NOWHERE:
            position += node.commit_log.end.position
        # Refused or not, the connection may end early: the master may close it or go down.
        with trio.move_on_after(CONNECTED_MAX_S), suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream(self._address, PEER_PORT) as stream:
                self._world.counts.fault("stranger")
                if slave.ahead_bytes == SAME_END:  # once a slave was sent as much, it may count
                    self._world.broker_invariants.copied_elsewhere(BROKER, position)
                while True:
                    await stream.send_all(REPORT.pack(position))
                    await trio.sleep(REPORT_INTERVAL_S)

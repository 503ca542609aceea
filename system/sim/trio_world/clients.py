"""The unchanged client (`system.client`) on simulated hosts: it carries out a schedule's calls.

Outcomes are recorded as in the core world, and checked at once against what is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.client import (
    DamagedResponseError,
    OutcomeUnknownError,
    PullResult,
    RefusedError,
)
from shaketable.system.client.group import commit_offset, committed_offset
from shaketable.system.invariants.violated import Violated
from shaketable.system.sim.clients import (
    NOT_APPENDED,
    TOPIC,
    TOPIC_BYTES,
    GroupOffsets,
    body_bytes_of,
    delayed_properties,
    group_of,
    is_again,
    stored_in,
)
from shaketable.system.sim.key_queries import properties_of
from shaketable.system.sim.rules.client_history import (
    APPEND,
    COMMIT,
    DELAY,
    FAIL,
    FETCH,
    MAX_OFFSET,
    OK,
    PULL,
    STORED,
    UNKNOWN,
    Operation,
    check_all_closed,
    check_filled,
    check_in_time,
)
from shaketable.system.sim.trio_world.clocks import CURRENT, Process
from shaketable.system.sim.trio_world.host import CLIENT_PORT, Host, HostWorld
from shaketable.system.store.message import decode_message

if TYPE_CHECKING:
    from shaketable.system.sim.schedules.schedule import Call

LIMITS = BrokerConfig()
"""No whole node has other limits for pulls."""
CALLS_MAX = 200
"""Most calls that one client has in flight; calls beyond it are skipped."""


class ClientWorld(HostWorld, Protocol):
    """What clients need of the world they are in."""

    def client_addresses(self) -> dict[str, tuple[str, int]]:
        """Return the members' addresses for clients."""
        ...

    def note_operation(self, operation: Operation) -> None:
        """A client's operation ended."""
        ...


class TrioClient:
    """One client process and what it knows."""

    def __init__(self, world: ClientWorld, number: int, address: str) -> None:
        self.number = number
        self.process = Process(f"c{number}", address, 0)
        self.ends: dict[int, int] = {}
        self.offsets = GroupOffsets(number)
        self.calls = 0
        self.group = world.mutant.client.group_client(
            world.client_addresses(),
            timeout_s=world.settings.client_timeout_ms / 1000,
            rng=world.rngs.stream(f"client/{number}"),
        )


class TrioClients:
    """All clients of a world, and their history."""

    def __init__(self, world: ClientWorld, count: int) -> None:
        self.history: list[Operation] = []
        self._world = world
        self._clients = [TrioClient(world, n, f"10.0.1.{n + 1}") for n in range(count)]
        for client in self._clients:
            world.network.add_host(client.process.host, client.process.address)

    def call(self, call: Call) -> None:
        """Make a call of the schedule."""
        client = self._clients[call.client % len(self._clients)]
        if client.calls >= CALLS_MAX:
            return
        client.calls += 1
        self._world.spawn(self._call, client, call)

    def learn(self, host: Host) -> None:
        """Add a node that clients may ask."""
        for client in self._clients:
            client.group.learn(host.name, host.address, CLIENT_PORT)

    def forget(self, name: str) -> None:
        """Remove a node that is gone for good."""
        for client in self._clients:
            client.group.forget(name)

    def close(self) -> None:
        """Close all connections. Raises Violated where one stays open."""
        for client in self._clients:
            client.group.close()
            host = client.process.host
            check_all_closed(host, self._world.network.open_of(host))

    async def _call(self, client: TrioClient, call: Call) -> None:
        CURRENT.set(client.process)
        if call.kind == PULL:
            await self._pull(client, call)
        elif call.kind == MAX_OFFSET:
            await self._max_offset(client, call)
        elif call.kind == COMMIT:
            await self._commit(client, call)
        elif call.kind == FETCH:
            await self._fetch(client, call)
        elif call.kind == "batch" and call.count > 1:
            await self._send_batch(client, call)
        else:
            async with trio.open_nursery() as nursery:
                for _ in range(call.count):
                    nursery.start_soon(self._send, client, call)
        client.calls -= 1

    # ---- operations -------------------------------------------------------------------

    async def _send(self, client: TrioClient, call: Call) -> None:
        operation = self._operation(client, call)
        try:
            properties = self._properties(operation)
            result = await client.group.send(
                TOPIC, call.queue, operation.body, properties=properties
            )
        except RefusedError:
            self._end(operation, FAIL)
        except OutcomeUnknownError as error:
            self._unknown(operation, error)
        else:
            self._acknowledged(client, operation, result.queue_offset)

    async def _send_batch(self, client: TrioClient, call: Call) -> None:
        operations = [self._operation(client, call) for _ in range(call.count)]
        try:
            result = await client.group.send_batch(
                TOPIC, call.queue, [operation.body for operation in operations]
            )
        except RefusedError:
            for operation in operations:
                self._end(operation, FAIL)
        except OutcomeUnknownError as error:
            for operation in operations:
                self._unknown(operation, error)
        else:
            for number, operation in enumerate(operations):
                self._acknowledged(client, operation, result.first_offset + number)

    async def _pull(self, client: TrioClient, call: Call) -> None:
        operation = self._operation(client, call)
        try:
            result = await client.group.pull(TOPIC, call.queue, operation.offset)
        except (RefusedError, OutcomeUnknownError) as error:
            self._unread(operation, error)
            return
        self._check_pulled(operation, result)
        self._check_filled(operation, result)
        operation.end = result.max_offset
        operation.count = len(result.messages)
        self._read(client, operation)

    async def _max_offset(self, client: TrioClient, call: Call) -> None:
        operation = self._operation(client, call)
        try:
            operation.end = await client.group.max_offset(TOPIC, call.queue)
        except (RefusedError, OutcomeUnknownError) as error:
            self._unread(operation, error)
            return
        self._read(client, operation)

    async def _commit(self, client: TrioClient, call: Call) -> None:
        offset = client.offsets.next(call.queue, again=is_again(call))
        if offset is None:
            return
        operation = self._operation(client, call)
        operation.end = offset
        try:
            await commit_offset(client.group, operation.group, TOPIC, call.queue, offset)
        except RefusedError:
            self._end(operation, FAIL)
        except OutcomeUnknownError as error:
            self._unknown(operation, error)
        else:
            self._end(operation, OK)
        client.offsets.ended(operation.group, call.queue, operation.outcome)

    async def _fetch(self, client: TrioClient, call: Call) -> None:
        operation = self._operation(client, call)
        try:
            found = await committed_offset(client.group, operation.group, TOPIC, call.queue)
        except (RefusedError, OutcomeUnknownError) as error:
            self._unread(operation, error)
            return
        operation.end = found or 0
        self._end(operation, OK)

    def _properties(self, operation: Operation) -> str:
        if operation.kind == DELAY:
            return delayed_properties(operation)
        keyed = self._world.settings.keyed
        return properties_of(operation.number, keyed) if keyed else ""

    # ---- outcomes ---------------------------------------------------------------------

    def _operation(self, client: TrioClient, call: Call) -> Operation:
        number = len(self.history) + 1
        kind = call.kind if call.kind in NOT_APPENDED else APPEND
        offset = max(0, client.ends.get(call.queue, 0) - call.back) if kind == PULL else -1
        group = group_of(call, client.number, [each.offsets for each in self._clients])
        now_ms = self._world.clock.now_ms
        operation = Operation(number, client.number, kind, call.queue, offset, now_ms, group)
        if kind in STORED:
            body_bytes = body_bytes_of(number, call.body_bytes, self._world.settings)
            operation.body = b"%d." % number + bytes(max(0, body_bytes - 8))
        self._world.counts.operations += 1
        self.history.append(operation)
        return operation

    def _acknowledged(self, client: TrioClient, operation: Operation, offset: int) -> None:
        operation.offset = offset
        if operation.kind == APPEND:
            client.ends[operation.queue] = max(offset + 1, client.ends.get(operation.queue, 0))
        self._world.counts.acknowledged += 1
        self._end(operation, OK)
        try:
            self._world.invariants.acknowledged(stored_in(operation), offset, operation.body)
        except Violated as found:
            self._world.violated(found, operation.node)

    def _read(self, client: TrioClient, operation: Operation) -> None:
        client.ends[operation.queue] = max(operation.end, client.ends.get(operation.queue, 0))
        self._world.counts.reads += 1
        self._end(operation, OK)

    def _unread(self, operation: Operation, error: Exception) -> None:
        """A failed read has no effect, so it is a fail; a damaged response is a violation."""
        if isinstance(error, DamagedResponseError):
            self._unknown(operation, error)
        else:
            self._end(operation, FAIL)

    def _unknown(self, operation: Operation, error: Exception) -> None:
        self._end(operation, UNKNOWN)
        if isinstance(error, DamagedResponseError):
            self._world.violated(Violated("answers-are-whole", str(error)), "")

    def _end(self, operation: Operation, outcome: str) -> None:
        operation.outcome = outcome
        self._check_sender(operation)
        operation.end_ms = self._world.clock.now_ms
        try:
            took_ms = operation.end_ms - operation.invoke_ms
            check_in_time(repr(operation), took_ms, self._world.settings.client_timeout_ms)
        except Violated as found:
            self._world.violated(found, f"c{operation.client}")
        if outcome == FAIL:
            self._world.counts.refused += 1
        elif outcome == UNKNOWN:
            self._world.counts.unknown += 1
        self._world.note_operation(operation)

    def _check_sender(self, operation: Operation) -> None:
        """The client knows a member that has answered."""
        by = self._clients[operation.client].group.answered_by
        if operation.outcome == OK and by not in self._world.client_addresses():
            found = Violated("answers-have-senders", f"{operation!r} was answered by {by}")
            self._world.violated(found, f"c{operation.client}")

    def _check_filled(self, operation: Operation, result: PullResult) -> None:
        """A pull returns all that waits, within the client's and the broker's limits."""
        stored = self._world.invariants.queues.get((TOPIC_BYTES, operation.queue), [])
        first, end = operation.offset, operation.offset + len(result.messages)
        if not result.min_offset <= first < result.max_offset:
            return  # outside the queue there is nothing
        try:
            check_filled(
                [len(message) for message in stored[first:end]],
                len(stored[end]) if end < min(result.max_offset, len(stored)) else None,
                LIMITS.pull_messages_max,
                LIMITS.pull_bytes_max,
            )
        except Violated as found:
            self._world.violated(found, operation.node)

    def _check_pulled(self, operation: Operation, result: PullResult) -> None:
        """A pull returns, without gaps, what is committed at its offsets."""
        stored = self._world.invariants.queues.get((TOPIC_BYTES, operation.queue), [])
        offsets = [message.queue_offset for message in result.messages]
        first = offsets[0] if offsets else operation.offset
        if offsets != list(range(first, first + len(offsets))):
            self._world.violated(Violated("reads-agree", f"{operation!r} has gaps"), "")
        for message in result.messages:
            offset = message.queue_offset
            if offset >= len(stored):
                found = Violated(
                    "reads-are-committed",
                    f"{operation!r} read offset {offset}, committed up to {len(stored)}",
                )
                self._world.violated(found, "")
                return
            if not stored[offset] or decode_message(stored[offset]).body != message.body:
                found = Violated("reads-agree", f"{operation!r} read another message at {offset}")
                self._world.violated(found, "")
                return

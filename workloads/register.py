"""Registers that clients read, write and compare-and-set, on a target with registers or a log.

Source: jepsen.tests.linearizable-register; compare-and-set by a conditional append.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shaketable.harness.contracts.clients import (
    ConditionalClient,
    LogClient,
    ReadWriteClient,
    RegisterClient,
    WrappedClient,
)
from shaketable.harness.contracts.plugins import Answer, Json, Operation, TargetClient, Workload
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators import (
    Completion,
    Context,
    Due,
    GeneratedWorkload,
    Generator,
    KeySpread,
    NextOp,
    each_client,
    operations,
)

TOPIC: Final = "shaketable"
QUEUES_DEFAULT: Final = 4
WRITE_SHARE: Final = 0.25
CAS_SHARE: Final = 0.35  # the rest reads
SWAPPED, REFUSED = 1, 0
"""Outputs of a cas: it took effect, or it found another value."""
FINAL_READS: Final = 2


class RegisterWorkload(GeneratedWorkload):
    """Registers: read, write and compare-and-set (cas) unique values.

    On a log, the register "topic/queue" is the last message of that queue. A write appends. A read
    gets the queue's end by read index, and reads the message before it: that message was the last
    one at that time. A cas reads in the same way; if it finds the expected value, it appends on
    condition that the queue still ends there. If the broker refuses, it is `fail`, because the
    register's value is then unknown; if it found another value, it is ok with output 0. A target
    whose clients have registers (`contracts.clients.RegisterClient`) is used directly. A cas
    expects the value that this worker last saw in the register, so that most of them can succeed.
    """

    name = "register"
    write_share = WRITE_SHARE
    cas_share = CAS_SHARE
    checkers: tuple[str, ...] = ("linearizable-register", "committed-prefix", "vacuity", "stats")

    def __init__(self, spread: KeySpread | None = None, topic: str = TOPIC) -> None:
        self.spread = spread or KeySpread(QUEUES_DEFAULT)
        self.topic = topic

    def configured(self, options: Json) -> Workload:
        """Return this workload on options["queues"] registers, spread as the options say."""
        spread = KeySpread.of_options(self.name, options, self.spread.keys)
        return type(self)(spread, options.get("topic", self.topic))

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do: random operations, where a cas expects the value last seen."""
        generated = each_client(lambda client: operations(self._generate(seed, client, clients)))
        return _ExpectLastSeen(generated, {})

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Read each register, twice."""
        return operations(Operation("read", key) for _ in range(FINAL_READS) for key in keys)

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Read each of the client's registers once more."""
        for number in range(client, self.spread.keys, clients):
            yield Operation("read", self._key(number))

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack: they need registers, or a log with conditional appends."""
        if issubclass(client, RegisterClient) or issubclass(client, ConditionalClient):
            return None
        return "keep no registers, and cannot append on a condition"

    def opened(self, client: TargetClient) -> TargetClient:
        """Return a client with registers: the target's own, or one that builds them on its log."""
        return client if isinstance(client, RegisterClient) else LogRegisters(client)

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run the operation; a read returns the value, a cas whether it took effect."""
        assert isinstance(client, ReadWriteClient), "opened by this workload"
        key, value = operation.key, operation.value
        if operation.f == "read":
            return Answer(await client.get(key))
        assert value is not None, "nothing to write"
        if operation.f == "write":
            await client.put(key, value)
            return Answer()
        assert operation.f == "cas", f"a register has no operation {operation.f!r}"
        assert isinstance(client, RegisterClient), "opened by this workload"
        return Answer(SWAPPED if await client.swap(key, operation.expected, value) else REFUSED)

    def _generate(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Generate writes and cas of the values c, n + c, 2n + c, ..., and reads."""
        rng, keys = rng_for(seed, "client", client), self.spread.of_client(client, clients)
        changes, write_share = self.write_share + self.cas_share, self.write_share
        value = client + clients  # never 0, the output of a refused cas
        while True:
            key, kind = self._key(keys.choose(rng)), rng.random()
            if kind < changes:
                yield Operation("write" if kind < write_share else "cas", key, value=value)
                value += clients
            else:
                yield Operation("read", key)

    def _key(self, number: int) -> str:
        return f"{self.topic}/{number}"


class ReadWriteRegisterWorkload(RegisterWorkload):
    """Registers without compare-and-set: read, and write unique values."""

    name = "read-write-register"
    write_share = 0.5
    cas_share = 0.0

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack: they need registers, or a log."""
        if issubclass(client, ReadWriteClient) or issubclass(client, LogClient):
            return None
        return "keep no registers"

    def opened(self, client: TargetClient) -> TargetClient:
        """Return a client with registers: the target's own, or one that builds them on its log."""
        return client if isinstance(client, ReadWriteClient) else LogRegisters(client)


@dataclass(frozen=True, slots=True)
class _ExpectLastSeen:
    """Lets each cas expect the value that this worker's clients last saw in its register."""

    inner: Generator
    seen: Mapping[str, int | None]

    def next_op(self, context: Context) -> NextOp:
        given = self.inner.next_op(context)
        if given is None:
            return None
        step, inner = given
        if isinstance(step, Due) and step.operation.f == "cas":
            expected = self.seen.get(step.operation.key)
            step = step._replace(operation=replace(step.operation, expected=expected))
        return step, _ExpectLastSeen(inner, self.seen)

    def update(self, completion: Completion) -> Generator:
        inner, seen, operation = self.inner.update(completion), self.seen, completion.operation
        if completion.outcome == "ok" and (
            operation.f != "cas" or completion.answer.output == SWAPPED
        ):
            value = completion.answer.output if operation.f == "read" else operation.value
            seen = {**seen, operation.key: value}
        return _ExpectLastSeen(inner, seen)


class LogRegisters(WrappedClient):
    """Registers on a log with conditional appends: the last message of each queue."""

    async def get(self, key: str) -> int | None:
        """Return the value of the queue's last message."""
        return (await self._last(key))[1]

    async def put(self, key: str, value: int) -> None:
        """Append the value."""
        await self._client.append(key, value)

    async def swap(self, key: str, expected: int | None, value: int) -> bool:
        """Append `value` if the last message is the expected one and is still the last one."""
        assert isinstance(self._client, ConditionalClient), "looked at when it was opened"
        end, held = await self._last(key)
        if held != expected:
            return False
        await self._client.append_at(key, value, end)
        return True

    async def _last(self, key: str) -> tuple[int, int | None]:
        end = await self._client.end(key)
        return end, (await self._client.read(key, end - 1)) if end else None


PLUGINS = (RegisterWorkload(), ReadWriteRegisterWorkload())

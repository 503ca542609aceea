"""A replicated log: clients append unique values to several queues, and read them back.

It is also the base of objects that are built on a log: their operations go to the log's client
unchanged.

Source: jepsen.tests.kafka and DLedger's own OpenChaos cases; CHECKERS.md section 3 defines what the
answers must satisfy.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from shaketable.harness.contracts.clients import LogClient
from shaketable.harness.contracts.plugins import Answer, Json, Operation, TargetClient, Workload
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators.clients import KeySpread

TOPIC: Final = "shaketable"
QUEUES_DEFAULT: Final = 4

APPEND_SHARE: Final = 0.5
READ_SHARE: Final = 0.4  # the rest reads the end

TAIL_SHARE: Final = 0.7
"""Share of reads near the end, where staleness and loss show."""
TAIL_REACH: Final = 62
"""Greatest distance before the end of a read near the end."""
TAIL_MEAN: Final = 3.0
"""Mean distance before the end of those reads."""
PAST_END: Final = 1
"""A read near the end may read this many offsets past it."""
FINAL_READS: Final = 20
"""After the heal, this many last offsets of every queue are read."""

_STEPS: Final = 2 * (TAIL_REACH + PAST_END + 1)  # a power of two, so aims are exact floats


class LogWorkload:
    """Appends of unique values and reads across several queues.

    Queues are "shaketable/0" to "shaketable/n-1". Client c of n appends the values c, n + c, 2n +
    c, ...: unique without coordination. An aim below 1/2 is a distance before the end as this
    worker knows it; any other is a position in the whole queue.
    """

    name = "log"
    checkers: tuple[str, ...] = (
        "linearizable-log",
        "log-anomalies",
        "cycles",
        "durability",
        "committed-prefix",
        "vacuity",
        "stats",
    )

    def __init__(
        self,
        queues: int = QUEUES_DEFAULT,
        spread: KeySpread | None = None,
        topic: str = TOPIC,
    ) -> None:
        self.spread = spread or KeySpread(queues)
        self.queues = self.spread.keys
        self.topic = topic

    def configured(self, options: Json) -> Workload:
        """Return this workload on options["queues"] queues, spread as the options say."""
        spread = KeySpread.of_options(self.name, options, self.queues)
        return LogWorkload(spread=spread, topic=options.get("topic", self.topic))

    def operations(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Generate appends, reads and reads of the end, endlessly."""
        rng, keys = rng_for(seed, "client", client), self.spread.of_client(client, clients)
        value = client
        while True:
            key = self._key(keys.choose(rng))
            kind = rng.random()
            if kind < APPEND_SHARE:
                yield Operation("append", key, value=value)
                value += clients
            elif kind < APPEND_SHARE + READ_SHARE:
                yield Operation("read", key, aim=_draw_aim(rng))
            else:
                yield Operation("end", key)

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Read the end of each of the client's queues, then its last offsets."""
        for queue in range(client, self.queues, clients):
            yield Operation("end", self._key(queue))
            for distance in range(1, FINAL_READS + 1):
                yield Operation("read", self._key(queue), aim=aim_before_end(distance))

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack: they need a log."""
        return None if issubclass(client, LogClient) else "have no append, read and end of a log"

    def opened(self, client: TargetClient) -> TargetClient:
        """Return the client as it is."""
        return client

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run the operation.

        An append returns its offset, a read the value, an end the end offset.
        """
        if operation.f == "append":
            assert operation.value is not None, "an append of nothing"
            return Answer(None, await client.append(operation.key, operation.value))
        if operation.f == "read":
            assert offset is not None, "a read of no offset"
            return Answer(await client.read(operation.key, offset), offset)
        assert operation.f == "end", f"the log has no operation {operation.f!r}"
        return Answer(await client.end(operation.key), None)

    def choose_offset(self, operation: Operation, end_seen: int) -> int | None:
        """Turn the aim of a read into an offset; None for other operations."""
        aim = operation.aim
        if aim is None:
            return None
        if aim < 0.5:
            return max(0, end_seen + PAST_END - int(aim * _STEPS))
        return int((aim - 0.5) * 2 * end_seen)

    def end_shown(self, operation: Operation, output: int | None, offset: int | None) -> int:
        """Return the end that the answer proves: the offset of an append or a value, plus one."""
        if operation.f == "end":
            return output or 0
        found = operation.f == "append" or output is not None
        return offset + 1 if found and offset is not None else 0

    def _key(self, queue: int) -> str:
        return f"{self.topic}/{queue}"


def aim_before_end(distance: int) -> float:
    """Return the aim of the offset `distance` before the end (-1: one past it)."""
    assert -PAST_END <= distance <= TAIL_REACH, f"out of reach: {distance}"
    return (distance + PAST_END) / _STEPS


def _draw_aim(rng: Random) -> float:
    if rng.random() >= TAIL_SHARE:
        return 0.5 + rng.random() / 2
    distance = int(rng.expovariate(1 / (TAIL_MEAN + PAST_END))) - PAST_END
    return aim_before_end(min(distance, TAIL_REACH))


PLUGIN = LogWorkload()

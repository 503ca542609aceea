"""A load client for any RocketMQ broker: many messages in flight, one task for all connections.

It writes the frames that Apache's Java producer writes (SEND_MESSAGE_V2, JSON headers, a
UNIQ_KEY a message) and reads each answer, so that two brokers can be asked the same.
THROUGHPUT.md rule 1: a task a message would measure the client.
"""

from __future__ import annotations

import os
import time
from array import array
from dataclasses import dataclass, field

import msgspec
import trio

from shaketable.system.node.connections.link import Link, Reception
from shaketable.system.node.machine import KernelPoll
from shaketable.system.remoting.command import Frame

OUT_BYTES_MAX = 64 << 20
QUEUES = 4
BODIES = 64
TOPIC = "TopicTest"
_HEADER = (
    '{"code":310,"extFields":{"a":"load","b":"TopicTest","c":"TBW102","d":"4","e":"%d","f":"0",'
    '"g":"%d","h":"0","i":"UNIQ_KEY\\u0001%032X\\u0002WAIT\\u0001true","j":"0","k":"false",'
    '"l":"0","m":"false","n":"%s"},"flag":0,"language":"JAVA","opaque":%d,'
    '"serializeTypeCurrentRPC":"JSON","version":401}'
)
_PACER_STEP_S = 0.001


class _Fields(msgspec.Struct, gc=False):
    queueId: int = -1  # noqa: N815 - as it stands on the wire
    queueOffset: int = -1  # noqa: N815


class _Answer(msgspec.Struct, gc=False):
    opaque: int
    code: int
    extFields: _Fields | None = None  # noqa: N815
    remark: str | None = None


_decode = msgspec.json.Decoder(_Answer, strict=False).decode


class Refused(Exception):  # noqa: N818 - what a benchmark ends with
    """A broker refused a message, or gave two of them one place."""


@dataclass
class Load:
    """What was sent and answered while it was measured; times in seconds."""

    seconds: float = 0.0
    refused: int = 0
    why_refused: str = ""
    latencies: array[float] = field(default_factory=lambda: array("d"))
    places: array[int] = field(default_factory=lambda: array("q"))

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged while it was measured."""
        return len(self.latencies)

    @property
    def rate(self) -> float:
        """Acknowledged messages a second."""
        return self.acknowledged / self.seconds

    def quantile_ms(self, share: float) -> float:
        """Return the latency below which that share of the messages stayed."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def refuse_repeated_places(self) -> None:
        """Raise Refused where two acknowledged messages of all were given one place."""
        if len(set(self.places)) != len(self.places):
            raise Refused(f"{len(self.places) - len(set(self.places))} places were given twice")


class Producer:
    """Sends messages of `body_bytes` over `connections`, at most `window` in flight on each."""

    def __init__(
        self, address: tuple[str, int], connections: int, body_bytes: int, broker: str
    ) -> None:
        self._address = address
        self._count = connections
        self._bodies = [os.urandom(body_bytes) for _ in range(BODIES)]
        self._broker = broker
        self._opaque = 0
        self._sent_at: dict[int, float] = {}
        self._links: list[Link] = []
        self._is_measured = False
        self.load = Load()

    async def run(self, window: int, warm_s: float, seconds: float) -> Load:
        """Keep `window` messages in flight on each connection; measure behind the warm-up."""
        async with trio.open_nursery() as nursery:
            await self._connect(nursery, is_closed_loop=True)
            for link in self._links:
                link.send(self._frames(window))
            await self._measure(warm_s, seconds)
            nursery.cancel_scope.cancel()
        return self._end()

    async def run_paced(self, rate: int, warm_s: float, seconds: float) -> Load:
        """Send so many a second, however slow the answers: latency counts from when it was due."""
        async with trio.open_nursery() as nursery:
            await self._connect(nursery, is_closed_loop=False)
            nursery.start_soon(self._pace, rate)
            await self._measure(warm_s, seconds)
            nursery.cancel_scope.cancel()
        return self._end()

    async def _measure(self, warm_s: float, seconds: float) -> None:
        await trio.sleep(warm_s)
        self.on_measured()
        self._is_measured = True
        start = time.perf_counter()
        await trio.sleep(seconds)
        self._is_measured = False
        self.load.seconds = time.perf_counter() - start
        self.on_over()

    def on_measured(self) -> None:
        """Called where the warm-up ends; for whoever reads CPU times."""

    def on_over(self) -> None:
        """Called where what is measured ends."""

    def _end(self) -> Load:
        for link in self._links:
            link.close()
        if not self.load.acknowledged:
            raise Refused(self.load.why_refused or "nothing was answered")
        self.load.refuse_repeated_places()
        return self.load

    async def _connect(self, nursery: trio.Nursery, *, is_closed_loop: bool) -> None:
        """Connect and read; in a closed loop as many are sent as were answered."""
        reception = Reception(KernelPoll())
        nursery.start_soon(reception.run)

        async def serve(link: Link) -> None:
            def on_frames(frames: list[Frame]) -> None:
                self._take(frames)
                if is_closed_loop:
                    link.send(self._frames(len(frames)))

            await reception.read(link, on_frames)
            raise Refused("the broker closed a connection")

        for _ in range(self._count):
            stream = await trio.open_tcp_stream(*self._address)
            self._links.append(link := Link(stream.socket, OUT_BYTES_MAX))
            nursery.start_soon(link.write)
            nursery.start_soon(serve, link)

    def _frames(self, count: int, at: float | None = None) -> bytes:
        """Return that many requests; `at` is when they were due, now without it."""
        parts: list[bytes] = []
        bodies, sent_at = self._bodies, self._sent_at
        if at is None:
            at = time.perf_counter()
        born_ms = int(time.time() * 1000)
        opaque = self._opaque
        for opaque in range(opaque + 1, opaque + count + 1):  # noqa: B020 - goes on from there
            header = (_HEADER % (opaque % QUEUES, born_ms, opaque, self._broker, opaque)).encode()
            body = bodies[opaque % BODIES]
            parts += (
                (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big"),
                header,
                body,
            )
            sent_at[opaque] = at
        self._opaque = opaque
        return b"".join(parts)

    def _take(self, frames: list[Frame]) -> None:
        now = time.perf_counter()
        for frame in frames:
            answer = _decode(frame.header)
            sent_at = self._sent_at.pop(answer.opaque)
            fields = answer.extFields
            if answer.code or fields is None:
                self._note_refusal(answer)
                continue
            self.load.places.append(fields.queueOffset * QUEUES + fields.queueId)
            if self._is_measured:
                self.load.latencies.append(now - sent_at)

    def _note_refusal(self, answer: _Answer) -> None:
        """Count a refusal; a broker whose queue is full says so of a part of what comes."""
        self.load.why_refused = f"code {answer.code}: {answer.remark}"
        self.load.refused += self._is_measured

    async def _pace(self, rate: int) -> None:
        """Send what is due, in a step for each connection in turn."""
        start, sent, turn = time.perf_counter(), 0, 0
        while True:
            due = int((time.perf_counter() - start) * rate)
            if due > sent:
                # Half way between the first and the last of the step.
                at = start + (sent + due) / 2 / rate
                self._links[turn % self._count].send(self._frames(due - sent, at))
                sent, turn = due, turn + 1
            await trio.sleep(_PACER_STEP_S)

"""A million messages through a group of three nodes that are restarted one after the other.

One writer a queue sends batches, each behind the acknowledgement of the one before, while each
node in turn is stopped (SIGTERM), started again and waited for, again and again. Then every
queue is read: no acknowledged message may be missing or elsewhere, and order is kept. The memory
of each node over time goes into a picture.

    python tests/benchmarks/million_messages.py --messages 1000000 --plot memory.svg
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from tests.benchmarks.load.memory_plot import Sample, draw
from tests.benchmarks.load.systems import DEFAULT_SIZES, NODES
from tests.support.node_group import NodeGroup

TOPIC = "million"
QUEUES = 16
BATCH = 16
BODY_BYTES = 256
PAUSE_BETWEEN_RESTARTS_S = 3.0
SAMPLE_S = 0.5
RETRY_S = 0.05
RUN_SECONDS_MAX = 3600.0
TIMEOUT_S = 20.0


@dataclass
class Queue:
    """What one writer knows: where each acknowledged message stands, and what it does not know."""

    number: int
    acknowledged: dict[int, int] = field(default_factory=dict)  # sequence -> offset
    unknown: set[int] = field(default_factory=set)
    refusals: int = 0


@dataclass
class Course:
    """What happens meanwhile; times in seconds since the start."""

    started: float
    samples: list[Sample] = field(default_factory=list)
    restarts: list[tuple[float, str, bool]] = field(default_factory=list)  # when, who, led
    is_over: bool = False

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def body_of(queue: int, sequence: int) -> bytes:
    """Return a message's body: it says which one it is."""
    return b"%d %d " % (queue, sequence) + bytes(BODY_BYTES)


async def write(group: NodeGroup, queue: Queue, count: int) -> None:
    """Send `count` messages to one queue, in order."""
    client = group.client(*NODES, timeout_s=TIMEOUT_S)
    sequence = 0
    while sequence < count:
        bodies = [body_of(queue.number, n) for n in range(sequence, min(count, sequence + BATCH))]
        try:
            result = await client.send_batch(TOPIC, queue.number, bodies)
        except RefusedError:
            queue.refusals += 1
            await trio.sleep(RETRY_S)
            continue
        except OutcomeUnknownError:
            queue.unknown.update(range(sequence, sequence + len(bodies)))
        else:
            for ordinal in range(len(bodies)):
                queue.acknowledged[sequence + ordinal] = result.first_offset + ordinal
        sequence += len(bodies)


async def restart(group: NodeGroup, course: Course) -> None:
    """Stop and start each node in turn, until the messages are sent."""
    turn = 0
    while True:
        await trio.sleep(PAUSE_BETWEEN_RESTARTS_S)
        if course.is_over:
            return
        name = NODES[turn % len(NODES)]
        turn += 1
        leader = await group.leader()
        course.restarts.append((course.now, name, name == leader))
        await trio.to_thread.run_sync(group.stop, name)
        group.start(name)
        await group.caught_up(name)


async def watch(group: NodeGroup, course: Course, queues: list[Queue]) -> None:
    """Note each node's memory, and say how far it is."""
    told = 0.0
    while True:
        for name, process in list(group.processes.items()):
            status = Path(f"/proc/{process.pid}/status")
            try:
                lines = status.read_text().splitlines()
            except OSError:
                continue
            for line in lines:
                if line.startswith("VmRSS:"):
                    course.samples.append(Sample(course.now, name, int(line.split()[1]) / 1024))
        if course.now - told >= 10:
            told = course.now
            done = sum(len(queue.acknowledged) for queue in queues)
            say(f"  {course.now:5.0f} s  {done:>9,} acknowledged, {len(course.restarts)} restarts")
        await trio.sleep(SAMPLE_S)


async def read(group: NodeGroup, queue: Queue) -> list[str]:
    """Read a whole queue; return what is wrong with it."""
    client = group.client(*NODES, timeout_s=TIMEOUT_S)
    found: list[int] = []
    wrong: list[str] = []
    offset, end = 0, await client.max_offset(TOPIC, queue.number)
    while offset < end:
        messages = (await client.pull(TOPIC, queue.number, offset, count_max=256)).messages
        for message in messages:
            number, sequence, _ = message.body.split(b" ", 2)
            if int(number) != queue.number or message.queue_offset != offset:
                wrong.append(f"queue {queue.number} offset {offset}: message of {int(number)}")
            found.append(int(sequence))
            offset += 1
    places = {sequence: offset for offset, sequence in enumerate(found)}
    lost = [n for n, offset in queue.acknowledged.items() if places.get(n) != offset]
    wrong += [f"queue {queue.number}: message {n} is not where it was acknowledged" for n in lost]
    if any(later <= earlier for earlier, later in pairwise(found)):
        wrong.append(f"queue {queue.number}: out of order, or something stands twice")
    strangers = set(found) - set(queue.acknowledged) - queue.unknown
    wrong += [f"queue {queue.number}: message {n} was never sent, or refused" for n in strangers]
    return wrong


async def story(group: NodeGroup, messages: int) -> tuple[Course, list[Queue], list[str]]:
    group.start(*NODES)
    await group.leader()
    await group.client(*NODES).send("warm", 0, b"first")
    queues = [Queue(number) for number in range(QUEUES)]
    course = Course(time.monotonic())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, group, course, queues)
        async with trio.open_nursery() as both:
            both.start_soon(restart, group, course)
            async with trio.open_nursery() as writers:
                for queue in queues:
                    writers.start_soon(write, group, queue, messages // QUEUES)
            course.is_over = True
            sent_s = course.now
        nursery.cancel_scope.cancel()
    say(f"sent in {sent_s:.0f} s; reading everything")
    wrong: list[str] = []

    async def check(queue: Queue) -> None:
        wrong.extend(await read(group, queue))

    async with trio.open_nursery() as readers:
        for queue in queues:
            readers.start_soon(check, queue)
    return course, queues, wrong


def tell(course: Course, queues: list[Queue], wrong: list[str]) -> None:
    done = sum(len(queue.acknowledged) for queue in queues)
    unknown = sum(len(queue.unknown) for queue in queues)
    led = sum(1 for _, _, is_leader in course.restarts if is_leader)
    say(
        f"{done:,} acknowledged, {unknown:,} of unknown outcome, "
        f"{sum(queue.refusals for queue in queues)} requests refused and sent again; "
        f"{len(course.restarts)} restarts, {led} of the leader"
    )
    end = course.now
    for name in NODES:
        of_node = [sample for sample in course.samples if sample.node == name]
        thirds = [
            [s.mib for s in of_node if end * part / 3 <= s.at_s < end * (part + 1) / 3]
            for part in range(3)
        ]
        told = ", ".join(
            f"{statistics.median(third):.0f} (most {max(third):.0f})" for third in thirds if third
        )
        say(f"  {name}: MiB by thirds of the run, median: {told}")
    for line in wrong[:20]:
        say(f"  {line}")
    say("nothing is lost, order is kept" if not wrong else f"WRONG in {len(wrong)} places")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--plot", type=Path, help="where to draw each node's memory (SVG)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="million-") as folder:
        group = NodeGroup(Path(folder), *NODES, **DEFAULT_SIZES, defaultTopicQueueNums=str(QUEUES))

        async def bounded() -> tuple[Course, list[Queue], list[str]]:
            with trio.fail_after(RUN_SECONDS_MAX):
                try:
                    return await story(group, options.messages)
                finally:
                    for client in group.clients:
                        client.close()

        try:
            course, queues, wrong = trio.run(bounded)
        finally:
            group.close()
    tell(course, queues, wrong)
    if options.plot:
        draw(options.plot, course.samples, course.restarts)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

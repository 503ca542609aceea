"""A group's consumer against a broker that is played: locks, releases, commits. Time is trio's."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
import trio
from trio.testing import MockClock

from shaketable.system.client import ConsumeError, group_consumer
from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from shaketable.system.client.group_consumer import GroupConsumer, Intervals, QueueReader
from shaketable.system.client.pull_consumer import PullConsumer, Pulled
from shaketable.system.client.routes import MessageQueue
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import SendMessageBack
from shaketable.system.store.message import Message

TOPIC = "t"
QUEUES = tuple(MessageQueue(TOPIC, "b", number) for number in range(2))
FIRST, SECOND = QUEUES
OFTEN = Intervals(heartbeat_s=5.0, rebalance_s=1.0, commit_s=5.0, lock_s=5.0, wait_s=10.0)


def message(offset: int) -> Message:
    return Message(TOPIC.encode(), 0, offset, offset * 100, b"%d" % offset)


class PlayedBroker:
    """Stands for `PullConsumer`: queues of endless messages, and what a broker knows of a group."""

    group = "g"
    send_back = PullConsumer.send_back

    def __init__(self) -> None:
        self.ids = ["me"]
        self.holders: dict[MessageQueue, str] = {}
        self.offsets: dict[MessageQueue, int] = {}
        self.commits: list[tuple[MessageQueue, int]] = []
        self.pulls: list[tuple[MessageQueue, int]] = []
        self.asked: list[tuple[RequestCode, tuple[MessageQueue, ...]]] = []
        self.pull_s = 0.5
        self.is_reachable = True
        self.commit_s: dict[MessageQueue, float] = {}
        self.answer_s = 0.0

    def forget(self, topic: str) -> None:
        """It keeps no routes."""

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        if topic != TOPIC:
            raise RefusedError(17, "no such topic")
        return QUEUES

    async def brokers(self, _: str) -> tuple[str, ...]:
        return ("127.0.0.1:1",)

    async def ask_broker(self, _: str, command: Command, __: float) -> Command:
        await trio.sleep(0.01)
        body = b""
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            body = msgspec.json.encode({"consumerIdList": self.ids})
        return Command(ResponseCode.SUCCESS, body=body)

    async def ask_master(self, _: MessageQueue, command: Command) -> Command:
        await trio.sleep(0.01)
        if not self.is_reachable:
            raise OutcomeUnknownError("no node answers")
        asked = msgspec.json.decode(command.body)
        queues = tuple(
            MessageQueue(one["topic"], one["brokerName"], one["queueId"]) for one in asked["mqSet"]
        )
        self.asked.append((RequestCode(command.code), queues))
        held = []
        for queue in queues:
            if command.code == RequestCode.UNLOCK_BATCH_MQ:
                if self.holders.get(queue) == "me":
                    del self.holders[queue]
            elif self.holders.setdefault(queue, "me") == "me":
                held.append(
                    {
                        "topic": queue.topic,
                        "brokerName": queue.broker_name,
                        "queueId": queue.queue_id,
                    }
                )
        await trio.sleep(self.answer_s)
        return Command(ResponseCode.SUCCESS, body=msgspec.json.encode({"lockOKMQSet": held}))

    async def committed(self, queue: MessageQueue) -> int | None:
        await trio.sleep(0.01)
        return self.offsets.get(queue)

    async def min_offset(self, _: MessageQueue) -> int:
        return 0

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        await trio.sleep(self.commit_s.get(queue, 0.01))
        self.commits.append((queue, offset))
        self.offsets[queue] = offset

    async def pull(self, queue: MessageQueue, offset: int, **_: object) -> Pulled:
        self.pulls.append((queue, offset))
        await trio.sleep(self.pull_s)
        return Pulled((message(offset),), "FOUND", offset + 1, 0, offset + 1)

    def close(self) -> None:
        pass


Story = Callable[[PlayedBroker, GroupConsumer], Awaitable[None]]


def run(
    monkeypatch: pytest.MonkeyPatch,
    story: Story,
    handler: group_consumer.Handler,
    *,
    is_ordered: bool = True,
    intervals: Intervals = OFTEN,
) -> PlayedBroker:
    """Tell a story beside a consumer, which is cancelled behind it."""
    broker = PlayedBroker()
    monkeypatch.setattr(group_consumer.GroupConsumer, "source_type", lambda *_, **__: broker)
    consumer = GroupConsumer(
        "127.0.0.1:1",
        group="g",
        client_id="me",
        subscriptions={TOPIC: "*"},
        handler=handler,
        is_ordered=is_ordered,
        intervals=intervals,
    )

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run)
            await story(broker, consumer)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return broker


class Handled:
    """Takes note of which messages were handed over, and when; each takes `takes_s`."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.begun: list[tuple[float, MessageQueue, int]] = []
        self.done: list[tuple[float, MessageQueue, int]] = []
        self.takes_s = takes_s

    async def __call__(self, queue: MessageQueue, messages: Sequence[Message]) -> None:
        at = messages[0].queue_offset
        self.begun.append((trio.current_time(), queue, at))
        await trio.sleep(self.takes_s)
        self.done.append((trio.current_time(), queue, at))

    def latest_s(self, queue: MessageQueue) -> float:
        """When a message of the queue was handed over or worked at last."""
        return max((at for at, of, _ in self.begun + self.done if of == queue), default=-math.inf)


def test_a_lock_that_somebody_else_has_ends_the_consumption_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new leader knows no locks, and gave it to the other one; what is under way is stopped."""
    handled = Handled(takes_s=7.0)
    lost_s = 0.0

    async def story(broker: PlayedBroker, _: GroupConsumer) -> None:
        nonlocal lost_s
        await trio.sleep(12.0)
        broker.holders[FIRST] = "other"
        broker.offsets[FIRST] = 40
        lost_s = trio.current_time()
        await trio.sleep(60.0)
        assert broker.offsets[FIRST] == 40, "the other's word stands"
        assert handled.latest_s(SECOND) > lost_s + 50
        handled.begun.clear()
        broker.holders[FIRST] = "me"
        await trio.sleep(10.0)
        again = [offset for _, queue, offset in handled.begun if queue == FIRST]
        assert again[0] == 40, "it goes on where the other one came to"

    until: list[float] = []

    async def handler(queue: MessageQueue, messages: Sequence[Message]) -> None:
        try:
            await handled(queue, messages)
        finally:
            if queue == FIRST and not until and lost_s and trio.current_time() > lost_s:
                until.append(trio.current_time())

    run(monkeypatch, story, handler)
    assert until
    assert until[0] - lost_s < OFTEN.lock_s + 1
    assert all(
        not lost_s + OFTEN.lock_s + 1 < at < lost_s + 60
        for at, queue, _ in handled.done
        if queue == FIRST
    )


def test_nothing_is_handed_over_when_a_lock_ran_out_during_the_pull(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled = Handled()
    gone_s = 0.0

    async def story(broker: PlayedBroker, _: GroupConsumer) -> None:
        nonlocal gone_s
        broker.pull_s = 8.5
        await trio.sleep(20.0)
        assert handled.begun
        broker.is_reachable = False
        gone_s = trio.current_time()
        await trio.sleep(100.0)

    run(monkeypatch, story, handled)
    assert max(at for at, _, _ in handled.begun) <= gone_s + group_consumer.LOCK_VALID_S


def test_a_handler_is_stopped_before_the_broker_gives_its_lock_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled = Handled(takes_s=10_000.0)
    ends: list[float] = []

    async def handler(queue: MessageQueue, messages: Sequence[Message]) -> None:
        try:
            await handled(queue, messages)
        finally:
            ends.append(trio.current_time())

    async def story(broker: PlayedBroker, _: GroupConsumer) -> None:
        await trio.sleep(100.0)
        assert ends == [], "while its lock is renewed it may take its time"
        broker.is_reachable = False
        gone_s = trio.current_time()
        await trio.sleep(200.0)
        assert len(ends) == len(QUEUES)
        assert gone_s + 30 < ends[0] < gone_s + 60 - OFTEN.lock_s

    run(monkeypatch, story, handler)


def test_who_leaves_gives_its_locks_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(broker: PlayedBroker, _: GroupConsumer) -> None:
        await trio.sleep(3.0)
        assert broker.holders == dict.fromkeys(QUEUES, "me")

    broker = run(monkeypatch, story, Handled())
    assert broker.holders == {}
    assert broker.asked[-1] == (RequestCode.UNLOCK_BATCH_MQ, QUEUES)


def test_a_queue_that_was_let_go_is_committed_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of commits that began before must not say anything of it when others have it."""

    async def story(broker: PlayedBroker, consumer: GroupConsumer) -> None:
        broker.commit_s = {FIRST: 8.0, SECOND: 3.0}  # longer than a release waits
        await trio.sleep(OFTEN.commit_s + 0.1)
        assert consumer.assigned == QUEUES
        broker.ids = ["me", "z"]  # the second queue is the other's
        await trio.sleep(5.0)
        assert consumer.assigned == (FIRST,)
        let_go = len(broker.commits)
        await trio.sleep(20.0)
        assert [offset for queue, offset in broker.commits[let_go:] if queue == SECOND] == []

    run(monkeypatch, story, Handled(), is_ordered=False)


def test_what_could_not_be_consumed_comes_again_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    async def handler(queue: MessageQueue, messages: Sequence[Message]) -> None:
        if queue == FIRST:
            seen.append(messages[0].queue_offset)
            if seen.count(1) < 3 and seen[-1] == 1:
                raise ConsumeError

    async def story(_: PlayedBroker, __: GroupConsumer) -> None:
        await trio.sleep(10.0)

    run(monkeypatch, story, handler)
    assert seen[:6] == [0, 1, 1, 1, 2, 3]


class Backwards(PlayedBroker):
    """Takes note of what is sent back; refuses the first time."""

    def __init__(self, first: ResponseCode | None) -> None:
        super().__init__()
        self.first = first
        self.back: list[SendMessageBack] = []

    async def ask_master(self, _: MessageQueue, command: Command) -> Command:
        await trio.sleep(0.01)
        self.back.append(SendMessageBack.from_ext(command.ext))
        if len(self.back) > 1:
            return Command(ResponseCode.SUCCESS)
        if self.first is None:
            raise OutcomeUnknownError("no node answers")
        return Command(self.first)


@pytest.mark.parametrize("first", [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, None])
def test_without_order_it_is_sent_back_until_the_broker_has_it(
    first: ResponseCode | None,
) -> None:
    broker, seen = Backwards(first), []

    async def handler(_: MessageQueue, messages: Sequence[Message]) -> None:
        seen.append(messages[0].queue_offset)
        if seen[-1] == 1:
            raise ConsumeError(delay_level=2)

    async def main() -> None:
        reader = QueueReader(
            broker, FIRST, "*", handler, is_ordered=False, wait_s=1.0, reconsume_times_max=5
        )
        with trio.move_on_after(4.0):
            await reader.run()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    again = [] if first is ResponseCode.SUCCESS else [1]
    assert seen[: 3 + len(again)] == [0, 1, *again, 2]
    assert broker.back == [SendMessageBack(100, "g", 2, max_reconsume_times=5)] * (1 + len(again))


@pytest.mark.parametrize("late_s", [0.0, 0.005, 0.015, 0.03, 0.1, 0.4])
def test_a_consumer_that_ends_while_it_lets_go_of_a_queue_still_commits_and_unlocks(
    monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """Found by workload queue-push-ordered: a release that was cut off committed nothing."""
    handled = Handled()

    async def story(broker: PlayedBroker, consumer: GroupConsumer) -> None:
        await trio.sleep(7.0)
        broker.commit_s[SECOND] = 0.2
        broker.ids = ["me", "z"]  # the second queue goes to another consumer
        while SECOND in consumer.assigned:
            await trio.sleep(0.001)
        await trio.sleep(late_s)

    broker = run(monkeypatch, story, handled, is_ordered=True)
    for queue in QUEUES:
        last = max(offset for _, of, offset in handled.done if of == queue)
        assert broker.offsets[queue] == last + 1
    assert broker.holders == {}


def test_a_consumer_that_ends_while_it_asks_for_locks_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locked = 0
    for late_ms in range(0, 100, 3):

        async def story(broker: PlayedBroker, _: GroupConsumer, late_ms: int = late_ms) -> None:
            nonlocal locked
            broker.answer_s = 0.01
            await trio.sleep(late_ms / 1_000)
            locked += len(broker.holders)

        assert run(monkeypatch, story, Handled()).holders == {}
    assert locked > 10


def test_one_that_is_closed_is_gone_as_a_process_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    handled = Handled()

    async def story(broker: PlayedBroker, consumer: GroupConsumer) -> None:
        await trio.sleep(7.0)
        broker.commits.clear()
        await trio.sleep(1.0)
        consumer.close()
        await trio.sleep(5.0)
        assert broker.commits == []
        assert set(broker.holders) == set(QUEUES), "nobody gave them back"
        assert handled.latest_s(FIRST) < 8.1

    run(monkeypatch, story, handled)

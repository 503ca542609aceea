"""What a client of push consumers does next, against a consumer on a table."""

from __future__ import annotations

from itertools import islice

import pytest
import trio
import trio.testing

from shaketable.harness import discovery
from shaketable.harness.contracts.clients import (
    FINALS_S,
    Delivery,
    dead_key,
    finals_s_of,
    retry_key,
)
from shaketable.harness.contracts.errors import DefiniteError, HarnessError, UsageError
from shaketable.harness.contracts.plugins import Operation
from shaketable.system.broker.groups.consumer_groups import LEASE_MS
from shaketable.workloads.queue_consumer import TOPIC
from shaketable.workloads.queue_push import (
    DRAIN_TIMEOUT_S,
    LEASE_S,
    SHORT_S,
    TIMES_MAX,
    QueuePush,
    QueuePushOrdered,
)

STEP = Operation("handle", TOPIC, aim=0.5)
LEAVE, LEAVE_AT_ONCE = (Operation("unsubscribe", TOPIC, aim=aim) for aim in (0.1, 0.9))
DRAIN = Operation("drain", TOPIC, expected=0)
FIRST, SECOND = f"{TOPIC}/0", f"{TOPIC}/1"


class Table:
    """A client whose consumer is handed what the test says."""

    node = "n0"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.batches: list[Delivery] = []
        self.is_taken = False
        self.committed: dict[str, int | None] = {FIRST: 3, SECOND: None}
        self.ends = {FIRST: 3, SECOND: 2}

    def use(self, topic, queues):
        self.log.append(f"use {topic} {queues}")

    async def send(self, key, value):
        self.log.append(f"send {key} {value}")
        return 7

    async def start_handling(self, *, is_ordered):
        self.log.append(f"start {is_ordered}")

    async def stop_handling(self, *, is_tidy):
        self.log.append(f"stop {is_tidy}")

    def next_delivery(self):
        return self.batches[0] if self.batches else None

    async def handle(self, delivery):
        self.batches.remove(delivery)
        return not self.is_taken

    async def fetch_with_end(self, key):
        return self.committed[key], self.ends[key]


def told(story, workload=None):
    """Run a story on virtual time: `step` does what comes next, and returns it and its answer."""
    workload = workload or QueuePush(2)
    table = Table()
    client = workload.opened(table)

    async def step(drawn):
        chosen = workload.choose(drawn, client)
        return chosen, None if chosen is None else await workload.invoke(chosen, None, client)

    async def main():
        await story(table, step)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return table


def test_a_consumer_runs_handles_what_waits_and_ends():
    async def story(table, step):
        assert (await step(STEP))[0] == Operation("subscribe", TOPIC, expected=0)
        assert await step(STEP) == (None, None), "nothing waits"
        table.batches = [Delivery(FIRST, [(0, 4), (1, 6)]), Delivery(SECOND, [(0, 8)])]
        chosen, answer = await step(STEP)
        assert (chosen.f, chosen.key, answer.messages) == ("handle", FIRST, [(0, 4), (1, 6)])
        assert (await step(LEAVE))[0] == Operation("unsubscribe", TOPIC, expected=1)
        assert (await step(LEAVE))[0].f == "subscribe", "it is in no group"
        assert (await step(LEAVE_AT_ONCE))[0] == Operation("unsubscribe", TOPIC, expected=0)

    assert told(story).log == [
        f"use {TOPIC} 2", "start False", "stop True", "start False", "stop False",
    ]  # fmt: skip


def test_every_second_consumer_vanishes_once_before_it_drains():
    """As it comes back under another name, its share is consumed only if the group noticed."""
    finals = [next(iter(QueuePush(2).final_operations(client, 6))) for client in (1, 3, 5)]
    assert [final.expected for final in finals] == [1, 0, 1]
    assert [final.expected for final in QueuePush(2).final_operations(1, 2)] == [0], "it is alone"
    ordered = [next(iter(QueuePushOrdered(2).final_operations(client, 6))) for client in (1, 3, 5)]
    assert not any(final.expected for final in ordered), "its locks would block a minute"

    async def story(table, step):
        await step(STEP)
        assert (await step(finals[0]))[0] == Operation("unsubscribe", TOPIC, expected=0)
        assert (await step(finals[0]))[0].f == "subscribe"
        assert (await step(finals[0]))[0].f == "fetch", "once"

    assert told(story).log[1:] == ["start False", "stop False", "start False"]


class Failing(Table):
    """One whose handler may fail."""

    async def fail(self, delivery, consumed):
        self.log.append(f"fail {consumed}")
        return await self.handle(delivery)


def test_in_order_a_handler_fails_now_and_then():
    fails = Operation("handle", TOPIC, aim=0.05)

    async def story(workload, table):
        client = workload.opened(table)

        async def step(drawn=fails):
            return await workload.invoke(workload.choose(drawn, client), None, client)

        await step()
        table.batches = [Delivery(FIRST, [(0, 4), (1, 6)]), Delivery(SECOND, [(0, 8)])]
        messages = (await step()).messages
        if "fail 1" not in table.log:
            assert messages == [(0, 4), (1, 6)]
            return
        assert messages == [(0, 4)], "the first was handled, and comes not again"
        with pytest.raises(DefiniteError, match="the handler failed"):
            await step()
        table.batches = [Delivery(SECOND, [(0, 8)])]
        assert (await step(STEP)).messages == [(0, 8)]

    failing = Failing()
    trio.run(story, QueuePushOrdered(2), failing)
    assert failing.log[-2:] == ["fail 1", "fail 0"]
    for workload, table in ((QueuePush(2), Failing()), (QueuePushOrdered(2), Table())):
        trio.run(story, workload, table)
        assert not any(line.startswith("fail") for line in table.log)


class SendingBack(Failing):
    """One that sends back what failed."""

    def __init__(self):
        super().__init__()
        self.lying = {}

    def retry_later(self, times_max):
        self.log.append(f"times {times_max}")

    def retry_keys(self):
        return (AGAIN,)

    async def send_back(self, delivery, consumed, delay_level):
        self.log.append(f"back {consumed} {delay_level}")
        return await self.handle(delivery)

    async def look(self, key, offset):
        return self.lying.get(key, Delivery(key, []))


AGAIN, DEAD = retry_key(TOPIC, 0), dead_key(TOPIC)


def test_without_order_what_failed_is_sent_back_and_looked_for_in_the_end():
    workload, table = QueuePush(2), SendingBack()
    table.committed |= {SECOND: 2, AGAIN: 0}
    table.ends |= {AGAIN: 0}
    client, other = workload.opened(table), workload.opened(table)

    async def step(drawn=DRAIN, of=client):
        chosen = workload.choose(drawn, of)
        return chosen, None if chosen is None else await workload.invoke(chosen, None, of)

    async def main():
        await step(Operation("handle", TOPIC, aim=0.9))
        table.batches = [Delivery(FIRST, [(0, 4), (1, 6)], [0, 0]), Delivery(AGAIN, [(0, 8)], [2])]
        chosen, answer = await step(Operation("handle", TOPIC, aim=0.05))
        assert (chosen.f, chosen.value, chosen.expected) == ("handle-failed", TIMES_MAX, 0)
        assert (answer.offset, answer.messages) == (1, [(0, 4), (1, 6)])
        chosen, answer = await step(Operation("handle", TOPIC, aim=0.3))
        assert (chosen.f, chosen.expected, answer.attempts) == ("retry-failed", 1, [2])
        for _ in range(3):
            assert (await step())[0].f == "fetch", "the group is at the end of all queues"
        assert (await step())[0].key == AGAIN
        assert (await step())[0].key == DEAD, "8 came for the last time"
        table.lying = {AGAIN: Delivery(AGAIN, [(1, 6)], [1]), DEAD: Delivery(DEAD, [(0, 8)], [3])}
        assert (await step())[0].key == AGAIN
        assert (await step())[0].f == "fetch", "what has come there is to be handled first"
        assert (await step())[0].key == DEAD
        assert (await step())[0].f == "unsubscribe", "others may wait for what comes yet"
        assert await step() == (None, None)
        await step(Operation("handle", TOPIC, aim=0.1), other)
        table.batches = [Delivery(AGAIN, [(1, 6)], [1])]
        assert (await step(STEP, other))[0].f == "retry"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    backs = [line for line in table.log if line.startswith(("times", "back"))]
    assert backs == [f"times {TIMES_MAX}", "back 1 0", "back 0 1", "times -1"]


def test_what_was_taken_away_is_not_handled():
    async def story(table, step):
        await step(STEP)
        table.batches, table.is_taken = [Delivery(FIRST, [(0, 4)])], True
        with pytest.raises(DefiniteError, match="took it away"):
            await step(STEP)

    told(story)


def test_in_order_everybody_leaves_in_good_order():
    async def story(table, step):
        assert (await step(STEP))[0].expected == 1
        assert (await step(LEAVE_AT_ONCE))[0].expected == 1
        await step(STEP)
        table.batches = [Delivery(FIRST, [(0, 4)])]
        assert (await step(STEP))[0].expected == 1

    assert told(story, QueuePushOrdered(2)).log[1:3] == ["start True", "stop True"]


def test_a_queue_that_ends_before_what_was_acknowledged_is_asked_for_a_while():
    async def story(table, step):
        await step(Operation("send", FIRST, value=8))
        assert table.log[-1] == f"send {FIRST} 8", "acknowledged at 7, and the queue ends at 3"
        table.committed[SECOND] = 2
        await step(DRAIN)
        began_s, asked_s = trio.current_time(), []
        while (done := await step(DRAIN))[0] is not None:
            if done[0].key == FIRST:
                asked_s.append(trio.current_time() - began_s)
        assert len(asked_s) > 3
        assert SHORT_S <= asked_s[-1] < SHORT_S + 1

    told(story)


def test_in_the_end_consumers_go_on_until_the_group_has_committed_all():
    async def story(table, step):
        assert (await step(DRAIN))[0].f == "subscribe"
        chosen, answer = await step(DRAIN)
        assert (chosen.f, chosen.key) == ("fetch", FIRST)
        assert (answer.output, answer.offset) == (3, 3), "where the group is, where the queue ends"
        assert (await step(DRAIN))[0].key == SECOND, "the first is consumed"
        table.batches = [Delivery(SECOND, [(0, 4), (1, 5)])]
        assert (await step(DRAIN))[0].f == "handle", "before it is asked again"
        table.committed[SECOND] = 2
        assert (await step(DRAIN))[0].key == SECOND
        assert await step(DRAIN) == (None, None)

    told(story)


@pytest.mark.parametrize(
    ("workload", "longest_s"),
    [(QueuePush(2), DRAIN_TIMEOUT_S), (QueuePushOrdered(2), DRAIN_TIMEOUT_S + LEASE_S)],
)
def test_or_until_patience_is_over(workload, longest_s):
    """That of ordered consumers is longer than a broker keeps the lock of one that is gone."""

    async def story(table, step):
        asked = 0
        while (await step(DRAIN))[0] is not None:
            asked += 1
        assert longest_s < trio.current_time() - began < longest_s + 1
        assert asked > 50

    began = trio.testing.MockClock().current_time()
    told(story, workload)
    assert finals_s_of(workload) > longest_s
    combined = discovery.get("workloads", "combined")
    assert finals_s_of(combined) == finals_s_of(QueuePushOrdered())
    assert finals_s_of(discovery.get("workloads", "log")) == FINALS_S
    assert LEASE_S * 1_000 == LEASE_MS


def test_operations_are_drawn_as_the_seed_says():
    drawn = [list(islice(QueuePush().operations("s", client, 4), 400)) for client in range(4)]
    again = [list(islice(QueuePush().operations("s", client, 4), 400)) for client in range(4)]
    assert drawn == again
    assert {operation.f for operation in drawn[0]} == {"send"}
    assert [operation.value for operation in drawn[2]][:3] == [2, 6, 10]
    assert {operation.f for operation in drawn[1]} == {"handle", "unsubscribe"}
    alone = {operation.f for operation in islice(QueuePush().operations("s", 0, 1), 400)}
    assert alone == {"send", "handle", "unsubscribe"}
    assert list(QueuePush().final_operations(0, 4)) == []
    assert [final.f for final in QueuePush().final_operations(1, 4)] == ["drain"]


def test_clients_that_are_handed_nothing_are_refused():
    with pytest.raises(HarnessError, match="clients are handed no messages"):
        QueuePush().opened(object())
    assert QueuePush().why_not(object) == "are handed no messages"
    with pytest.raises(UsageError, match="queues 0"):
        QueuePush().configured({"queues": 0})

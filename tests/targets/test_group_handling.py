"""A consumer in the background: what counts as handled is what its handler returned for."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from shaketable.harness.contracts.clients import Delivery
from shaketable.harness.targets.group_handling import Handling

BATCH = Delivery("t/0", [(0, 7)])


class Consumer:
    """Hands one batch over; `taken` cancels the handler, as one does that lost the queue."""

    def __init__(self, handler, error=None):
        self.handler, self.error = handler, error
        self.taken = trio.CancelScope()
        self.moved_on = False
        self.closed = False

    async def run(self):
        with self.taken:
            await self.handler("a queue", ["a message"])
            self.moved_on = True
        if self.error is not None:
            raise self.error
        await trio.sleep_forever()

    def close(self):
        self.closed = True


def played(steps, **more):
    consumers = []

    def make(handler):
        consumers.append(Consumer(handler, **more))
        return consumers[0]

    async def main():
        handling = Handling(make, lambda queue, messages: BATCH)
        await trio.testing.wait_all_tasks_blocked()
        await steps(handling, consumers[0])

    trio.run(main)
    return consumers[0]


def test_a_batch_waits_until_it_is_handled_and_the_consumer_moves_on():
    async def steps(handling, consumer):
        assert handling.next_delivery() is BATCH
        assert not consumer.moved_on
        assert await handling.handle(BATCH)
        assert consumer.moved_on
        assert handling.next_delivery() is None
        assert not await handling.handle(BATCH), "nobody handles it twice"
        await handling.end(is_tidy=True)

    assert not played(steps).closed


def test_what_is_taken_away_in_the_same_moment_was_not_handled():
    """The handler does not know yet that it is cancelled, and its consumer will not move on."""

    async def steps(handling, consumer):
        consumer.taken.cancel()
        assert handling.next_delivery() is BATCH
        assert not await handling.handle(BATCH)
        assert not consumer.moved_on
        await handling.end(is_tidy=True)

    played(steps)


def test_who_handles_hears_what_came_of_it_however_late_it_is():
    async def steps(handling, consumer):
        with trio.CancelScope() as late:
            late.cancel()
            assert await handling.handle(BATCH)
        assert consumer.moved_on
        await handling.end(is_tidy=True)

    played(steps)


def test_one_that_is_gone_is_closed_and_has_handled_nothing():
    async def steps(handling, consumer):
        await handling.end(is_tidy=False)
        assert handling.next_delivery() is None
        assert not consumer.moved_on

    assert played(steps).closed


def test_one_that_ended_by_a_bug_says_so(caplog):
    async def steps(handling, consumer):
        consumer.taken.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(handling.failure, ZeroDivisionError)
        with pytest.raises(ZeroDivisionError) as raised:
            await handling.end(is_tidy=True)
        assert any("before" in note for note in raised.value.__notes__)

    played(steps, error=ZeroDivisionError("by zero"))
    assert "the consumer ended" in caplog.text


@pytest.mark.parametrize("is_tidy", [True, False])
def test_its_end_is_waited_for(is_tidy):
    async def steps(handling, consumer):
        await handling.end(is_tidy=is_tidy)
        assert handling._ended.is_set()

    played(steps)

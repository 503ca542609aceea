"""What a consumer does next, step by step, against a queue on a table."""

from __future__ import annotations

from itertools import islice

import pytest
import trio

from harness.errors import UsageError
from harness.groups import GroupClient, Polled
from harness.plugins import Answer, Operation
from workloads.message_queue import TOPIC, QueueWorkload

WORKLOAD = QueueWorkload(2)
POLL = Operation("poll", TOPIC, aim=0.5)
COMMIT = Operation("commit", TOPIC, aim=0.0)
LEAVE_TIDY = Operation("unsubscribe", TOPIC, aim=0.0)
LEAVE = Operation("unsubscribe", TOPIC, aim=0.9)


class Table:
    """Two queues and a group of one; all of it in plain sight."""

    node = "n0"

    def __init__(self) -> None:
        self.queues = {f"{TOPIC}/{n}": [10 * n, 10 * n + 1, 10 * n + 2] for n in range(2)}
        self.offsets: dict[str, int] = {}
        self.mine: tuple[str, ...] = tuple(self.queues)
        self.unbalanced = True
        self.used: tuple[str, int] | None = None

    def use(self, topic, queues):
        self.used = (topic, queues)

    def is_unbalanced(self):
        return self.unbalanced

    async def send(self, key, value):
        self.queues[key].append(value)
        return len(self.queues[key]) - 1

    async def subscribe(self):
        return 1

    async def unsubscribe(self):
        return None

    async def rebalance(self):
        self.unbalanced = False
        return self.mine

    async def fetch(self, key):
        return self.offsets.get(key)

    async def commit(self, key, offset):
        self.offsets[key] = offset

    async def begin(self, key):
        return 0

    async def poll(self, key, offset):
        queue = self.queues[key]
        if offset > len(queue):
            return Polled((), len(queue), is_outside=True)
        some = list(enumerate(queue))[offset : offset + 2]
        return Polled(some, offset + len(some))

    async def append(self, key, value): ...
    async def read(self, key, offset): ...
    async def end(self, key): ...
    async def aclose(self): ...


class Player:
    """Does the operations that are chosen, as a worker would."""

    def __init__(self, table: Table) -> None:
        assert isinstance(table, GroupClient)
        self.client = WORKLOAD.opened(table)

    def do(self, drawn: Operation) -> tuple[str, str, object] | None:
        chosen = WORKLOAD.choose(drawn, self.client)
        if chosen is None:
            return None
        offset = WORKLOAD.choose_offset(chosen, 0)
        answer: Answer = trio.run(WORKLOAD.invoke, chosen, offset, self.client)
        told = answer.messages if answer.messages is not None else answer.output
        if chosen.f in ("assign", "seek"):
            told = answer.offset
        return chosen.f, chosen.key, chosen.value if chosen.f == "commit" else told

    def drain(self, key: str) -> list[tuple[str, object]]:
        steps = []
        while (done := self.do(Operation("drain", key))) is not None:
            steps.append((done[0], done[2]))
        return steps


def joined(table: Table) -> Player:
    player = Player(table)
    assert player.do(POLL) == ("subscribe", TOPIC, 1)
    assert player.do(POLL) == ("rebalance", TOPIC, len(table.mine))
    for key in table.mine:
        assert player.do(POLL) == ("fetch", key, table.offsets.get(key))
        assert player.do(POLL) == ("assign", key, table.offsets.get(key, 0))
    return player


def test_a_consumer_joins_asks_where_to_begin_polls_and_commits():
    table = Table()
    player = joined(table)
    assert table.used == (TOPIC, 2)
    assert player.do(POLL) == ("poll", f"{TOPIC}/1", [(0, 10), (1, 11)])
    assert player.do(POLL) == ("poll", f"{TOPIC}/0", [(0, 0), (1, 1)])
    assert player.do(COMMIT) == ("commit", f"{TOPIC}/0", 2)
    assert player.do(COMMIT) == ("commit", f"{TOPIC}/1", 2)
    assert player.do(COMMIT)[0] == "poll", "nothing is left to commit"
    assert table.offsets == {f"{TOPIC}/0": 2, f"{TOPIC}/1": 2}


def test_what_a_rebalance_takes_is_committed_before_it_is_left():
    table = Table()
    player = joined(table)
    player.do(POLL)
    table.mine, table.unbalanced = (f"{TOPIC}/0",), True
    assert player.do(POLL) == ("rebalance", TOPIC, 1)
    assert player.do(POLL) == ("commit", f"{TOPIC}/1", 2)
    assert player.do(POLL) == ("poll", f"{TOPIC}/0", [(0, 0), (1, 1)])
    table.mine, table.unbalanced = (), True
    assert [player.do(POLL)[0] for _ in range(2)] == ["rebalance", "commit"]
    assert player.do(POLL) is None, "no queue is its own: there is nothing to do"


def test_who_leaves_tidily_commits_first_who_does_not_lets_others_have_it_again():
    for drawn, steps in ((LEAVE_TIDY, ["commit", "unsubscribe"]), (LEAVE, ["unsubscribe"])):
        table = Table()
        player = joined(table)
        player.do(POLL)
        assert player.do(drawn)[0] == steps[0]
        assert [player.do(POLL)[0] for _ in steps[1:]] == steps[1:]
        assert player.do(POLL)[0] == "subscribe"


def test_a_consumer_that_a_queue_has_lost_goes_back_into_it():
    table = Table()
    table.offsets[f"{TOPIC}/1"] = 9
    player = joined(table)
    assert player.do(POLL) == ("poll", f"{TOPIC}/1", ())
    assert player.do(POLL) == ("seek", f"{TOPIC}/1", 3)


def test_a_drain_goes_on_where_the_group_stands_to_the_very_end():
    table = Table()
    table.offsets[f"{TOPIC}/1"] = 1
    player = Player(table)
    assert player.drain(f"{TOPIC}/1") == [
        ("fetch", 1),
        ("assign", 1),
        ("poll", [(1, 11), (2, 12)]),
        ("poll", []),
        ("commit", 3),
    ]
    assert player.drain(f"{TOPIC}/0")[:2] == [("fetch", None), ("assign", 0)]


def test_every_queue_is_drained_by_one_client():
    workload = QueueWorkload(5)
    finals = [o.key for client in range(3) for o in workload.final_operations(client, 3)]
    assert sorted(finals) == [f"{TOPIC}/{n}" for n in range(5)]


def test_half_of_the_clients_produce_values_of_their_own():
    sent = []
    for client in range(4):
        drawn = list(islice(WORKLOAD.operations("7", client, 4), 200))
        kinds = {operation.f for operation in drawn}
        assert kinds == ({"send"} if client % 2 == 0 else kinds - {"send"})
        sent += [operation.value for operation in drawn if operation.f == "send"]
    assert len(set(sent)) == len(sent) == 400
    alone = {operation.f for operation in islice(WORKLOAD.operations("7", 0, 1), 200)}
    assert {"send", "poll", "commit"} <= alone


@pytest.mark.parametrize("queues", [0, "3"])
def test_queues_that_no_topic_has_are_refused(queues: object) -> None:
    with pytest.raises(UsageError, match=r"workload queue: queues .*: expected a number from 1"):
        WORKLOAD.configured({"queues": queues})

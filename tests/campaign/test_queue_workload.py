"""What a consumer does next, step by step, against a queue on a table."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from shaketable.harness.contracts.clients import ALL_SPAN, GroupClient, PollResult
from shaketable.harness.contracts.errors import DefiniteError, HarnessError, UsageError
from shaketable.harness.contracts.plugins import Answer, Operation
from shaketable.workloads.message_queue import (
    TOPIC,
    EverythingClients,
    QueueBatches,
    QueueDelays,
    QueueHeld,
    QueueKeys,
    QueueOffsets,
    QueueOperators,
    QueueOrdered,
    QueueWorkload,
)
from shaketable.workloads.queue_consumer import Untried
from shaketable.workloads.queue_shape import (
    DELAYS_MS,
    FINAL_RANGES_MAX,
    HOLD_S,
    KEY_NUMBERS,
    SELECT_HOLD_S,
)

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

    async def min_offset(self, key):
        return 0

    async def poll(self, key, offset):
        queue = self.queues[key]
        if offset > len(queue):
            return PollResult((), len(queue), is_outside=True)
        some = list(enumerate(queue))[offset : offset + 2]
        return PollResult(some, offset + len(some))

    async def append(self, key, value): ...
    async def read(self, key, offset): ...
    async def end(self, key): ...
    async def aclose(self): ...


class Player:
    """Does the operations that are chosen, as a worker would."""

    def __init__(self, table: Table, workload: QueueWorkload = WORKLOAD) -> None:
        assert isinstance(table, GroupClient)
        self.workload = workload
        self.client = workload.opened(table)

    def do(self, drawn: Operation) -> tuple[str, str, object] | None:
        return trio.run(self.done, drawn)

    async def done(self, drawn: Operation) -> tuple[str, str, object] | None:
        chosen = self.workload.choose(drawn, self.client)
        if chosen is None:
            return None
        offset = self.workload.choose_offset(chosen, 0)
        answer: Answer = await self.workload.invoke(chosen, offset, self.client)
        told = answer.messages if answer.messages is not None else answer.output
        if chosen.f in ("assign", "seek"):
            told = answer.offset
        return chosen.f, chosen.key, chosen.value if chosen.f == "commit" else told

    def drain(self, key: str) -> list[tuple[str, object]]:
        return trio.run(self._drained, key, clock=trio.testing.MockClock(autojump_threshold=0))

    async def _drained(self, key: str) -> list[tuple[str, object]]:
        steps = []
        while (done := await self.done(Operation("drain", key))) is not None:
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


class LateTable(Table):
    """A table to which delayed messages come when they are polled for the third time."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[str, int, int]] = []
        self.looks = 0

    async def send_later(self, key, value, delay_ms):
        self.waiting.append((key, value, delay_ms))

    async def hold(self, key, offset, hold_s):
        self.looks += 1
        if self.looks == 3:
            self.queues[key] += [value for _, value, _ in self.waiting]
        if offset == len(self.queues[key]):
            await trio.sleep(hold_s)
        return await self.poll(key, offset)


def test_delayed_messages_are_drawn_beside_others_and_every_seed_draws_its_own():
    drawn = list(islice(QueueDelays(2).operations("seed", 0, 3), 300))
    delays = [each for each in drawn if each.f == "delay"]
    assert {each.f for each in drawn} == {"send", "delay"}
    assert {each.expected for each in delays} == set(DELAYS_MS)
    assert 50 < len(delays) < 130
    assert len({each.value for each in drawn}) == len(drawn), "each value once"
    assert drawn == list(islice(QueueDelays(2).operations("seed", 0, 3), 300))


def test_a_drain_sends_a_message_of_each_delay_and_waits_until_they_came():
    table = LateTable()
    workload = QueueDelays(2)
    player = Player(table, workload)
    key = f"{TOPIC}/1"
    steps = player.drain(key)
    assert [f for f, _ in steps] == [
        "delay", "delay", "fetch", "assign", "poll", "poll", "poll", "poll", "commit",
    ]  # fmt: skip
    values = [value for _, value, _ in table.waiting]
    assert {delay_ms for *_, delay_ms in table.waiting} == set(DELAYS_MS)
    assert len(set(values)) == 2
    assert max(values) < -1
    assert table.offsets == {key: 5}
    again = Player(table, workload)
    again.drain(key)
    assert not {value for _, value, _ in table.waiting[2:]} & set(values), "never the same again"


def test_clients_that_cannot_delay_are_refused_in_one_line():
    with pytest.raises(HarnessError, match=r"workload queue-delays: .* cannot delay messages"):
        QueueDelays(2).opened(Table())
    assert QueueDelays(2).why_not(LateTable) is None
    assert WORKLOAD.why_not(Table) is None


class KeyedTable(Table):
    """A table whose messages all bear keys; what was asked for is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[object, ...]] = []
        self.found: dict[str, tuple[int, int]] = {}

    async def send_keyed(self, key, value, span):
        return await self.send(key, value)

    async def find(self, key, first, span, offset):
        self.asked.append(("find", first, span, offset))
        queue = self.queues[key]
        found = [(n, queue[n]) for n in range(len(queue)) if first <= queue[n] < first + span]
        if found:
            self.found[key] = found[-1]
        return found

    async def find_unique(self, key, value):
        self.asked.append(("find-unique", value))
        return [(self.queues[key].index(value), value)]

    async def peek(self, key, shift):
        self.asked.append(("peek", shift))
        return ()

    def seen(self, key):
        return self.found.get(key)

    async def view(self, key, offset):
        return self.queues[key][offset]


def test_messages_are_asked_for_by_key_and_by_id():
    table = KeyedTable()
    player = Player(table, QueueKeys(1))
    assert player.do(POLL)[0] == "subscribe"
    for n in range(400):
        player.do(Operation("find", TOPIC, aim=n / 400))
    kinds = set(table.asked)
    assert {("find", 0, ALL_SPAN, None), ("find", 0, ALL_SPAN, 2), ("find-unique", 2)} <= kinds
    assert {("find", 0, KEY_NUMBERS, None), ("find", 0, KEY_NUMBERS, 2), ("peek", 0)} <= kinds
    inside = {shift for f, shift, *_ in table.asked if f == "peek" and shift}
    assert len(inside) > 10
    assert max(inside) <= 80, "no message is shorter"


def test_some_sends_are_looked_up_by_their_id_and_some_by_their_unique_key():
    player = Player(KeyedTable(), QueueKeys(1))
    key, last = f"{TOPIC}/0", -1
    done = []
    for value in range(96, 160):
        f, _, told = player.do(Operation("send", key, value=value))
        done.append(f)
        if f == "send":
            last = value
        else:
            assert [each for _, each in told] == [last]
    assert set(done) == {"send", "view", "find-unique"}


def test_in_the_end_ranges_of_all_that_was_sent_are_asked_for():
    table = KeyedTable()
    player = Player(table, QueueKeys(1))
    key = f"{TOPIC}/0"
    player.do(Operation("send", key, value=KEY_NUMBERS * 1000))
    steps = [f for f, _ in player.drain(key)]
    assert {"find", "find-unique", "peek"} <= set(steps), "each is answered when no fault is left"
    ranges = [first for f, first, *_ in table.asked if f == "find"]
    assert len(ranges) == FINAL_RANGES_MAX + 2
    assert 0 in ranges
    assert max(ranges) == KEY_NUMBERS * 1000


class ErringTable(Table):
    """A table whose operators may ask for two things that are refused."""

    def invalid_requests(self):
        return [SimpleNamespace(label=f"request {n}", code=code) for n, code in enumerate((13, 16))]

    async def send_invalid_request(self, number):
        return self.invalid_requests()[number].code

    async def delete_topic(self, topic):
        return False


def test_what_must_be_refused_is_asked_for_and_the_code_is_the_answer():
    workload = QueueOperators(1)
    drawn = list(islice(workload.operations("seed", 1, 3), 1000))
    share = sum(each.f == "misrequest" for each in drawn) / len(drawn)
    assert 0.05 < share < 0.15
    player = Player(ErringTable(), workload)
    player.do(POLL)
    asked = [
        player.workload.choose(each, player.client) for each in drawn if each.f == "misrequest"
    ]
    assert {(each.key, each.value, each.expected, each.request) for each in asked} == {
        (TOPIC, 0, 13, "request 0"),
        (TOPIC, 1, 16, "request 1"),
    }
    answers = [player.do(Operation("misrequest", TOPIC, aim=0.7)) for _ in range(4)]
    assert Counter(answers) == {("misrequest", TOPIC, 13): 2, ("misrequest", TOPIC, 16): 2}


def test_nothing_is_asked_for_again_before_all_was_also_of_who_knows_of_more():
    untried, rng = Untried(), Random(7)
    rounds = [[untried.take(23, rng.random()) for _ in range(23)] for _ in range(3)]
    assert [sorted(each) for each in rounds] == [list(range(23))] * 3
    assert rounds[0] != rounds[1] != rounds[2]
    more = untried.take(27, rng.random())
    fewer = [untried.take(23, rng.random()) for _ in range(23 - (more < 23))]
    assert len({more, *fewer}) == 23 + (more >= 23)


class AbleTable(LateTable, KeyedTable, ErringTable):
    """A table whose clients can do everything."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: dict[str, object] = {}
        self.told: list[tuple[str, int]] = []
        self.held: list[float] = []

    async def send_batch(self, key, values):
        self.queues[key] += values
        return len(self.queues[key]) - len(values)

    async def view(self, key, offset):
        return self.queues[key][offset]

    async def send_tagged(self, key, value, tag):
        return await self.send(key, value)

    async def select(self, key, offset, tags, hold_s=0.0):
        self.held.append(hold_s)
        return PollResult([(2, 2)], 3)

    async def lock(self, key):
        return self.holders.setdefault(key, self) is self

    async def unlock(self, key):
        self.holders.pop(key, None)

    async def commit_oneway(self, key, offset):
        self.told.append((key, offset))

    async def delete_topic(self, topic):
        return False


def test_an_ordered_consumer_locks_consumes_commits_and_unlocks():
    trio.run(_consume_in_order)


async def _consume_in_order():
    table = AbleTable()
    player = Player(table, QueueOrdered(1))
    key = f"{TOPIC}/0"
    step, commit = Operation("ordered", TOPIC, aim=0.0), Operation("ordered-commit", TOPIC, aim=0.0)
    assert (await player.done(step))[0] == "subscribe"
    table.holders[key] = "another"
    assert await player.done(step) == ("lock", key, 0)
    del table.holders[key]
    assert await player.done(step) == ("lock", key, 1)
    assert [(await player.done(step))[0] for _ in range(3)] == ["fetch", "assign", "poll"]
    assert await player.done(commit) == ("commit", key, 2)
    assert table.holders
    assert (await player.done(step))[0] == "unlock"
    assert not table.holders
    assert [(await player.done(step))[0] for _ in range(2)] == ["lock", "fetch"], "it asks again"


def test_tags_are_asked_for_from_where_the_last_answer_ended():
    player = Player(AbleTable(), QueueBatches(1))
    assert player.do(POLL)[0] == "subscribe"
    ask = Operation("select", TOPIC, aim=0.4)
    assert player.workload.choose(ask, player.client) == Operation(
        "select", f"{TOPIC}/0", value=0, expected=0b100
    )
    assert player.do(ask) == ("select", f"{TOPIC}/0", [(2, 2)])
    assert player.workload.choose(ask, player.client).value == 3


@pytest.mark.parametrize(
    ("workload", "held"),
    [(QueueBatches, [0.0, 0.0]), (EverythingClients, [0.0, SELECT_HOLD_S])],
    ids=["not", "held"],
)
def test_where_polls_are_held_a_selection_goes_on_waiting_for_its_tags(workload, held):
    table = AbleTable()
    player = Player(table, workload(1))
    assert player.do(POLL)[0] == "subscribe"
    for _ in held:
        assert player.do(Operation("select", TOPIC, aim=0.4))[0] == "select"
    assert table.held == held, "the first begins at the queue's start"


def test_one_message_of_a_batch_is_looked_up_by_its_id_and_then_the_producer_goes_on():
    player = Player(AbleTable(), QueueBatches(1))
    key = f"{TOPIC}/0"
    batch = Operation("batch", key, value=8, expected=3)
    assert player.do(batch)[0] == "batch"
    assert player.do(Operation("send", key, value=16)) == ("view", key, [(5, 10)])
    assert player.do(Operation("send", key, value=24))[0] == "send"


def test_batches_and_tags_are_drawn_and_no_value_twice():
    drawn = list(islice(QueueBatches(2).operations("seed", 0, 3), 400))
    values = [
        value
        for each in drawn
        for value in range(each.value, each.value + (each.expected if each.f == "batch" else 1))
    ]
    assert len(set(values)) == len(values)
    assert {each.expected for each in drawn if each.f == "send"} == {None, 0, 1, 2}
    assert {each.expected for each in drawn if each.f == "batch"} == set(range(2, 9))


def test_polls_wait_where_the_shape_says_so_but_not_while_a_queue_is_drained():
    table = AbleTable()
    table.mine = (f"{TOPIC}/0",)
    player = Player(table, QueueHeld(1))
    assert player.workload.hold_s == HOLD_S
    for _ in range(5):
        player.do(POLL)
    assert table.looks == 1
    player.drain(f"{TOPIC}/0")
    assert table.looks == 1


def test_the_first_consumer_waits_in_an_empty_queue_before_anything_else():
    drawn = [list(islice(QueueHeld(2).operations("seed", client, 4), 8)) for client in range(4)]
    waits = [sum(each.f == "await" for each in steps) for steps in drawn]
    assert waits == [0, 6, 0, 0]
    assert drawn[1][6:] == list(islice(QueueWorkload(2).operations("seed", 1, 4), 2)), "none moved"
    table = AbleTable()
    table.mine = (f"{TOPIC}/0",)
    table.queues[f"{TOPIC}/0"].clear()
    player = Player(table, QueueHeld(1))
    wait = drawn[1][0]
    assert player.do(wait) == ("assign", f"{TOPIC}/0", 0)
    assert player.do(wait) == ("poll", f"{TOPIC}/0", [])
    table.queues[f"{TOPIC}/0"].append(7)
    assert player.do(wait) == ("poll", f"{TOPIC}/0", [(0, 7)])
    assert table.looks == 2, "both were held"
    assert player.do(wait) is None, "a message has come"
    table.offsets[f"{TOPIC}/0"] = 1
    assert [player.do(POLL)[0] for _ in range(3)] == ["subscribe", "rebalance", "fetch"]
    assert player.do(POLL) == ("assign", f"{TOPIC}/0", 1), "where the group is"
    assert player.do(wait) is None


def test_a_topic_is_deleted_in_the_end_until_that_was_answered():
    shape = QueueOffsets(2)
    last = [each for c in range(3) for each in shape.final_operations(c, 3) if each.f != "drain"]
    assert [each.f for each in last] == ["delete-topic"]
    player = Player(AbleTable(), shape)
    assert player.workload.choose(last[0], player.client) == last[0]
    assert player.workload.choose(last[0], player.client) == last[0], "it was not answered yet"
    assert player.do(last[0])[0] == "delete-topic"
    assert player.do(last[0]) is None
    assert not [each for each in QueueHeld(2).final_operations(0, 3) if each.f != "drain"]


def test_offsets_are_committed_one_way_too_and_set_back_and_all_comes_again_in_the_end():
    drawn = list(islice(QueueOffsets(2).operations("seed", 1, 3), 1000))
    assert 5 < sum(each.f == "reset" for each in drawn) < 50
    table = AbleTable()
    key = f"{TOPIC}/0"
    table.mine = (key,)
    player = Player(table, QueueOffsets(1))
    for _ in range(5):
        player.do(POLL)
    assert player.do(Operation("commit", TOPIC, aim=0.0))[0] == "commit-oneway"
    assert table.told == [(key, 2)]
    assert table.offsets == {}
    assert player.do(Operation("reset", TOPIC, aim=0.09))[0] == "reset"
    assert [player.do(POLL)[0] for _ in range(2)] == ["fetch", "assign"], "it begins anew"
    table.offsets[key] = 3
    steps = player.drain(key)
    assert [f for f, _ in steps[:3]] == ["reset", "assign", "poll"]
    assert next(told for f, told in steps if f == "poll") == [(0, 0), (1, 1)]


def test_a_drain_whose_reset_is_refused_sets_the_group_back_again():
    table = AbleTable()
    key = f"{TOPIC}/0"
    table.mine, table.offsets[key] = (key,), 2
    player = Player(table, QueueOffsets(1))
    player.do(POLL)
    accepts, table.commit = table.commit, refuse
    for _ in range(2):
        with pytest.raises(DefiniteError):
            player.do(Operation("drain", key))
    table.commit = accepts
    assert [f for f, _ in player.drain(key)[:3]] == ["reset", "assign", "poll"]


async def refuse(key, offset):
    raise DefiniteError("no leader")


def test_what_a_shape_needs_of_clients_is_said_in_words():
    for workload, lacks in (
        (QueueBatches(), "cannot send batches"), (QueueHeld(), "cannot wait for messages"),
        (QueueOrdered(), "cannot lock queues"), (QueueOffsets(), "cannot commit one-way"),
        (QueueKeys(), "cannot find messages by key"),
        (EverythingClients(), "cannot delay messages"),
    ):  # fmt: skip
        assert workload.why_not(Table) == lacks
        assert workload.why_not(AbleTable) is None

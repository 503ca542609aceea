"""Consume queues in memory and in files are one list of units for each queue."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.system.broker.broker_state import (
    BrokerState,
    DamagedBrokerState,
    decode_state,
    encode_state,
    ranges_of,
    snapshot_ranges,
)
from shaketable.system.broker.consume_queue import UNIT_BYTES, ConsumeQueues, Queue
from shaketable.system.raft.protocol import InvariantError

ORDERS = (b"orders", 0)
PAYMENTS = (b"payments", 1)


class SavedUnits:
    """What checkpoints wrote; remembers what was read back."""

    def __init__(self) -> None:
        self.units: dict[Queue, dict[int, bytes]] = {}
        self.reads: list[tuple[int, int]] = []

    def save(self, queues: ConsumeQueues) -> None:
        runs = queues.units_since_checkpoint()
        for queue, (first, data) in runs.items():
            for at in range(0, len(data), UNIT_BYTES):
                unit = data[at : at + UNIT_BYTES]
                self.units.setdefault(queue, {})[first + at // UNIT_BYTES] = unit
        queues.checkpointed(runs)

    def read_units(self, queue: Queue, offset: int, count: int) -> bytes:
        self.reads.append((offset, count))
        return b"".join(self.units[queue][number] for number in range(offset, offset + count))


def test_a_queue_goes_on_where_it_ended() -> None:
    queues = ConsumeQueues()
    queues.append(ORDERS, 0, 0, 100, 7)
    queues.append(ORDERS, 1, 100, 50)
    assert (queues.min_offset(ORDERS), queues.max_offset(ORDERS)) == (0, 2)
    assert (queues.min_offset(PAYMENTS), queues.max_offset(PAYMENTS)) == (0, 0)
    assert queues.find(ORDERS, 0, 32, 1000) == [(0, 100), (100, 50)]
    assert queues.find(PAYMENTS, 0, 32, 1000) == []
    for offset in (1, 3):
        with pytest.raises(InvariantError, match=f"orders/0 goes on at {offset}, not 2"):
            queues.append(ORDERS, offset, 150, 10)
    with pytest.raises(InvariantError):
        queues.append(PAYMENTS, 1, 150, 10)


def test_find_stops_at_its_bounds_but_finds_one() -> None:
    queues = ConsumeQueues()
    for offset in range(5):
        queues.append(ORDERS, offset, offset * 100, 100)
    assert len(queues.find(ORDERS, 1, 2, 1000)) == 2
    assert len(queues.find(ORDERS, 0, 32, 250)) == 2
    assert queues.find(ORDERS, 3, 32, 1) == [(300, 100)]
    assert queues.find(ORDERS, 5, 32, 1000) == []
    assert queues.find(ORDERS, -1, 32, 1000) == []


def test_a_unit_is_due_until_a_checkpoint_has_it() -> None:
    queues = ConsumeQueues()
    queues.append(ORDERS, 0, 48, 100, -2)
    unit = bytes.fromhex("0000000000000030 00000064 fffffffffffffffe")
    due = queues.units_since_checkpoint()
    assert due == {ORDERS: (0, unit)}
    queues.append(ORDERS, 1, 200, 100)
    assert queues.units_since_checkpoint()[ORDERS][1][:20] == unit  # that save found no room
    queues.checkpointed(due)
    ((first, data),) = queues.units_since_checkpoint().values()
    assert (first, len(data)) == (1, 20)
    queues.checkpointed(queues.units_since_checkpoint())
    assert queues.units_since_checkpoint() == {}


def test_memory_keeps_a_bounded_tail_of_what_the_files_have() -> None:
    saved = SavedUnits()
    queues = ConsumeQueues(reader=saved, tail_units_max=3)
    for offset in range(10):
        queues.append(ORDERS, offset, offset * 100, 100)
    assert len(queues.find(ORDERS, 0, 32, 9999)) == 10
    assert saved.reads == []
    saved.save(queues)
    assert len(queues.find(ORDERS, 7, 32, 9999)) == 3
    assert saved.reads == []
    assert queues.find(ORDERS, 5, 4, 9999) == [(at * 100, 100) for at in range(5, 9)]
    assert saved.reads == [(5, 2)]


def test_a_fully_expired_queue_goes_on_at_its_next_offset() -> None:
    queues = ConsumeQueues()
    for offset in range(4):
        queues.append(ORDERS, offset, offset * 100, 100)
    queues.append(PAYMENTS, 0, 400, 100)
    queues.forget_below(400)
    assert queues.ranges() == {ORDERS: (4, 4), PAYMENTS: (0, 1)}
    assert queues.units_since_checkpoint() == {
        ORDERS: (4, b""),
        PAYMENTS: (0, bytes.fromhex("0000000000000190 00000064 0000000000000000")),
    }
    queues.append(ORDERS, 4, 500, 100)
    assert queues.find(ORDERS, 3, 32, 9999) == []
    assert queues.find(ORDERS, 4, 32, 9999) == [(500, 100)]


def test_a_snapshots_queues_begin_at_their_next_offsets() -> None:
    queues = ConsumeQueues()
    for number in range(6):
        queues.append(ORDERS, number, number * 200, 100)
        queues.append(PAYMENTS, number, number * 200 + 100, 100)
    late = (b"late", 0)
    queues.append(late, 0, 1200, 100)
    offsets = queues.offsets_at(500)
    assert offsets == {ORDERS: 3, PAYMENTS: 2}  # as before `late` had its first message
    state = encode_state(BrokerState(snapshot_ranges(offsets)))
    installed = ConsumeQueues(ranges_of(state))
    assert installed.ranges() == {ORDERS: (3, 3), PAYMENTS: (2, 2)}
    installed.append(PAYMENTS, 2, 500, 100)
    installed.append(ORDERS, 3, 600, 100)
    installed.append(late, 0, 1200, 100)
    queues.forget_below(500)
    assert queues.min_offset(PAYMENTS) == installed.min_offset(PAYMENTS)


def test_what_was_saved_of_a_replaced_log_is_no_news() -> None:
    queues = ConsumeQueues({ORDERS: (5, 5)})
    queues.append(ORDERS, 5, 500, 100)
    due = queues.units_since_checkpoint()
    queues.checkpointed({ORDERS: (0, bytes(3 * UNIT_BYTES)), PAYMENTS: (0, bytes(20))})
    assert queues.units_since_checkpoint() == due


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2)),
        st.tuples(st.just("append"), st.integers(0, 2)),
        st.tuples(st.just("forget"), st.integers(0, 400)),
        st.tuples(st.sampled_from(("save", "fail", "restart")), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 4))
def test_queues_are_the_model_at_any_time(steps: list[tuple[str, int]], tail_max: int) -> None:
    saved = SavedUnits()
    queues = ConsumeQueues(reader=saved, tail_units_max=tail_max)
    model: dict[Queue, list[tuple[int, int]]] = {(b"t", number): [] for number in range(3)}
    begins = dict.fromkeys(model, 0)
    position = 0
    for what, argument in steps:
        if what == "append":
            queue = (b"t", argument)
            position += 10 + argument
            queues.append(queue, len(model[queue]), position, 9 + argument, argument)
            model[queue].append((position, 9 + argument))
        elif what == "forget":
            offsets = queues.offsets_at(argument)
            queues.forget_below(argument)
            for queue, found in model.items():
                first = bisect_left(found, (argument, 0))
                begins[queue] = max(begins[queue], first)
                assert offsets.get(queue, 0) == begins[queue]
        elif what == "save":
            saved.save(queues)
        elif what == "fail":
            queues.units_since_checkpoint()
        else:
            saved.save(queues)
            queues = ConsumeQueues(queues.ranges(), saved, tail_units_max=tail_max)
    for queue, found in model.items():
        begin, end = begins[queue], len(found)
        assert (queues.min_offset(queue), queues.max_offset(queue)) == (begin, end)
        for offset in range(end + 1):
            expected = found[offset : offset + 5] if offset >= begin else []
            assert queues.find(queue, offset, 5, 1 << 20) == expected
    assert all(len(tail.units) <= 20 * 60 for tail in queues._queues.values())
    saved.save(queues)
    assert all(len(tail.units) <= 20 * tail_max for tail in queues._queues.values())


# ---- the broker's state ---------------------------------------------------------------

TEXTS = st.text(max_size=5)
STATES = st.builds(
    BrokerState,
    st.dictionaries(
        st.tuples(st.binary(max_size=4), st.integers(0, 3)),
        st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 62)).map(sorted).map(tuple),
    ),
    st.dictionaries(TEXTS, st.dictionaries(TEXTS, TEXTS | st.integers(0, 9) | st.booleans())),
    st.dictionaries(TEXTS, st.dictionaries(st.integers(0, 9), st.integers(0, 1 << 62))),
)


@given(STATES)
def test_a_state_comes_back(state: BrokerState) -> None:
    assert decode_state(encode_state(state)) == state


@given(STATES)
def test_equal_states_are_equal_bytes(state: BrokerState) -> None:
    turned = BrokerState(
        *(
            dict(reversed(part.items()))
            for part in (state.ranges, state.topics, state.group_offsets)
        )
    )
    assert encode_state(turned) == encode_state(state)


def test_no_bytes_are_the_state_of_nothing() -> None:
    assert decode_state(b"") == BrokerState()


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        encode_state(BrokerState())[:-1],
        encode_state(BrokerState()).replace(b"\x01", b"\x02", 1),
        encode_state(BrokerState({ORDERS: (2, 1)})),
    ],
)
def test_other_bytes_are_damaged(data: bytes) -> None:
    with pytest.raises(DamagedBrokerState):
        decode_state(data)


def test_a_queue_that_may_skip_begins_anew_behind_a_gap_and_passes_over_what_it_has() -> None:
    files = SavedUnits()
    queues = ConsumeQueues(reader=files, may_skip=True)
    queues.append(ORDERS, 7, 100, 10)
    queues.append(ORDERS, 8, 110, 10)
    files.save(queues)
    queues.append(ORDERS, 8, 120, 10)
    assert queues.ranges() == {ORDERS: (7, 9)}
    queues.append(ORDERS, 12, 200, 10)
    queues.append(ORDERS, 13, 210, 10)
    assert queues.ranges() == {ORDERS: (12, 14)}
    assert queues.find(ORDERS, 12, 9, 999) == [(200, 10), (210, 10)]
    assert queues.find(ORDERS, 8, 9, 999) == []
    files.save(queues)
    again = ConsumeQueues(queues.ranges(), files, may_skip=True)
    assert again.find(ORDERS, 12, 9, 999) == [(200, 10), (210, 10)]
    with pytest.raises(InvariantError):
        ConsumeQueues().append(ORDERS, 7, 100, 10)

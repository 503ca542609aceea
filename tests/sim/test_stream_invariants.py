"""Bytes of simulated connections: chopped ones lose none, and whoever garbles them is told of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.system.invariants.violated import Violated
from shaketable.system.sim.network import Link
from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.sim.schedules.schedule import Options, draw_schedule
from shaketable.system.sim.trio_world.clocks import HeapClock
from shaketable.system.sim.trio_world.tcp_pipe import (
    SEGMENT_BYTES_MAX,
    WINDOW_BYTES_MAX,
    Pipe,
    UnsentBytes,
)
from shaketable.system.sim.trio_world.world import OPERATIONS_PER_S, run_seed


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.data())
def test_who_goes_on_where_a_socket_stopped_is_left_alone(messages, data) -> None:
    owed, waiting = UnsentBytes(), b""
    for message in [*messages, b"", b""]:
        waiting += message
        if waiting:
            taken = data.draw(st.integers(0, len(waiting)))
            owed.sent(memoryview(waiting), taken)
            waiting = waiting[taken:]
    assert owed.at == sum(map(len, messages)) - len(waiting)


@pytest.mark.parametrize("behind", [b"cdef", b"bbc", b"next frame"])
def test_who_does_not_go_on_there_is_found(behind: bytes) -> None:
    owed = UnsentBytes()
    owed.sent(memoryview(b"abcdef"), 1)
    with pytest.raises(Violated, match="partial-sends-are-continued"):
        owed.sent(memoryview(behind), len(behind))


def test_who_sends_the_rest_in_parts_of_his_own_is_left_alone() -> None:
    owed = UnsentBytes()
    owed.sent(memoryview(b"abcdef"), 2)
    owed.sent(memoryview(b"cd"), 1)
    owed.sent(memoryview(b"d"), 1)
    owed.sent(memoryview(b"efghi"), 5)
    assert owed.at == 9


def test_what_is_left_of_a_large_message_is_not_looked_at_whole_for_each_part() -> None:
    """Simulated runs stood still: 8 MiB in 4,096 parts took minutes."""
    owed, message = UnsentBytes(), memoryview(bytes(8 << 20))
    for at in range(0, len(message), 2048):
        owed.sent(message[at:], 2048)
    assert owed.at == len(message)


def test_only_chopped_connections_come_in_parts() -> None:
    rngs, clock = RandomStreams(1), HeapClock()
    link = Link(rngs.stream("link").random, 1.0, 1.0)

    def pipe(chops) -> Pipe:
        return Pipe(clock, link, rngs.stream("tcp").random, None, lambda _: None, chops)

    chopped, whole = pipe(rngs.stream("chops").random), pipe(None)
    parts = [chopped.part(100) for _ in range(200)]
    assert {whole.part(size) for size in (0, 1, 100)} == {0, 1, 100}
    assert all(1 <= part <= 100 for part in parts)
    assert 0.3 < parts.count(100) / len(parts) < 0.7
    assert [chopped.part(size) for size in (0, 1)] == [0, 1]


def test_a_full_window_opens_for_a_whole_segment_and_not_for_a_few_bytes() -> None:
    """4 MiB went out in a million segments of one byte each behind a reader of small parts."""
    rngs, clock = RandomStreams(1), HeapClock()
    link = Link(rngs.stream("link").random, 1.0, 1.0)
    pipe = Pipe(clock, link, rngs.stream("tcp").random, None, lambda _: None)
    large = 4 << 20
    while size := pipe.room_for(large):
        assert size == SEGMENT_BYTES_MAX
        pipe.send(bytes(size))
    assert pipe.in_flight == WINDOW_BYTES_MAX
    pipe.in_flight -= SEGMENT_BYTES_MAX - 1
    assert pipe.room_for(large) == 0
    assert pipe.room_for(100) == 100
    pipe.in_flight -= 1
    assert pipe.room_for(large) == SEGMENT_BYTES_MAX


def test_a_whole_node_world_does_well_with_chopped_connections() -> None:
    options = Options(run_ms=9_000, operations_per_s=OPERATIONS_PER_S)
    schedules = [draw_schedule(seed, options) for seed in range(1, 20)]
    chopped = next(each for each in schedules if each.settings.chopped > 0.1)
    result = run_seed(chopped.seed, schedule=chopped)
    assert result.violation is None
    assert result.counts.operations > 0

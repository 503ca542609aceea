"""Generators: what each of them gives to whom and when, and what holds of all of them."""

from __future__ import annotations

from collections import Counter
from itertools import count, islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shaketable.harness import generators as g
from shaketable.harness.contracts.plugins import Answer, Operation
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators import (
    Completion,
    Context,
    Due,
    Generator,
    Played,
    Wait,
    alone,
    play,
)
from shaketable.harness.testing.generators import generators, lives

MS = 1_000_000
S = 1000 * MS


def op(value: int, f: str = "write", key: str = "a/0") -> Operation:
    return Operation(f, key, value=value)


def numbers(first: int = 0) -> Generator:
    return g.operations(op(value) for value in count(first))


def values(played: list[Played]) -> list[int | None]:
    return [one.operation.value for one in played]


def refused(due: Due) -> tuple[int, str, Answer]:
    return MS, "fail", Answer()


# ---- what holds of all -----------------------------------------------------------------


@given(generators(finite=False), st.integers(1, 4), lives())
def test_whoever_plays_it_again_is_given_the_same(generator, clients, life) -> None:
    fixed: dict[Due, tuple[int, str, Answer]] = {}

    def same(due: Due) -> tuple[int, str, Answer]:
        return fixed.setdefault(due, life(due))

    assert play(generator, clients, same, operations_max=40) == play(
        generator, clients, same, operations_max=40
    )


@given(generators(finite=False), st.integers(1, 4), lives())
def test_no_client_does_two_things_at_once(generator, clients, life) -> None:
    busy: dict[int, int] = {}
    for one in play(generator, clients, life, operations_max=40):
        assert one.call_ns >= busy.get(one.client, 0)
        busy[one.client] = one.return_ns


@given(generators(), st.integers(1, 3), st.integers(0, 9), lives())
def test_a_limit_of_operations_and_of_time_is_kept(generator, clients, most, life) -> None:
    assert len(play(g.limit(most, generator), clients, life)) <= most
    for one in play(g.time_limit(1.0, generator), clients, life):
        assert one.call_ns < S


@given(generators(), generators(), st.integers(1, 3), lives())
def test_phases_do_not_overlap(first, second, clients, life) -> None:
    marked = g.each_client(lambda _: g.once(op(77)))
    played = play(g.phases(first, marked, second), clients, life)
    places = [n for n, one in enumerate(played) if one.operation.value == 77]
    assert len(places) == clients
    before, behind = played[: places[0]], played[places[-1] + 1 :]
    marks = [played[n] for n in places]
    assert all(one.return_ns <= min(m.call_ns for m in marks) for one in before)
    assert all(one.call_ns >= max(m.return_ns for m in marks) for one in behind)


@given(generators(), st.integers(0, 3))
def test_a_client_alone_is_given_what_a_play_gives_it(generator, client) -> None:
    at_once = play(generator, (client,), lambda _: (0, "ok", Answer()))
    assert [one.operation for one in at_once] == list(islice(alone(generator, client), 10_000))


@given(generators(finite=False))
def test_an_ask_changes_nothing(generator) -> None:
    context = Context(5, (0, 1), (0, 1, 2))
    first = generator.next_op(context)
    again = generator.next_op(context)
    assert (first is None) == (again is None)
    if first is not None and again is not None:
        assert first[0] == again[0]


# ---- sequences -------------------------------------------------------------------------


def test_a_sequence_goes_to_whoever_is_free_first() -> None:
    slow = {0: 10 * MS, 1: 1 * MS}

    def life(due: Due) -> tuple[int, str, Answer]:
        return slow[due.client], "ok", Answer()

    played = play(g.limit(6, numbers()), 2, life)
    assert values(played) == [0, 1, 2, 3, 4, 5]
    assert [one.client for one in played] == [0, 1, 1, 1, 1, 1]


def test_parts_come_one_after_another_and_repeats_end() -> None:
    parts = g.concat(g.repeat(op(1), 2), g.once(op(2)), g.limit(1, g.repeat(op(3))))
    assert values(play(parts, 3)) == [1, 1, 2, 3]


def test_an_endless_sequence_keeps_nothing_of_what_went_before() -> None:
    first = g.Lazy(iter(range(10_000)))
    rest: g.Lazy[int] = first
    while (pair := rest.next()) is not None:
        rest = pair[1]
    assert first.next() == (0, first.next()[1])  # type: ignore[index]
    assert rest.next() is None


# ---- choices ---------------------------------------------------------------------------


def test_a_mix_keeps_to_its_weights_and_goes_on_without_what_ended() -> None:
    mixed = g.mix(g.repeat(op(0)), g.repeat(op(1)), seed="7", weights=(3, 1))
    found = Counter(values(play(mixed, 1, operations_max=2000)))
    assert 0.7 < found[0] / 2000 < 0.8
    ends = g.mix(g.repeat(op(0), 3), g.repeat(op(1), 5), seed="7")
    assert Counter(values(play(ends, 2))) == {0: 3, 1: 5}
    other = g.mix(g.repeat(op(0)), g.repeat(op(1)), seed="8", weights=(3, 1))
    assert values(play(mixed, 1, operations_max=50)) != values(play(other, 1, operations_max=50))


def test_a_mix_does_not_wait_for_a_part_that_has_nothing_now() -> None:
    mixed = g.mix(g.concat(g.sleep(5.0), g.once(op(9))), g.repeat(op(1), 3), seed="7")
    assert values(play(mixed, 1)) == [1, 1, 1, 9]


def test_any_of_takes_what_is_due_first() -> None:
    late = g.delay(2.0, numbers())
    soon = g.limit(3, g.delay(0.5, numbers(100)))
    played = play(g.any_of(late, soon), 1, operations_max=6, life=lambda _: (1, "ok", Answer()))
    assert values(played) == [100, 101, 102, 0, 1, 2]


def test_until_ok_tries_again_and_stops() -> None:
    tries = iter(("fail", "info", "ok", "ok"))

    def life(due: Due) -> tuple[int, str, Answer]:
        return MS, next(tries), Answer()

    assert len(play(g.until_ok(g.repeat(op(1))), 1, life)) == 3
    assert len(play(g.limit(7, g.until_ok(g.repeat(op(1)))), 2, refused)) == 7


def test_somebody_elses_ok_is_not_ones_own() -> None:
    given = g.until_ok(g.repeat(op(1))).next_op(Context(0, (0,), (0, 1)))
    assert given is not None
    after = given[1].update(Completion(1, op(2), "ok", Answer(), 5))
    assert after.next_op(Context(9, (1,), (0, 1))) is not None


# ---- pace ------------------------------------------------------------------------------


@pytest.mark.parametrize("hz", [10.0, 250.0])
def test_a_rate_is_kept_over_all_clients(hz: float) -> None:
    played = play(g.rate(hz, numbers(), seed="7"), 5, until_ns=100 * S, operations_max=10**6)
    assert 0.9 * 100 * hz < len(played) < 1.1 * 100 * hz
    assert played[0].call_ns > 0, "not even the first begins at once"


def test_a_rate_is_kept_while_most_clients_are_held_up() -> None:
    def life(due: Due) -> tuple[int, str, Answer]:
        return (1000 * S if due.client else MS), "ok", Answer()

    played = play(g.rate(50.0, numbers(), seed="7"), 5, life, until_ns=20 * S)
    assert 0.8 * 1000 < len(played) < 1.2 * 1000


def test_a_hold_up_is_made_good_for_a_second_at_most() -> None:
    def life(due: Due) -> tuple[int, str, Answer]:
        return (50 * S if due.operation.value == 100 else 1), "ok", Answer()

    played = play(g.rate(100.0, numbers(), seed="7"), 1, life, operations_max=1000)
    after = played[100].return_ns
    flood = sum(after <= one.call_ns < after + MS for one in played)
    assert 50 < flood < 200


def test_no_rate_is_as_fast_as_it_goes() -> None:
    same = numbers()
    assert g.rate(0.0, same, seed="7") is same
    assert g.think_time(0.0, same, seed="7") is same


def test_a_delay_is_exact() -> None:
    played = play(g.limit(4, g.delay(1.5, numbers())), 3)
    assert [one.call_ns for one in played] == [int(n * 1.5 * S) for n in (1, 2, 3, 4)]


def test_each_client_thinks_for_itself() -> None:
    played = play(g.think_time(0.1, numbers(), seed="7"), 4, until_ns=100 * S)
    for client in range(4):
        own = [one for one in played if one.client == client]
        gaps = [after.call_ns - before.return_ns for before, after in pairwise(own)]
        assert min(gaps) >= 0
        assert max(gaps) <= 0.2 * S
        assert 0.09 * S < sum(gaps) / len(gaps) < 0.11 * S
    assert 0.9 * 4000 < len(played) < 1.1 * 4000


def test_a_time_limit_counts_from_the_first_ask() -> None:
    limited = g.concat(g.sleep(3.0), g.time_limit(1.0, g.delay(0.3, numbers())))
    assert [one.call_ns for one in play(limited, 1)] == [3 * S + n * 300 * MS for n in (1, 2, 3)]


# ---- clients and keys ------------------------------------------------------------------


def test_each_client_has_its_own() -> None:
    own = g.each_client(lambda client: g.limit(client, numbers(10 * client)))
    found: dict[int, list[int | None]] = {}
    for one in play(own, 4):
        found.setdefault(one.client, []).append(one.operation.value)
    assert found == {1: [10], 2: [20, 21], 3: [30, 31, 32]}


def test_neighbours_share_a_generator_that_numbers_them_from_0() -> None:
    def own(letter: str) -> Generator:
        return g.each_client(lambda c: g.operations(op(n, key=f"{letter}{c}") for n in count()))

    parts = [(range(2), own("a")), (range(2, 3), own("b")), (range(3, 5), own("c"))]
    played = play(g.side_by_side(parts), 5, operations_max=50)
    given_to = {one.client: one.operation.key for one in played}
    assert given_to == {0: "a0", 1: "a1", 2: "b0", 3: "c0", 4: "c1"}
    assert set(Counter(one.client for one in played).values()) == {10}


def test_a_part_that_is_done_leaves_the_others_their_turns() -> None:
    parts = [(range(1), g.limit(2, numbers())), (range(1, 2), g.limit(5, numbers(100)))]
    played = play(g.side_by_side(parts), 2, operations_max=50)
    assert sorted(values(played)) == [0, 1, 100, 101, 102, 103, 104]


def test_each_part_hears_of_its_own_clients_alone() -> None:
    heard = []

    class Hears:
        def next_op(self, context: Context):
            return Due(op(1), context.free[0], context.now_ns), self

        def update(self, completion: Completion) -> Generator:
            heard.append(completion.client)
            return self

    play(g.side_by_side([(range(3), numbers()), (range(3, 5), Hears())]), 5, operations_max=20)
    assert set(heard) == {0, 1}


def test_clients_are_reserved() -> None:
    dealt = g.reserve(
        {1: g.repeat(op(0)), 3: g.limit(5, g.repeat(op(1)))}, g.limit(5, g.repeat(op(2)))
    )
    for one in play(dealt, 5, operations_max=40):
        assert one.operation.value == (0 if one.client == 0 else 1 if one.client < 3 else 2)
    assert not play(g.on_clients(lambda client: client > 5, numbers()), 3), "not in this worker"


def per_key(width: int, clients: int) -> Generator:
    def make(key: int) -> Generator:
        work = g.limit(20, g.repeat(op(key)))
        return g.phases(work, g.once(op(key, "read")))

    return g.per_key(width, clients, make)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_key_has_so_many_clients_and_its_last_read_is_the_last(workers: int) -> None:
    seen: dict[int, set[int]] = {}
    for worker in range(workers):
        slots = tuple(range(worker, 10, workers))
        played = play(per_key(3, 10), slots, operations_max=400)
        by_key: dict[int, list[Played]] = {}
        for one in played:
            assert one.operation.value is not None
            by_key.setdefault(one.operation.value, []).append(one)
        assert not set(by_key) & set(seen), "no key is in two workers"
        for key, ops in by_key.items():
            seen[key] = {one.client for one in ops}
            assert len(seen[key]) <= 3
            if len(ops) > 20:
                assert [one.operation.f for one in ops[20:]] == ["read"]
                assert ops[20].call_ns >= max(one.return_ns for one in ops[:20])
    assert len(seen) > 12


def test_keys_without_anything_to_do_are_passed_over_but_not_for_ever() -> None:
    some = g.per_key(1, 2, lambda key: g.repeat(op(key), 0 if key < 100 else 3))
    assert set(values(play(some, 2, operations_max=12))) == {100, 101, 102, 103}
    none = g.per_key(1, 1, lambda _: g.operations(()))
    with pytest.raises(ValueError, match="1000 keys before key 1000 have nothing to do"):
        play(none, 1)


@given(st.integers(1, 20), st.integers(1, 40), st.integers(0, 6))
def test_keys_are_shared_out_among_groups_of_clients(keys, clients, width) -> None:
    spread = g.KeySpread(keys, clients_per_key=width)
    users = Counter(
        key for client in range(clients) for key in spread.of_client(client, clients).keys
    )
    assert set(users) <= set(range(keys))
    groups = -(-clients // width) if width else 1
    if width == 0:
        assert users == dict.fromkeys(range(keys), clients)
    elif groups <= keys:
        assert set(users) == set(range(keys))
        assert max(users.values()) <= width


@settings(max_examples=10)
@given(st.floats(0.5, 2.0))
def test_hot_keys_are_hot(skew) -> None:
    rng, mine = rng_for("7", "keys"), g.KeySpread(8, skew).of_client(3, 12)
    found = Counter(mine.choose(rng) for _ in range(4000))
    assert 0.8 * 2**skew < found[0] / found[1] < 1.25 * 2**skew
    assert set(found) == set(range(8))


def test_waits_are_joined_by_what_is_over_first() -> None:
    both = g.any_of(g.sleep(3.0), g.sleep(2.0))
    given = both.next_op(Context(0, (0,), (0,)))
    assert given is not None
    assert given[0] == Wait(2 * S)


def test_those_who_wait_for_all_are_not_kept_by_somebodys_thought() -> None:
    waits = g.think_time(0.5, g.phases(g.limit(4, numbers()), g.limit(4, numbers(10))), seed="7")
    assert values(play(waits, 2)) == [0, 1, 2, 3, 10, 11, 12, 13]

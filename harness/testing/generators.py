"""Hypothesis strategies for generators, and for the outcomes of their operations.

    @given(generators(), lives())
    def test_no_client_does_two_things_at_once(generator, life):
        for one, other in pairwise_by_client(play(generator, 3, life)):
            assert one.return_ns <= other.call_ns

A drawn generator may nest all kinds of `harness.generators`; a failing one shrinks to the smallest
that still fails.

Source: Hypothesis' recursive strategies; jepsen.generator's own tests, by hand.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from shaketable.harness import generators as g
from shaketable.harness.contracts.plugins import Answer, Operation
from shaketable.harness.generators.generator import Due, Generator, Life

LEAVES_MAX = 6
OPERATIONS_MAX = 5
SECONDS_MAX = 3.0
OUTCOMES = ("ok", "fail", "info")
_NS = 1_000_000_000


def operation_lists() -> SearchStrategy[list[Operation]]:
    """Draw a few operations on few keys."""
    one = st.builds(
        Operation,
        f=st.sampled_from(("read", "write")),
        key=st.sampled_from(("a/0", "a/1")),
        value=st.none() | st.integers(0, 9),
    )
    return st.lists(one, max_size=OPERATIONS_MAX)


def generators(*, finite: bool = True) -> SearchStrategy[Generator]:
    """Draw a generator: sequences of operations, combined in random ways.

    Args:
        finite: whether it ends by itself.
    """
    leaves = operation_lists().map(g.operations)
    if not finite:
        leaves |= operation_lists().filter(bool).map(lambda found: g.repeat(found[0]))
    return st.recursive(leaves | _seconds().map(g.sleep), _put_together, max_leaves=LEAVES_MAX)


@st.composite
def lives(draw: DrawFn, *, outcomes: tuple[str, ...] = OUTCOMES) -> Life:
    """Draw the duration and outcome of each operation, in order."""
    one = st.tuples(st.integers(1, 2 * _NS), st.sampled_from(outcomes))
    drawn_outcomes = draw(st.lists(one, min_size=1, max_size=8))
    calls = iter(range(1 << 62))

    def life(_: Due) -> tuple[int, str, Answer]:
        took_ns, outcome = drawn_outcomes[next(calls) % len(drawn_outcomes)]
        return took_ns, outcome, Answer()

    return life


def _seconds() -> SearchStrategy[float]:
    return st.integers(0, int(SECONDS_MAX * 1000)).map(lambda ms: ms / 1000)


def _put_together(parts: SearchStrategy[Generator]) -> SearchStrategy[Generator]:
    parts_list = st.lists(parts, min_size=1, max_size=3)
    seed = st.sampled_from(("1", "2"))
    return st.one_of(
        parts_list.map(lambda these: g.concat(*these)),
        parts_list.map(lambda these: g.phases(*these)),
        parts_list.map(lambda these: g.any_of(*these)),
        st.builds(lambda these, s: g.mix(*these, seed=s), parts_list, seed),
        st.builds(g.limit, st.integers(0, OPERATIONS_MAX), parts),
        st.builds(lambda s, of, by: g.stagger(s, of, seed=by), _seconds(), parts, seed),
        st.builds(lambda s, of, by: g.think_time(s, of, seed=by), _seconds(), parts, seed),
        st.builds(g.delay, _seconds(), parts),
        st.builds(g.time_limit, _seconds(), parts),
        parts.map(g.synchronize),
        parts.map(g.until_ok),
        parts_list.map(lambda these: g.each_client(lambda client: these[client % len(these)])),
        st.builds(lambda these, of: g.reserve({1: these}, of), parts, parts),
    )

"""A read is called stale only where real time alone proves it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shaketable.checkers.engine.local import run_local
from shaketable.checkers.linearizability.accusation import (
    Register,
    Stale,
    first_stale_read,
    format_duration,
    stale_read,
    stalest_read,
)
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.harness import discovery
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS
from tests.support.checker_histories import job, op
from tests.support.model_histories import parse_model_history

CAS = "cas-register"
ONE = "0..10 p0 write 1 -> ok\n20..30 p0 write 2 -> ok\n"


def found(text: str, read: int, unsure: tuple[int, ...] = ()) -> Stale | None:
    table = pa.Table.from_pylist(parse_model_history(text), OPERATIONS)
    return stale_read(Register(CAS, table), [read], unsure)


@pytest.mark.parametrize(
    ("text", "read", "stale"),
    [
        (f"{ONE}40..50 p1 read -> ok 1\n", 2, (0, 1)),
        (f"{ONE}40..50 p1 read -> ok null\n", 2, (None, 0)),
        ("0..10 p0 write 1 -> ok\n20..30 p0 cas 1 2 -> ok\n40..50 p1 read -> ok 1\n", 2, (0, 1)),
    ],
)
def test_what_was_written_over_before_the_read_began(
    text: str, read: int, stale: tuple[int | None, int]
) -> None:
    known = found(text, read)
    assert known is not None
    assert (known.written, known.over) == stale
    assert known.since_ns > 0


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f"{ONE}40..50 p1 read -> ok 2\n", 2),
        (f"{ONE}25..50 p1 read -> ok 1\n", 2),  # it began while the second was under way
        ("0..10 p0 write 1 -> ok\n5..30 p2 write 2 -> ok\n40..50 p1 read -> ok 1\n", 2),
        (f"{ONE}31..? p2 write 1 -> info\n40..50 p1 read -> ok 1\n", 3),  # written once more
        (f"{ONE}40..50 p1 read -> ok 7\n", 2),  # nobody wrote it: wrong, but not stale
        ("0..10 p0 write 1 -> ok\n20..? p0 write 2 -> info\n40..50 p1 read -> ok 1\n", 2),
        ("0..10 p0 write 1 -> ok\n20..30 p0 write 2 -> fail\n40..50 p1 read -> ok 1\n", 2),
    ],
)
def test_what_may_be_no_stale_read(text: str, read: int) -> None:
    assert found(text, read) is None


@pytest.mark.parametrize(
    ("text", "read", "stale"),
    [
        (  # nobody told whether 1 was written, but somebody read it
            "0..? p0 write 1 -> info\n5..9 p1 read -> ok 1\n"
            "20..30 p2 write 2 -> ok\n40..50 p1 read -> ok 1\n",
            3,
            Stale(3, 0, 2, 10, written_seen=1),
        ),
        (  # nobody told whether 2 was, either
            "0..10 p0 write 1 -> ok\n20..? p2 write 2 -> info\n"
            "25..33 p1 read -> ok 2\n24..35 p3 read -> ok 2\n40..50 p1 read -> ok 1\n",
            4,
            Stale(4, 0, 1, 7, over_seen=2),
        ),
        (  # it was read before it returned
            "0..10 p0 write 1 -> ok\n20..60 p2 write 2 -> ok\n"
            "25..33 p1 read -> ok 2\n40..50 p1 read -> ok 1\n",
            3,
            Stale(3, 0, 1, 7, over_seen=2),
        ),
        (  # both were written at the same time; who read after that saw 2
            "0..20 p0 write 1 -> ok\n5..21 p2 write 2 -> ok\n"
            "30..35 p1 read -> ok 2\n40..50 p3 read -> ok 1\n",
            3,
            Stale(3, 0, 1, 5, over_seen=2, is_seen_after=True),
        ),
        (  # likewise, and who saw 1 in between was called no later than that
            "0..20 p0 write 1 -> ok\n5..60 p2 write 2 -> ok\n24..27 p4 read -> ok 1\n"
            "30..35 p1 read -> ok 2\n32..36 p4 read -> ok 1\n40..50 p3 read -> ok 1\n",
            5,
            Stale(5, 0, 1, 5, over_seen=3, is_seen_after=True),
        ),
    ],
)
def test_what_somebody_read_had_taken_effect(text: str, read: int, stale: Stale) -> None:
    assert found(text, read) == stale


@pytest.mark.parametrize(
    "text",
    [
        # 2 may have been written by another, and 1 anew
        "0..10 p0 write 1 -> ok\n20..? p2 write 2 -> info\n20..? p4 write 2 -> info\n"
        "25..33 p1 read -> ok 2\n40..50 p1 read -> ok 1\n",
        # the witness was not back yet
        "0..10 p0 write 1 -> ok\n20..? p2 write 2 -> info\n"
        "25..45 p1 read -> ok 2\n40..50 p1 read -> ok 1\n",
        # who saw 2 was called before 1 stood there for certain
        "0..35 p0 write 1 -> ok\n5..21 p2 write 2 -> ok\n"
        "30..33 p1 read -> ok 2\n40..50 p3 read -> ok 1\n",
        # 1 was seen only after 2 was called
        "0..? p0 write 1 -> info\n15..25 p1 read -> ok 1\n"
        "20..30 p2 write 2 -> ok\n40..50 p1 read -> ok 1\n",
    ],
)
def test_what_was_read_proves_no_more_than_that(text: str) -> None:
    table = pa.Table.from_pylist(parse_model_history(text), OPERATIONS)
    assert stalest_read(Register(CAS, table)) is None


def test_times_before_zero_prove_nothing_by_themselves() -> None:
    rows = [op(0, "write", -20, -15, input=1), op(1, "read", -16, -10, output=1)]
    assert stale_read(Register(CAS, pa.Table.from_pylist(rows, OPERATIONS)), [1]) is None


def test_the_stalest_read_is_the_one_written_over_longest_ago() -> None:
    text = f"{ONE}40..50 p1 read -> ok 1\n90..95 p3 read -> ok 1\n91..96 p4 read -> ok 2\n"
    table = pa.Table.from_pylist(parse_model_history(text), OPERATIONS)
    assert stalest_read(Register(CAS, table)) == Stale(3, 0, 1, 60)
    assert stalest_read(Register("fifo-queue", table)) is None


def test_nothing_is_founded_on_what_was_concluded() -> None:
    text = f"{ONE}40..50 p1 read -> ok 1\n"
    assert found(text, 2, unsure=(0,)) is None
    assert found(text, 2, unsure=(1,)) is None


def test_a_cas_that_was_refused_writes_nothing() -> None:
    rows = [
        op(0, "write", 0, 10, input=1),
        op(1, "cas", 20, 30, expected=5, input=2, output=0),
        op(2, "read", 40, 50, output=1),
    ]
    assert stale_read(Register(CAS, pa.Table.from_pylist(rows, OPERATIONS)), [2]) is None


CALLS = st.lists(
    st.tuples(
        st.sampled_from(("write", "cas", "read")),
        st.integers(1, 4),
        st.integers(0, 40),
        st.integers(1, 25),
        st.sampled_from(("ok", "ok", "ok", "info")),
    ),
    min_size=2,
    max_size=9,
)


@settings(max_examples=60)
@given(CALLS)
def test_a_history_with_a_stale_read_is_not_linearizable(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, int, int, int, str]]
) -> None:
    rows = []
    for number, (f, value, begin, took, outcome) in enumerate(calls):
        end = begin + took if outcome == "ok" else None
        more = {
            "write": {"input": value},
            "read": {"output": value if outcome == "ok" else None},
            "cas": {
                "input": value,
                "expected": value % 4 + 1,
                "output": 1 if outcome == "ok" else None,
            },
        }[f]
        rows.append(op(number, f, begin, end, process=number, outcome=outcome, **more))
    table = pa.Table.from_pylist(rows, OPERATIONS)
    first = stale_read(Register(CAS, table), range(len(rows)))
    assert (first is None) == (stalest_read(Register(CAS, table)) is None)
    if first is None:
        return
    checker = Linearizable(discovery.get("models", CAS))
    verdict = run_local(job(tmp_path_factory.mktemp("stale"), rows, [checker]))[0]
    assert verdict.outcome is Outcome.INVALID


def test_what_a_register_holds_at_first_need_not_have_been_written() -> None:
    text = "0..? p0 write 1 -> info\n5..9 p1 read -> ok 1\n"
    text += "20..30 p2 write 2 -> ok\n40..50 p1 read -> ok 1\n"
    table = pa.Table.from_pylist(parse_model_history(text), OPERATIONS)
    assert stale_read(Register(CAS, table), [3]) is not None
    assert stale_read(Register(CAS, table, 1), [3]) is None  # op 0 may have come after op 2
    nothing = pa.Table.from_pylist(
        parse_model_history(f"{ONE}40..50 p1 read -> ok null\n"), OPERATIONS
    )
    assert stale_read(Register(CAS, nothing), [2]) is not None
    assert stale_read(Register(CAS, nothing, 7), [2]) is None  # wrong, but not as at first


def test_the_first_stale_read_is_the_one_that_returned_first() -> None:
    text = f"{ONE}40..90 p1 read -> ok 1\n60..70 p3 read -> ok 1\n"
    table = pa.Table.from_pylist(parse_model_history(text), OPERATIONS)
    assert first_stale_read(Register(CAS, table)) == (70, Stale(3, 0, 1, 30))
    assert first_stale_read(Register(CAS, table.slice(0, 2))) is None


def test_spans_in_words() -> None:
    assert [format_duration(ns) for ns in (7, 12_300, 45_200_000, 3_210_000_000)] == [
        "7 ns",
        "12.3 us",
        "45.2 ms",
        "3.2 s",
    ]

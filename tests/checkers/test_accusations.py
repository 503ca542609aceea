"""Who is named is at fault: proven by brute force on plain objects, which share no code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shaketable.checkers.linearizability import accusation
from shaketable.checkers.linearizability.accusation import accuse, prefix_until, without
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.search import attempt
from shaketable.harness import discovery
from shaketable.harness.contracts.plugins import SearchBudget
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS
from tests.support.accusations import (
    BruteForce,
    UnprovenError,
    examine,
    history,
    judged,
    require_shown,
)
from tests.support.checker_histories import context, op
from tests.support.model_histories import parse_model_history
from tests.support.plain_objects import PLAIN

HISTORIES = 25
"""Invalid histories of each model; tests/soaks/accusations.py examines thousands."""


TRIED_BY_BRUTE_FORCE_MAX = 8
"""Unknown writes of which it tries all orders."""


def table(rows):
    return pa.Table.from_pylist(list(rows), OPERATIONS)


def model_of(name):
    return discovery.get("models", name)


def test_every_model_has_a_plain_object():
    assert set(PLAIN) == set(discovery.find("models"))


@pytest.mark.parametrize("use_special_cases", [True, False])
@pytest.mark.parametrize("name", sorted(PLAIN))
def test_who_is_named_is_at_fault(name, use_special_cases):
    seen, seed = Counter(), 5_000_000
    while seen["findings"] < HISTORIES:
        rows = history(name, seed)
        seen.update(examine(model_of(name), rows, use_special_cases=use_special_cases))
        seed += 1
    assert seen["unnamed"] == 0
    assert seen["by brute force"] > HISTORIES / 2


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(PLAIN)), st.integers(0, 2**32))
def test_who_is_named_is_at_fault_in_any_history(name, seed):
    examine(model_of(name), history(name, seed))


def test_reads_of_what_failed_later_are_named_with_it():
    """Four reads saw an add that failed at last: without the add alone they have no source."""
    rows = history("set", 14410)
    verdict = judged(model_of("set"), rows)
    assert set(verdict.findings[0].details["accused"]["operations"]) == {5, 6, 9, 12, 13}
    examine(model_of("set"), rows)


def seven_unknown_writes(count: int) -> str:
    """The history of issue 17, with that many writes of unknown outcome."""
    unknown = (f"{10 + 10 * n}..? p{10 + n} write {100 + n} -> info\n" for n in range(count))
    return (
        f"0..5 p0 write 1 -> ok\n{''.join(unknown)}"
        "100..110 p0 write 2 -> ok\n120..130 p0 cas 2 3 -> ok\n140..160 p1 read -> ok 3\n"
        "145..155 p2 write 4 -> ok\n156..170 p2 write 5 -> ok\n900..910 p3 read -> ok 1\n"
    )


@pytest.mark.parametrize("count", range(13))
def test_unknown_writes_do_not_turn_the_accusation_to_another_read(count):
    """From seven on the read of 3 was accused, before accusations were proven."""
    rows = parse_model_history(seven_unknown_writes(count))
    (finding,) = judged(model_of("cas-register"), rows).findings
    read_of_1 = rows[-1]["op"]
    assert finding.details["accused"] == {"operations": [read_of_1], "until_ns": 910, "why": ""}
    assert finding.operations[0] == finding.details["stuck"] == read_of_1
    assert finding.details["stale"]["read"] == read_of_1
    assert finding.message.startswith(f"k: read 1 by process 3 (op {read_of_1}) cannot take effect")
    assert f"Without op {read_of_1}, what was called until it returned has an order" in (
        finding.message
    )
    assert rows[-4]["output"] == 3
    if count > TRIED_BY_BRUTE_FORCE_MAX:
        return
    brute = BruteForce("cas-register", rows)
    assert not brute.has_property([rows[-4]["op"]]), "what was accused before"
    examine(model_of("cas-register"), rows)


CASES = {
    "a cas that says no after others have read what it put": (
        "cas-register",
        "0..5 p0 write 1 -> ok\n10..90 p1 cas 1 2 -> ok 0\n20..30 p2 read -> ok 2\n",
        [1, 2],
    ),
    "a write that failed after others have read it": (
        "register",
        "0..5 p0 write 1 -> ok\n10..90 p1 write 2 -> fail\n20..30 p2 read -> ok 2\n",
        [2, 1],
    ),
    "a write that had failed before it was read": (
        "register",
        "0..5 p0 write 1 -> ok\n10..15 p1 write 2 -> fail\n20..30 p2 read -> ok 2\n",
        [2],
    ),
    "a dequeue that was needed to take another value": (
        "fifo-queue",
        "0..1 p0 enqueue 1 -> ok\n2..3 p0 enqueue 2 -> ok\n4..30 p1 dequeue -> ok 3\n"
        "5..9 p2 dequeue -> ok 2\n10..12 p3 enqueue 3 -> ok\n",
        [2, 3],
    ),
    "of two that return at once either": (
        "register",
        "0..5 p0 write 1 -> ok\n10..20 p1 read -> ok 7\n10..20 p2 read -> ok 1\n",
        [1],
    ),
    "two wrong ones that return at once": (
        "register",
        "0..5 p0 write 1 -> ok\n10..20 p1 read -> ok 7\n11..20 p2 read -> ok 8\n",
        [1, 2],
    ),
    "a lock that two hold": (
        "mutex",
        "0..5 p0 acquire -> ok\n10..20 p1 acquire -> ok\n30..40 p0 release -> ok\n",
        [1],
    ),
    "an element that went away": (
        "set",
        "0..5 p0 add 1 -> ok\n10..20 p1 read -> ok [1]\n30..40 p2 read -> ok []\n",
        [2],
    ),
    "the later of two reads that see the world turned": (
        "set",
        "0..99 p0 add 1 -> ok\n0..99 p1 add 2 -> ok\n"
        "10..30 p2 read -> ok [1]\n11..20 p3 read -> ok [2]\n",
        [2],
    ),
    "not the read that was told first, but the append at its offset": (
        "append-log",
        "0..90 p0 append 7 @4 -> ok\n10..20 p1 read @0 -> ok 7\n",
        [0, 1],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_whom_it_takes_to_take_out(case):
    name, text, accused = CASES[case]
    rows = parse_model_history(text)
    (finding,) = judged(model_of(name), rows).findings
    assert finding.details["accused"]["operations"] == accused
    examine(model_of(name), rows)
    examine(model_of(name), rows, use_special_cases=False)


def test_a_register_s_first_value_is_minded():
    checker = Linearizable(model_of("register"), "1")
    rows = parse_model_history("0..5 p0 write 2 -> ok\n10..20 p1 read -> ok 1\n")
    (finding,) = checker.conclude(
        checker.check({"operations": table(rows)}, context()), context()
    ).findings
    assert finding.details["accused"]["operations"] == [1]
    brute = BruteForce("register", rows, 1)
    assert brute.has_property([1])


@pytest.mark.parametrize("value", [1, 7])
def test_who_read_what_then_failed_is_called_no_stale_read(value):
    """The value may be one that stood there before and was written over (register, seed 11893)."""
    rows = [
        op(1, "write", 1, 2, input=1),
        op(2, "write", 3, 4, input=2),
        op(3, "write", 10, 20, "fail", input=value),
        op(4, "read", 12, 13, output=value),
    ]
    assert examine(model_of("register"), rows)["accused 2"] == 1
    (finding,) = judged(model_of("register"), rows).findings
    assert "stale" not in finding.details
    assert "Op 4 returned what op 3 was writing, before it was known that op 3 failed" in (
        finding.message
    )


def test_brute_force_refuses_who_is_innocent():
    """The proof itself is able to fail."""
    rows = parse_model_history(seven_unknown_writes(3))
    (finding,) = judged(model_of("cas-register"), rows).findings
    brute = BruteForce("cas-register", rows)
    assert [o for o in brute.return_ns if brute.has_property([o])] == [finding.operations[0]]
    with pytest.raises(UnprovenError, match="named first"):
        require_shown(finding, [rows[-4]["op"]], rows)


def test_what_is_open_at_a_moment_is_of_unknown_outcome():
    rows = [
        op(0, "write", 0, 10, input=1),
        op(1, "cas", 5, 11, expected=1, input=2, output=0),
        op(2, "write", 6, 12, "fail", input=3),
        op(3, "read", 10, 20, output=1),
        op(4, "read", 11, 20, output=1),
        op(5, "write", 7, None, "info", input=4),
    ]
    rows[2]["return_ns"] = 12
    known = prefix_until(table(rows), 10).to_pylist()
    assert [(row["op"], row["outcome"], row["output"], row["return_ns"]) for row in known] == [
        (0, "ok", None, 10),
        (1, "info", None, None),
        (2, "info", None, None),
        (3, "info", None, None),
        (5, "info", None, None),
    ]
    assert prefix_until(table(rows), 12)["outcome"].to_pylist() == [
        "ok", "ok", "fail", "info", "info", "info",
    ]  # fmt: skip
    assert without(table(rows), [3, 0])["op"].to_pylist() == [1, 2, 4, 5]


def reads_at_fault(count):
    """Tell a judge that there is an order once that many of the first operations are gone."""

    def judge(operations):
        bad = [each for each in operations.to_pylist() if each["op"] < count]
        return (
            Outcome.INVALID if any(each["outcome"] == "ok" for each in bad) else Outcome.VALID
        ), ""

    return judge


@pytest.mark.parametrize(
    ("tries", "together"), [(400, 1), (400, 2), (400, 3), (1, 2), (1, 5), (1, 16)]
)
def test_the_smallest_set_is_found_by_trying_all_or_by_leaving_parts_out(
    monkeypatch, tries, together
):
    monkeypatch.setattr(accusation, "TRIES_MAX", tries)
    rows = [op(n, "read", 0, 10) for n in range(20)]
    accused = accuse(table(rows), reads_at_fault(together))
    assert sorted(accused.ops) == list(range(together))
    assert (accused.until_ns, accused.why) == (10, "")


def test_nobody_is_named_where_it_takes_too_many(monkeypatch):
    rows = [op(n, "read", 0, 10) for n in range(40)]
    accused = accuse(table(rows), reads_at_fault(17))
    assert (accused.ops, accused.why) == ((), accusation.OF_SIZE)
    monkeypatch.setattr(accusation, "DECISIONS_MAX", 3)
    accused = accuse(table(rows), reads_at_fault(17))
    assert (accused.ops, accused.why) == ((), accusation.OF_DECISIONS)


@pytest.mark.parametrize("hint", [None, -5, 0, 37, 999, 10**6])
@pytest.mark.parametrize("bad", [0, 1, 50, 98, 99])
def test_the_first_return_is_found_wherever_one_begins_to_look(hint, bad):
    rows = [op(n, "read", 10 * n, 10 * n + 5) for n in range(100)]

    def judge(operations):
        is_bad = any(
            each["op"] >= bad and each["outcome"] == "ok" for each in operations.to_pylist()
        )
        return Outcome.INVALID if is_bad else Outcome.VALID, ""

    accused = accuse(table(rows), judge, hint)
    assert (accused.ops, accused.until_ns) == ((bad,), 10 * bad + 5)


class Clock:
    """Time that stands still for some looks at it, and is over then."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def __call__(self) -> float:
        self.left -= 1
        return 0.0 if self.left > 0 else 100.0


def test_nobody_is_named_where_the_time_is_over(monkeypatch):
    monkeypatch.setattr(attempt, "SLICE_NODES", 5)
    rows = parse_model_history(seven_unknown_writes(7))
    checker = Linearizable(model_of("cas-register"))
    seen = Counter()
    for looks in range(1, 80):
        hurried = replace(context(), search=SearchBudget(60.0), clock_unix_s=Clock(looks))
        verdict = checker.conclude(checker.check({"operations": table(rows)}, hurried), hurried)
        seen[verdict.outcome] += 1
        for finding in verdict.findings:
            accused = finding.details["accused"]
            seen[accused["why"]] += 1
            require_shown(finding, accused["operations"], rows)
            is_told = "was not proven within the budget of time" in finding.message
            assert is_told == (accused["why"] == "time")
            assert accused["operations"] in ([], [rows[-1]["op"]])
    assert seen[Outcome.INVALID] > 0
    assert seen["time"] > 0
    assert seen[""] > 0


def test_a_model_that_cannot_tell_what_a_failed_operation_would_have_done():
    """A failed write without its value is left out, as ever: nobody has to know it."""
    rows = parse_model_history("0..5 p0 write 1 -> ok\n20..30 p2 read -> ok 2\n")
    rows.append(op(7, "write", 10, 90, "fail", key="k"))
    (finding,) = judged(model_of("register"), rows).findings
    assert finding.details["accused"]["operations"] == [1]

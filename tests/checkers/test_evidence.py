"""Closing unknown outcomes: what is proven is closed, with its evidence; verdicts stay the same."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pyarrow as pa
import pytest

from shaketable.checkers.evidence import (
    CITATIONS,
    LOG,
    QUEUE,
    REGISTER,
    SET,
    Values,
    resolve,
)
from shaketable.harness.history.schema import ENTRIES, OPERATIONS, OPERATIONS_CODED
from tests.support.anomaly_histories import parse
from tests.support.checker_histories import context, is_linearizable, op, random_history, table
from tests.support.volume import volume

NODES = ("n0", "n1", "n2")
ALL = dict.fromkeys(NODES, 100)


def entry(node, index, key, offset, value, **more):
    row = dict.fromkeys(ENTRIES.names)
    row.update(node=node, index=index, term=1, key=key, offset=offset, value=value, **more)
    return row


def logs(*values, key="q/0", nodes=NODES, first=0):
    """Return the same entries on every node: `values` at the offsets from `first`."""
    return [
        entry(node, 10 + n, key, n, value)
        for node in nodes
        for n, value in enumerate(values, first)
    ]


def resolved(rows, values, entries=None, **more):
    held = None if entries is None else pa.Table.from_pylist(entries, ENTRIES)
    done, cited = resolve(table(rows), held, context(**more), values)
    assert done.schema == OPERATIONS
    assert cited.schema == CITATIONS
    done.validate(full=True)
    return done.to_pylist(), cited.to_pylist()


def test_a_read_closes_an_append_at_its_offset_by_the_earliest_return():
    rows = parse("""
        0..?   p0 append q/0 1 -> info
        5..20  p1 read q/0 3 -> ok 1
        6..15  p2 read q/0 3 -> ok 1
        0..?   p3 append q/0 2 -> info
    """)
    done, cited = resolved(rows, LOG)
    assert (done[0]["outcome"], done[0]["offset"], done[0]["return_ns"]) == ("ok", 3, 15)
    assert done[1:] == rows[1:]
    [citation] = cited
    assert (citation["op"], citation["evidence"], citation["evidence_op"]) == (0, "read", 2)
    assert citation["message"] == (
        "q/0: op 0 (1) happened at offset 3 before op 2, which showed its value, returned."
    )


def test_polls_drains_and_sets_show_lists():
    rows = parse("0..? p0 send q/0 1 -> info\n5..20 p1 poll q/0 -> ok 3:7 4:1")
    assert resolved(rows, LOG)[0][0]["offset"] == 4
    rows = parse("0..? p0 enqueue q/0 1 -> info\n5..20 p1 drain q/0 -> ok [2 1]")
    done, _ = resolved(rows, QUEUE)
    assert (done[0]["outcome"], done[0]["return_ns"], done[0]["offset"]) == ("ok", 20, None)
    rows = parse("0..? p0 add s 1 -> info\n5..20 p1 read s -> ok [2 1]")
    assert resolved(rows, SET)[0][0]["outcome"] == "ok"


def test_a_closed_cas_shows_what_it_expected():
    rows = [
        op(0, "write", 0, None, "info", input=1),
        op(1, "cas", 1, None, "info", expected=1, input=2),
        op(2, "read", 5, 9, output=2),
        op(3, "cas", 1, 2, expected=1, input=3, output=0),  # answered "no": put nothing
        op(4, "cas", 1, None, "info", expected=7, input=3),
        op(5, "read", 5, 11, output=3),
    ]
    done, cited = resolved(rows, REGISTER)
    assert [row["outcome"] for row in done] == ["ok"] * 6
    assert (done[1]["output"], done[1]["return_ns"], done[0]["return_ns"]) == (1, 9, 9)
    assert [(c["op"], c["evidence_op"]) for c in cited] == [(0, 1), (1, 2), (4, 5)]


@pytest.mark.parametrize(
    "text",
    [
        # Two operations may have put it.
        "0..? p0 append q/0 1 -> info\n0..? p1 append q/0 1 -> info\n5..9 p2 read q/0 0 -> ok 1",
        "0..? p0 append q/0 1 -> info\n0..3 p1 append q/0 1 -> ok 0\n5..9 p2 read q/0 0 -> ok 1",
        # Read before it was called: a violation, which stays one.
        "5..9 p2 read q/0 0 -> ok 1\n10..? p0 append q/0 1 -> info",
        # Another queue's value.
        "0..? p0 append q/1 1 -> info\n5..9 p2 read q/0 0 -> ok 1",
        # An answer of unknown outcome, an end that is no value, a failed append.
        "0..? p0 append q/0 1 -> info\n5..? p2 read q/0 0 -> info",
        "0..? p0 append q/0 1 -> info\n5..9 p2 end q/0 -> ok 1",
        "0..9 p0 append q/0 1 -> fail\n5..9 p2 read q/0 0 -> ok 1",
    ],
)
def test_what_proves_nothing_closes_nothing(text):
    rows = parse(text)
    done, cited = resolved(rows, LOG)
    assert done == rows
    assert cited == []


def test_an_initial_value_and_an_incomplete_history_prove_nothing():
    rows = [op(0, "write", 0, None, "info", input=0), op(1, "read", 5, 9, output=0)]
    initial = Values(REGISTER.puts, REGISTER.shows, initial=frozenset({0}))
    assert resolved(rows, initial)[1] == []
    assert len(resolved(rows, REGISTER)[1]) == 1
    assert resolved(rows, REGISTER, incomplete="a segment is damaged")[1] == []


def test_a_cas_that_is_ok_and_answered_nothing_swapped():
    """So Jepsen records it: the value that was read may be the one that it put."""
    rows = [
        op(0, "write", 0, None, "info", input=5),
        op(1, "cas", 1, 3, expected=3, input=5),
        op(2, "read", 5, 9, output=5),
    ]
    assert resolved(rows, REGISTER) == (rows, [])


def test_values_in_extra_count_as_much_as_those_in_columns():
    said = {"extra": json.dumps({"input": 5})}
    rows = [
        op(0, "write", 0, None, "info", input=5),
        op(1, "write", 1, 3) | said,
        op(2, "read", 5, 9, output=5),
    ]
    assert resolved(rows, REGISTER) == (rows, [])
    rows[1]["extra"] = json.dumps({"input": "5"})  # a text is another value
    assert [c["op"] for c in resolved(rows, REGISTER)[1]] == [0]
    del rows[1]
    rows[0] |= {"input": None} | said
    assert [c["op"] for c in resolved(rows, REGISTER)[1]] == [0]


def test_lists_of_what_is_no_number_are_none_of_ours():
    rows = parse("0..? p0 add s 1 -> info\n5..20 p1 read s -> ok [2 1]")
    for output in ([[0, 1], "a", None, 1], {"a": 1}, "text"):
        rows[1]["extra"] = json.dumps({"output": output})
        assert len(resolved(rows, SET)[1]) == int(isinstance(output, list))
    rows[1]["extra"] = "no json"  # whoever encodes it says so
    assert resolved(rows, SET) == (rows, [])


def test_no_offset_below_zero_is_evidence():
    rows = parse("0..? p0 append q/0 1 -> info\n5..20 p1 read q/0 -1 -> ok 1")
    assert resolved(rows, LOG) == (rows, [])


def test_coded_columns_are_resolved_like_plain_ones():
    rows = parse("""
        0..?   p0 append q/0 1 -> info
        0..?   p3 append q/0 2 -> info
        5..20  p1 read q/0 3 -> ok 1
        0..?   p0 append q/1 2 -> info
        0..9   p0 append q/1 3 -> fail
        6..15  p2 read q/1 3 -> ok 2
    """)
    coded = table(rows).cast(OPERATIONS_CODED)
    pieces = pa.concat_tables([coded.slice(0, 2), coded.slice(2)])
    for whole in (coded, pieces):
        done, cited = resolve(whole, None, context(), LOG)
        assert done.schema == OPERATIONS_CODED
        assert (done.cast(OPERATIONS).to_pylist(), cited.to_pylist()) == resolved(rows, LOG)


OPEN = """
    0..10  p0 append q/0 1 -> ok 0
    11..?  p1 append q/0 2 -> info
    12..?  p2 append q/0 3 -> info
    13..30 p3 end q/0 -> ok 1
"""


def test_committed_logs_close_what_they_hold_and_what_they_do_not():
    done, cited = resolved(parse(OPEN), LOG, logs(1, 3), committed=ALL)
    assert [row["outcome"] for row in done] == ["ok", "fail", "ok", "ok"]
    assert (done[2]["offset"], done[2]["return_ns"]) == (1, 30)
    assert [(c["op"], c["evidence"], c["node"], c["index"]) for c in cited] == [
        (1, "absence", None, None),
        (2, "entry", "n0", 11),
    ]


@pytest.mark.parametrize(
    ("entries", "committed", "outcomes"),
    [
        # A node that did not answer may hold more: only what is there is proven.
        (logs(1, 3), {"n0": 100, "n1": 100}, ("info", "ok")),
        # Beyond what was committed.
        (logs(1, 3), dict.fromkeys(NODES, 10), ("fail", "info")),
        # A node that had committed that far lacks it, or holds another value there.
        (logs(1, 3, nodes=("n0", "n1")) + logs(1, nodes=("n2",)), ALL, ("info", "info")),
        (logs(1, 3, nodes=("n0", "n1")) + logs(1, 9, nodes=("n2",)), ALL, ("info", "info")),
        # The queue's beginning expired; a gap; a damaged entry; the value stands twice.
        (logs(3, first=1), ALL, ("info", "ok")),
        (logs(1, 3) + [entry(n, 30, "q/0", 5, 8) for n in NODES], ALL, ("info", "ok")),
        ([*logs(1, 3), entry("n1", 12, "q/0", 2, None, problem="bad CRC")], ALL, ("info", "info")),
        (logs(1, 3, 3), ALL, ("fail", "info")),
        # An uncommitted end that only one node has: it might still be in it.
        ([*logs(1, 3), entry("n1", 120, "q/0", 2, 7)], ALL, ("info", "ok")),
        # Nothing is known of a queue without entries: all of it may have expired.
        (logs(1, 2, key="q/1"), ALL, ("info", "info")),
    ],
)
def test_logs_that_prove_less(entries, committed, outcomes):
    done, _ = resolved(parse(OPEN), LOG, entries, committed=committed)
    assert (done[1]["outcome"], done[2]["outcome"]) == outcomes


def test_what_a_read_showed_is_not_taken_back_by_the_logs():
    rows = parse(OPEN + "14..20 p4 read q/0 1 -> ok 2")
    done, cited = resolved(rows, LOG, logs(1, 3), committed=ALL)
    assert (done[1]["outcome"], cited[0]["evidence"]) == ("ok", "read")


def test_reads_of_a_log_change_no_verdict():
    seen = Counter()
    for seed in range(volume(4000)):
        rng = Random(seed)
        rows = random_history(rng, rng.randint(2, 8))
        done, cited = resolved(rows, LOG)
        was = is_linearizable(rows)
        assert is_linearizable(done) == was, f"seed {seed}"
        seen[was, bool(cited)] += 1
    assert min(seen[was, True] for was in (True, False)) > volume(30)


def test_true_logs_keep_a_linearizable_history_so_and_no_logs_hide_a_violation():
    seen = Counter()
    for seed in range(volume(2500)):
        rng = Random(seed)
        rows = random_history(rng, rng.randint(2, 8))
        was = is_linearizable(rows)
        truth = final_log(rows, rng) if was and rng.random() < 0.7 else None
        content = rng.sample(range(100, 108), rng.randint(0, 6)) if truth is None else truth
        done, cited = resolved(rows, LOG, logs(*content), committed=ALL)
        now = is_linearizable(done)
        assert now <= was, f"seed {seed}: logs hid a violation"
        if truth is not None:
            assert now, f"seed {seed}: true logs accused a linearizable history"
        seen.update((c["evidence"], truth is not None) for c in cited)
    assert all(
        seen[by, true] > volume(30) for by in ("entry", "absence") for true in (True, False)
    ), seen


def final_log(rows, rng):
    """Return how the log can stand when all is over: a linearization's last state."""
    values = [row["input"] for row in rows if row["f"] == "append" and row["outcome"] != "fail"]
    acked = {
        row["offset"]: row["input"]
        for row in rows
        if row["f"] == "append" and row["offset"] is not None
    }
    sizes = list(range(len(values) + 1))
    for size in rng.choice((sizes, sizes[::-1])):
        log = [acked.get(n) for n in range(size)]
        left = [value for value in values if value not in log]
        for n, value in enumerate(log):
            if value is None and left:
                log[n] = left.pop(0)
        last = [
            op(100 + n, "read", 1000, 1001, offset=n, output=value) for n, value in enumerate(log)
        ]
        if None not in log and is_linearizable(
            [*rows, *last, op(200, "end", 1000, 1001, output=size)]
        ):
            return log
    return None


STEPS = {
    "write": lambda state, row: row["input"],
    "read": lambda state, row: state if row["output"] == state else None,
    "cas": lambda state, row: (
        (row["input"] if state == row["expected"] else None)
        if row["outcome"] != "ok" or row["output"]
        else (None if state == row["expected"] else state)
    ),
    "enqueue": lambda state, row: (*state, row["input"]),
    "dequeue": lambda state, row: state[1:] if state[:1] == (row["output"],) else None,
    "add": lambda state, row: state | {row["input"]},
    "contents": lambda state, row: state if list(state) == answer(row) else None,
}


def answer(row):
    return json.loads(row["extra"])["output"]


def fits(rows, state):
    """Try every order that real time allows."""
    due = min((row["return_ns"] for row in rows if row["outcome"] == "ok"), default=None)
    if due is None:
        return True
    for n, row in enumerate(rows):
        if row["call_ns"] <= due:
            step = STEPS["contents" if row["f"] == "read" and row["extra"] else row["f"]]
            after = step(state, row)
            if after is not None and fits(rows[:n] + rows[n + 1 :], after):
                return True
    return False


def random_object(rng, kind):
    """Draw a history of a register, queue or set; half of them are changed a little."""
    state = {"register": 0, "queue": (), "set": frozenset()}[kind]
    rows = []
    for n, moment in enumerate(sorted(rng.randint(0, 10) for _ in range(rng.randint(2, 6)))):
        call, end = moment - rng.randint(0, 3), moment + rng.randint(0, 3)
        is_put = rng.random() < 0.6
        outcome = rng.choice(("ok", "info")) if is_put else "ok"
        put = {"register": "write", "queue": "enqueue", "set": "add"}[kind]
        row = op(n, put, call, end, outcome, input=n + 1)
        if kind == "register" and is_put and rng.random() < 0.4:
            row.update(f="cas", expected=rng.choice((state, 0, 1, 2)))
            does = row["expected"] == state
            row["output"] = int(does) if outcome == "ok" else None
            is_put = does
            state = n + 1 if does and (outcome == "ok" or rng.random() < 0.6) else state
        elif is_put:
            if outcome == "ok" or rng.random() < 0.6:
                state = STEPS[put](state, row)
        elif kind == "queue":
            if not state:
                continue
            row.update(f="dequeue", input=None, output=state[0])
            state = state[1:]
        else:
            row.update(f="read", input=None)
            if kind == "set":
                row["extra"] = json.dumps({"output": sorted(state)})
            else:
                row["output"] = state
        rows.append(row)
    if rows and rng.random() < 0.5:
        row = rng.choice(rows)
        shift = rng.randint(-6, 6)
        row["call_ns"] += shift
        row["return_ns"] = None if row["return_ns"] is None else row["return_ns"] + shift
    return rows


@pytest.mark.parametrize(
    ("kind", "values", "initial"),
    [
        ("register", Values(REGISTER.puts, REGISTER.shows, frozenset({0})), 0),
        ("queue", QUEUE, ()),
        ("set", SET, frozenset()),
    ],
)
def test_other_objects_keep_their_verdict(kind, values, initial):
    seen = Counter()
    for seed in range(volume(6000)):
        rows = random_object(Random(seed), kind)
        done, cited = resolved(rows, values)
        was = fits(rows, initial)
        assert fits(done, initial) == was, f"seed {seed}"
        seen[was, bool(cited)] += 1
    assert min(seen[was, True] for was in (True, False)) > volume(10), seen

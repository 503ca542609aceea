"""A correct log is never accused; one planted mutation of each kind is always found."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shaketable.checkers.anomalies import cycles, log_anomalies
from shaketable.harness.contracts.verdict import Outcome
from tests.support.anomaly_histories import EVERYTHING, kinds_of
from tests.support.checker_histories import context, op, struck, table

PROCESSES = 4


def correct_log(rng: Random, size: int, *, seeks: bool = True):
    """Return what clients of a correct log with holes in its offsets see: rows of OPERATIONS.

    Every operation takes effect at one moment inside its interval. Consumers poll from where
    they stand; sometimes they start elsewhere. At the end a fresh one polls all of it.
    """
    log, free, rows, position, moment = [], 0, [], {}, 0
    busy = dict.fromkeys(range(PROCESSES), 0)
    for n in range(size):
        process = rng.randrange(PROCESSES)
        call = max(busy[process], moment - rng.randint(0, 6))
        moment = max(moment, call) + rng.randint(0, 3)
        end = moment + rng.randint(0, 6)
        busy[process] = end
        f = rng.choices(("send", "poll", "read", "seek"), (5, 4, 2, 1 if seeks else 0))[0]
        row = op(n, f, call, end, process=process)
        if f == "send":
            row["outcome"] = rng.choices(("ok", "info", "fail"), (7, 2, 1))[0]
            row["input"] = 100 + n
            if row["outcome"] == "ok" or (row["outcome"] == "info" and rng.random() < 0.5):
                free += rng.choice((0, 0, 0, 2))
                log.append((free, row["input"]))
                row["offset"] = free if row["outcome"] == "ok" else None
                free += 1
            if row["outcome"] == "info":
                row["return_ns"] = None
                row["process"] = 1000 + n  # whoever got no answer goes on under another id
        elif f == "poll":
            at = position.get(process, 0)
            some = [pair for pair in log if pair[0] >= at][: rng.randint(1, 3)]
            row["extra"] = json.dumps({"output": some})
            position[process] = some[-1][0] + 1 if some else at
        elif f == "read":
            offset, value = rng.choice(log) if log and rng.random() < 0.8 else (free, None)
            row.update(offset=offset, output=value)
        else:
            row["offset"] = rng.choice((0, *[offset for offset, _ in log]))
            position[process] = row["offset"]
        rows.append(row)
    last = max([moment, *busy.values()]) + 1
    rows.append(op(size, "poll", last, last + 1, process=99, extra=json.dumps({"output": log})))
    rows.append(op(size + 1, "poll", last + 2, last + 3, process=99, extra='{"output": []}'))
    return rows, log


ALL = log_anomalies.LogAnomalies()


def found(rows, checker=ALL):
    told = context(promises=EVERYTHING)
    verdict = checker.conclude(checker.check({"operations": table(rows)}, told), told)
    return set(kinds_of(verdict)), verdict


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 40))
def test_a_correct_log_is_never_accused(seed, size):
    rows, log = correct_log(Random(seed), size)
    Random(seed).shuffle(rows)
    for checker in (log_anomalies.LogAnomalies(), cycles.Cycles()):
        kinds, verdict = found(rows, checker)
        assert kinds == set()
        assert verdict.outcome is (Outcome.VALID if log else Outcome.UNKNOWN), verdict.summary


def pick(rng, rows, wanted):
    fitting = [row for row in rows if wanted(row)]
    assume(fitting)
    return rng.choice(fitting)


def messages(row):
    return json.loads(row["extra"])["output"] if row["extra"] else []


def is_acked(row):
    return row["f"] == "send" and row["outcome"] == "ok"


def answer(row, pairs):
    row["extra"] = json.dumps({"output": pairs})


def without(rows, value):
    """Let nobody have read a value."""
    for row in rows:
        if row["f"] == "poll":
            answer(row, [pair for pair in messages(row) if pair[1] != value])
        elif row["f"] == "read" and row["output"] == value:
            row.update(outcome="info", output=None, return_ns=None)


def plant_inconsistent(rng, rows, log):
    sent = pick(rng, rows, is_acked)
    answer(rows[-2], [[at, 9999 if at == sent["offset"] else value] for at, value in log])
    rows.append(op(500, "send", 0, None, "info", input=9999, process=500))


def plant_duplicate(rng, rows, log):
    sent = pick(rng, rows, is_acked)
    answer(rows[-1], [[log[-1][0] + 5, sent["input"]]])


def plant_lost(rng, rows, log):
    sent = pick(rng, rows, lambda row: is_acked(row) and row["offset"] < log[-1][0])
    without(rows, sent["input"])


def plant_unseen(rng, rows, log):
    sent = pick(rng, rows, lambda row: is_acked(row) and row["offset"] == log[-1][0])
    without(rows, sent["input"])


def plant_aborted(rng, rows, log):
    row = pick(rng, rows, lambda row: row["f"] == "send" and row["outcome"] == "fail")
    answer(rows[-1], [[log[-1][0] + 5 if log else 0, row["input"]]])


def plant_phantom(rng, rows, log):
    answer(rows[-1], [[log[-1][0] + 5 if log else 0, 7777]])


def plant_skip(rng, rows, log):
    assume(len(log) >= 3)
    answer(rows[-2], log[:1])
    answer(rows[-1], log[2:])


def plant_skip_inside(rng, rows, log):
    assume(len(log) >= 3)
    sent = pick(rng, rows, lambda row: is_acked(row) and log[0][0] < row["offset"] < log[-1][0])
    answer(rows[-2], [pair for pair in log if pair[0] != sent["offset"]])
    answer(rows[-1], [])


def plant_back(rng, rows, log):
    assume(log)
    answer(rows[-1], [rng.choice(log)])


def plant_back_inside(rng, rows, log):
    assume(len(log) >= 2)
    answer(rows[-2], [*log[:-2], log[-1], log[-2]])


def plant_falling_sends(rng, rows, log):
    one = pick(rng, rows, is_acked)
    two = pick(rng, rows, lambda row: is_acked(row) and row["process"] == one["process"])
    assume(one is not two)
    one["offset"], two["offset"] = two["offset"], one["offset"]


PLANTED = {
    "inconsistent-offsets": plant_inconsistent,
    "duplicate": plant_duplicate,
    "lost-write": plant_lost,
    "unseen": plant_unseen,
    "G1a": plant_aborted,
    "phantom-read": plant_phantom,
    "poll-skip": plant_skip,
    "int-poll-skip": plant_skip_inside,
    "nonmonotonic-poll": plant_back,
    "int-nonmonotonic-poll": plant_back_inside,
    "nonmonotonic-send": plant_falling_sends,
}


@pytest.mark.parametrize("kind", PLANTED)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(8, 40))
def test_one_planted_mutation_is_always_found(kind, seed, size):
    rng = Random(seed)
    rows, log = correct_log(rng, size, seeks=False)
    PLANTED[kind](rng, rows, log)
    rng.shuffle(rows)
    kinds, verdict = found(rows)
    assert kind in kinds
    assert verdict.outcome is Outcome.INVALID


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(8, 40))
def test_offsets_against_real_time_are_always_a_cycle(seed, size):
    rng = Random(seed)
    rows, _ = correct_log(rng, size)
    for row in rows:  # only sends: what reads saw would dispute the places
        if row["f"] != "send":
            row.update(outcome="info", return_ns=None, output=None, extra=None)
    one = pick(rng, rows, is_acked)
    two = pick(rng, rows, lambda row: is_acked(row) and row["call_ns"] > one["return_ns"])
    one["offset"], two["offset"] = two["offset"], one["offset"]
    kinds, _ = found(rows, cycles.Cycles())
    assert kinds & {"G0-process", "G0-realtime"}


def test_what_was_never_promised_is_observed():
    rows, _ = correct_log(Random(3), 30)
    answer(rows[-1], [[0, 7777]])
    told = context(promises=type(EVERYTHING)())
    findings = log_anomalies.LogAnomalies().check({"operations": table(rows)}, told)
    verdict = log_anomalies.LogAnomalies().conclude(findings, told)
    assert verdict.outcome is Outcome.VALID
    assert verdict.findings == ()
    assert {finding.kind for finding in verdict.observed} >= {"phantom-read"}
    assert "the target does not promise it" in verdict.summary


def test_what_is_gone_under_a_fault_that_nothing_survives_is_observed():
    told = context(promises=EVERYTHING, **struck("clock"))
    rows = [
        op(0, "send", 0, 10, input=1, offset=0),
        op(1, "poll", 11, 12, extra='{"output": []}'),
    ]
    findings = log_anomalies.LogAnomalies().check({"operations": table(rows)}, told)
    verdict = log_anomalies.LogAnomalies().conclude(findings, told)
    assert verdict.outcome is Outcome.VALID
    assert "no durability under clock" in verdict.summary


def test_an_incomplete_history_proves_no_absence():
    rows = [
        op(0, "send", 0, 10, input=1, offset=0),
        op(1, "send", 11, 20, input=2, offset=1, process=0),
        op(2, "poll", 21, 30, extra='{"output": [[1, 2]]}'),
    ]
    told = context(promises=EVERYTHING, incomplete="a segment is damaged")
    findings = log_anomalies.LogAnomalies().check({"operations": table(rows)}, told)
    verdict = log_anomalies.LogAnomalies().conclude(findings, told)
    assert verdict.outcome is Outcome.UNKNOWN
    assert {finding.kind for finding in verdict.observed} == {"lost-write"}

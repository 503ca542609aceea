"""The log checker: golden histories, a brute-force judge, promises, incomplete histories."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from shaketable.checkers.engine.local import run_local
from shaketable.checkers.logs.linearizable_log import NEVER_BY_LOSS, PLUGIN
from shaketable.checkers.special.log_order import anomalies, load_queue, repeated_value
from shaketable.harness.contracts.verdict import Outcome
from tests.support.checker_histories import (
    PROMISES,
    is_linearizable,
    job,
    op,
    parse,
    random_history,
    struck,
    table,
)
from tests.support.volume import volume

HISTORIES = sorted((Path(__file__).parent.parent / "histories").glob("*.txt"))
KINDS = {
    "offset-given-twice", "append-order", "inconsistent-read", "phantom-read", "aborted-read",
    "duplicate", "future-read", "future-end", "stale-read", "stale-end", "read-went-back",
    "end-went-back", "unexplained-offset", "negative-offset",
}  # fmt: skip


def judge(tmp_path, rows, **more):
    return run_local(job(tmp_path, rows, [PLUGIN], **more))[0]


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_golden_history(tmp_path, path):
    text = path.read_text()
    expected, *kinds = text.splitlines()[0].removeprefix("#").split()
    verdict = judge(tmp_path, parse(text))
    assert verdict.outcome is Outcome[expected.upper()], verdict.summary
    assert sorted({finding.kind for finding in verdict.findings}) == kinds
    for finding in verdict.findings:
        assert finding.operations
        assert finding.message.startswith(finding.key)
        assert finding.message.endswith(".")
    queues = {}
    for row in parse(text):
        queues.setdefault(row["key"], []).append(row)
    assert all(is_linearizable(rows) for rows in queues.values()) == (expected == "valid")


def test_every_kind_has_a_golden_history():
    shown = {word for path in HISTORIES for word in path.read_text().splitlines()[0].split()[2:]}
    assert shown == KINDS


def test_agrees_with_brute_force():
    seen = Counter()
    for seed in range(volume(4000)):
        rng = Random(seed)
        rows = random_history(rng, rng.randint(2, 8))
        queue = load_queue(table(rows))
        assert repeated_value(queue) is None
        found = [anomaly.kind for anomaly in anomalies(queue)]
        assert is_linearizable(rows) == (not found), f"seed {seed}: {found}"
        seen.update(found or ["clean"])
    assert set(seen) >= KINDS - {"negative-offset", "aborted-read"} | {"clean"}
    assert min(seen.values()) > volume(5)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_what_a_loss_explains_is_observed_under_a_fault_that_may_lose(tmp_path, path):
    text = path.read_text()
    _, *kinds = text.splitlines()[0].removeprefix("#").split()
    verdict = judge(tmp_path, parse(text), promises=PROMISES, **struck("rollback"))
    judged = {finding.kind for finding in verdict.findings}
    assert judged == set(kinds) & NEVER_BY_LOSS
    assert {finding.kind for finding in verdict.observed} == set(kinds) - NEVER_BY_LOSS


def losing_log(rng):
    """Let a log, asked by one client at a time, lose its last entries now and then."""
    log, rows, value = [], [], 0
    for at in range(0, 2 * rng.randint(5, 40), 2):
        what = rng.choice(("append", "append", "read", "end", "lose"))
        if what == "append":
            rows.append(op(len(rows), "append", at, at + 1, input=value, offset=len(log)))
            log.append(value)
            value += 1
        elif what == "read":
            offset = rng.randint(0, len(log) + 1)
            output = log[offset] if offset < len(log) else None
            rows.append(op(len(rows), "read", at, at + 1, output=output, offset=offset))
        elif what == "end":
            rows.append(op(len(rows), "end", at, at + 1, output=len(log)))
        else:
            del log[rng.randint(0, len(log)) :]
    return rows


def test_a_log_that_may_lose_its_end_is_never_accused(tmp_path):
    seen = Counter()
    for seed in range(200):
        rows = losing_log(Random(seed)) or [op(0, "append", 0, 1, input=0, offset=0)]
        verdict = judge(tmp_path, rows, promises=PROMISES, **struck("rollback"))
        assert verdict.outcome is not Outcome.INVALID, (seed, verdict.summary)
        seen.update({finding.kind for finding in verdict.observed} or {"clean"})
    assert set(seen) >= {"offset-given-twice", "stale-read", "stale-end", "clean"}


def test_big_offsets_cost_no_memory(tmp_path):
    verdict = judge(tmp_path, [op(0, "append", 0, 1, input=1, offset=2**62)])
    assert verdict.outcome is Outcome.INVALID
    assert [finding.kind for finding in verdict.findings] == ["unexplained-offset"]


def test_findings_are_counted_when_they_are_many(tmp_path):
    rows = [op(n, "append", 0, 1, input=n, offset=0) for n in range(1001)]
    verdict = judge(tmp_path, rows)
    assert verdict.findings_total == 1000
    assert len(verdict.findings) == 200


STALE = """
0..10  p0 append q/0 1 -> ok 0
11..20 p1 read q/0 0 -> ok nothing
"""


def test_breach_of_no_promise_is_observed(tmp_path):
    promises = replace(PROMISES, linearizable=frozenset(("append", "end")))
    verdict = judge(tmp_path, parse(STALE), promises=promises)
    assert verdict.outcome is Outcome.VALID
    assert verdict.findings == ()
    assert [finding.kind for finding in verdict.observed] == ["stale-read (not promised)"]
    text = STALE + "11..20 p1 end q/0 -> ok 0\n"
    verdict = judge(tmp_path, parse(text), promises=promises)
    assert verdict.outcome is Outcome.INVALID
    assert [finding.kind for finding in verdict.findings] == ["stale-end"]
    verdict = judge(tmp_path, parse(text), promises=replace(PROMISES, linearizable=frozenset()))
    assert verdict.outcome is Outcome.VALID
    assert len(verdict.observed) == 2


def test_incomplete_history_is_never_valid_and_proves_no_absence(tmp_path):
    clean = parse("0..10  p0 append q/0 1 -> ok 0")
    phantom = parse("0..10  p0 read q/0 0 -> ok 7")
    for rows in (clean, phantom):
        verdict = judge(tmp_path, rows, incomplete="worker 1's recording is damaged")
        assert verdict.outcome is Outcome.UNKNOWN
        assert "worker 1's recording is damaged" in verdict.summary
    verdict = judge(tmp_path, parse(STALE), incomplete="worker 1's recording is damaged")
    assert verdict.outcome is Outcome.INVALID


def test_repeated_values_cannot_be_judged(tmp_path):
    rows = parse("0..10 p0 append q/0 1 -> ok 0\n11..12 p0 append q/0 1 -> ok 1")
    verdict = judge(tmp_path, rows)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "1 in q/0" in verdict.summary


def test_nothing_known_is_not_valid(tmp_path):
    assert judge(tmp_path, []).outcome is Outcome.UNKNOWN
    rows = parse("0..? p0 append q/0 1 -> info\n0..1 p1 read q/0 0 -> fail")
    assert judge(tmp_path, rows).outcome is Outcome.UNKNOWN


def test_operation_that_breaks_the_contract_is_no_verdict(tmp_path):
    verdict = judge(tmp_path, [op(0, "append", 0, 1, input=1)])
    assert verdict.outcome is Outcome.UNKNOWN
    assert "ValueError: operation 0 is ok but lacks" in verdict.data["traceback"]


def test_who_was_answered_as_failed_and_may_be_stored_is_named(tmp_path):
    rows = parse(
        """
        10..15 p0 append q0 7 -> ok 0
        20..25 p1 append q0 8 -> fail
        30..35 p2 end q0 -> ok 2
        40..45 p1 append q0 9 -> fail
        """
    )
    (finding,) = judge(tmp_path, [row for row in rows if row]).findings
    assert (finding.kind, finding.offset) == ("unexplained-offset", 1)
    by_value = {row["input"]: row["op"] for row in rows if row["f"] == "append"}
    assert finding.message.endswith(
        "Answered as failed, and yet stored there, may be the append of 8 by process 1"
        f" (op {by_value[8]})."
    )
    assert finding.operations[1:] == (by_value[8],), "9 was called after it was seen"

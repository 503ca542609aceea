"""The nodes' logs tell what became of appends of unknown outcome: what that shows, and what not."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from shaketable.checkers.engine import log_evidence
from shaketable.checkers.engine.local import run_local
from shaketable.checkers.evidence import find_in_logs
from shaketable.checkers.logs import linearizable_log
from shaketable.checkers.logs.linearizable_log import PLUGIN, LinearizableLog
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Promises
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import ENTRIES
from tests.checkers.test_evidence import ALL, NODES, entry, final_log, logs
from tests.support.checker_histories import (
    context,
    is_linearizable,
    job,
    parse,
    random_history,
    struck,
    table,
)
from tests.support.volume import volume

FUNCTIONS = frozenset(("append", "read", "end"))
PROMISES = Promises(linearizable=FUNCTIONS, durable_under=frozenset(("kill",)))

LATE = """
    0..10  p0 append q/0 1 -> ok 0
    11..20 p1 append q/0 2 -> ok 2
    30..?  p2 append q/0 3 -> info
    12..?  p3 append q/0 4 -> info
    40..50 p0 end q/0 -> ok 3
"""
"""Offset 1 may be of 3 or of 4. The one of 3 was called when offset 2 was already given."""
GONE = """
    0..10  p0 append q/0 1 -> ok 0
    11..?  p1 append q/0 2 -> info
    20..30 p2 end q/0 -> ok 2
"""
"""Somebody saw that offset 1 was taken: by the append of 2, the only one there is."""


def read_log(entries):
    """Return a reader of logs that hold these entries."""

    def read(_directory, node):
        mine = [row for row in entries if row["node"] == node]
        yield from pa.Table.from_pylist(mine, ENTRIES).to_batches(max_chunksize=3)

    return read


def judge(tmp_path, text, entries, **more):
    rows = parse(text) if isinstance(text, str) else text
    read = more.pop("read", None) or read_log(entries)
    about = {"nodes": NODES, "committed": ALL, "promises": PROMISES} | more
    given = job(tmp_path, rows, [PLUGIN], **about)
    folders = {node: Path(node) for node in NODES}
    (verdict,) = run_local(replace(given, logs=folders, read_log=read))
    return verdict


def test_an_append_that_stands_below_a_place_given_before_its_call(tmp_path):
    """Planted: a leader that fills a hole in its queue with a later message."""
    clean = judge(tmp_path, LATE, logs(1, 4, 2))
    assert clean.outcome is Outcome.VALID
    assert (clean.counts["closed_by_logs"], clean.summary.rpartition("; ")[2]) == (
        2, "2 unknown outcomes closed: 2 by logs",
    )  # fmt: skip
    assert clean.data["closed"] == [
        "q/0: op 2 (3) did not happen by the end of the run: no node's log holds it, and all hold"
        " the whole queue.",
        "q/0: op 3 (4) happened at offset 1: n0's committed log holds it (entry 11).",
    ]
    unseen = judge(tmp_path, LATE, [])
    assert unseen.outcome is Outcome.VALID
    verdict = judge(tmp_path, LATE, logs(1, 3, 2))
    assert verdict.outcome is Outcome.INVALID
    by_kind = {finding.kind: finding for finding in verdict.findings}
    finding = by_kind["append-order (with the nodes' logs)"]
    citation = "q/0: op 2 (3) happened at offset 1: n0's committed log holds it (entry 11)."
    assert finding.message == (
        "q/0: with what the nodes' logs hold, the append of 3 by process 2 (op 2) got offset 1,"
        " although the append of 2 by process 1 (op 1) had returned offset 2 before it was called."
        f" Indeterminate: {citation}"
    )
    assert finding.details["closed"] == [citation]
    assert all(kind.endswith(" (with the nodes' logs)") for kind in by_kind)


def test_an_offset_that_was_seen_and_that_no_log_holds(tmp_path):
    """Planted: what was visible before it was committed is lost."""
    assert judge(tmp_path, GONE, logs(1, 2)).outcome is Outcome.VALID
    verdict = judge(tmp_path, GONE, logs(1))
    assert verdict.outcome is Outcome.INVALID
    (finding,) = verdict.findings
    assert finding.kind == "unexplained-offset (with the nodes' logs)"
    assert finding.message.endswith(
        "Indeterminate: q/0: op 1 (2) did not happen by the end of the run: no node's log"
        " holds it, and all hold the whole queue."
    )


def test_spark_says_the_same(tmp_path, spark):
    for entries in (logs(1), logs(1, 2)):
        given = job(tmp_path, parse(GONE), [PLUGIN], nodes=NODES, committed=ALL, promises=PROMISES)
        folders = {node: Path(node) for node in NODES}
        given = replace(given, logs=folders, read_log=read_log(entries))
        assert spark.run(given) == run_local(given)
        assert spark.run(given)[0].counts["closed_by_logs"] == 1


def test_logs_that_may_lose_entries_are_no_breach(tmp_path):
    """Nothing was promised of the fault that was asked for; it is shown all the same."""
    verdict = judge(tmp_path, GONE, logs(1), **struck("wipe"))
    assert verdict.outcome is Outcome.VALID
    assert [finding.kind for finding in verdict.observed] == [
        "unexplained-offset (with the nodes' logs)"
    ]


@pytest.mark.parametrize(
    ("more", "entries"),
    [
        ({"incomplete": "a segment is damaged"}, logs(1)),
        ({"committed": {"n0": 100, "n1": 100}}, logs(1)),  # one node did not answer
        ({}, [*logs(1), entry("n2", 11, "q/0", 1, None, problem="bad CRC")]),
        ({}, [*logs(1), entry("n2", 120, "q/0", 1, 2)]),  # an uncommitted end
    ],
)
def test_what_the_logs_do_not_prove_accuses_nobody(tmp_path, more, entries):
    assert not judge(tmp_path, GONE, entries, **more).findings


def test_what_a_read_shows_is_cited_and_needs_no_log(tmp_path):
    text = GONE + "\n    31..32 p3 read q/0 1 -> ok 2"
    verdict = judge(tmp_path, text, logs(1, 2))
    assert verdict.counts["closed_by_reads"] == 1
    assert "closed_by_logs" not in verdict.counts
    text += "\n    33..34 p3 read q/0 1 -> ok 1"
    (finding,) = judge(tmp_path, text, []).findings
    assert finding.kind == "inconsistent-read"
    assert finding.message.endswith(
        "but the append of 2 by process 1 (op 1) is at offset 1. Indeterminate: q/0: op 1"
        " (2) happened at offset 1 before op 3, which showed its value, returned."
    )


def test_logs_are_read_only_where_they_are_asked(tmp_path, monkeypatch):
    def never(_directory, _node):
        raise AssertionError("the logs were read")

    assert judge(tmp_path, "0..10 p0 append q/0 1 -> ok 0", [], read=never).data == {}
    monkeypatch.setattr(log_evidence, "ENTRIES_MAX", 2)
    verdict = judge(tmp_path, GONE, logs(1))
    assert verdict.outcome is Outcome.VALID
    assert verdict.data["logs_not_asked"] == (
        "the nodes' logs were not read: they have more than 2 entries"
    )
    monkeypatch.setattr(log_evidence, "OPEN_MAX", 0)
    assert "more than 0 of them" in judge(tmp_path, GONE, logs(1)).data["logs_not_asked"]


def test_logs_that_cannot_be_read_are_no_evidence(tmp_path):
    def unreadable(_directory, _node):
        raise HarnessError("no such folder")
        yield

    verdict = judge(tmp_path, GONE, [], read=unreadable)
    assert verdict.outcome is Outcome.VALID
    assert verdict.data["logs_not_asked"] == "the nodes' logs were not read: they cannot be read"


def test_a_huge_queue_is_judged_without_evidence(tmp_path, monkeypatch):
    monkeypatch.setattr(linearizable_log, "RESOLVED_ROWS_MAX", 2)
    assert judge(tmp_path, GONE, logs(1)).outcome is Outcome.VALID


def test_what_goes_to_executors_is_about_open_values_alone():
    entries = pa.Table.from_pylist(logs(*range(50)), ENTRIES)
    held = find_in_logs(entries, context(committed=ALL), pa.array([7]).to_numpy()).only([7, 70])
    assert set(held.committed) == held.values == {("q/0", 7)}
    checker = pickle.loads(pickle.dumps(LinearizableLog(held, None)))
    assert checker.wanted_values().puts == {"append"}


def test_true_logs_accuse_nobody_and_false_ones_only_in_words_of_their_own():
    seen = Counter()
    for seed in range(volume(1500)):
        rng = Random(seed)
        rows = random_history(rng, rng.randint(2, 8))
        was = is_linearizable(rows)
        truth = final_log(rows, rng) if was and rng.random() < 0.7 else None
        content = rng.sample(range(100, 108), rng.randint(0, 6)) if truth is None else truth
        about = context(committed=ALL, promises=PROMISES)
        entries = pa.Table.from_pylist(logs(*content), ENTRIES)
        asked = pa.array([row["input"] for row in rows if row["f"] == "append"], pa.int64())
        held = find_in_logs(entries, about, asked.to_numpy(zero_copy_only=False))
        told = [verdict_of(LinearizableLog(given), rows, about) for given in (None, held)]
        alone, with_logs = ({finding.kind for finding in each.findings} for each in told)
        assert with_logs >= alone
        assert all(kind.endswith("(with the nodes' logs)") for kind in with_logs - alone)
        if alone:
            assert not was
        if truth is not None:
            assert not with_logs, f"seed {seed}: true logs accused a linearizable history"
        closed = bool(told[1].counts.get("closed_by_logs"))
        seen[truth is not None, closed, bool(with_logs - alone)] += 1
    assert seen[True, True, False] > volume(50), seen
    assert seen[False, True, True] > volume(50), seen


def verdict_of(checker, rows, about):
    return checker.conclude(checker.check({"operations": table(rows)}, about), about)

"""Logs and appends that are judged in parts give the verdicts of the whole, at every border."""

from __future__ import annotations

from collections import Counter
from random import Random
from zlib import crc32

import pyarrow as pa
import pytest

from shaketable.checkers.engine import log_parts
from shaketable.checkers.engine.judge import conclude, judge_partition
from shaketable.checkers.logs import committed_prefix, durability
from shaketable.checkers.logs.append_fates import RUN_BITS
from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import ENTRIES
from tests.support.checker_histories import context, op, table
from tests.support.split_run import run_split

NODES = ("n0", "n1", "n2")
CHECKERS = (durability.PLUGIN, committed_prefix.PLUGIN)
RUN = 1 << RUN_BITS
"""Values that are this far apart are, as a rule, in different parts."""

WINDOW = 4


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    for module in (committed_prefix, log_parts):
        monkeypatch.setattr(module, "WINDOW_ENTRIES", WINDOW)
    monkeypatch.setattr(log_parts, "WINDOWS_A_PART", 2)
    monkeypatch.setattr(log_parts, "FLUSH_ROWS", 7)


def entry(node, index, key="q/0", offset=None, value=None, **more):
    row = {"node": node, "index": index, "term": 1, "position": index * 100, "size": 100}
    row |= {"crc": crc32(repr((key, offset, value)).encode()), "key": key, "offset": offset}
    return {**dict.fromkeys(ENTRIES.names), **row, "value": value, **more}


def rows_table(rows):
    return pa.Table.from_pylist(rows, ENTRIES)


def whole(operations, logs, about):
    """Judge everything in one piece."""
    entries = rows_table([row for rows in logs.values() for row in rows])
    tables = {"operations": operations, "entries": entries}
    return conclude(CHECKERS, judge_partition(CHECKERS, tables, about), about)


def both(tmp_path, rows, logs, parts=5, segment_rows=6, **more):
    """Judge in one piece and in parts; they must agree. Return the verdicts and the rounds."""
    more.setdefault("committed", {node: len(of) - 1 for node, of in logs.items()})
    about = context(**more)
    segments = {
        node: [rows_table(of[n : n + segment_rows]) for n in range(0, len(of), segment_rows)]
        for node, of in logs.items()
    }
    for side_by_side in (False, True):
        split, rounds = run_split(
            tmp_path / "run", table(rows), segments, about, CHECKERS, parts,
            side_by_side=side_by_side,
        )  # fmt: skip
        assert split == whole(table(rows), logs, about)
    return split, rounds


def history(count=24, step=RUN):
    """Appends of one queue, each acknowledged; each value in another part than the next."""
    rows, logs = [], {node: [] for node in NODES}
    for n in range(count):
        rows.append(op(n, "append", 10 * n, 10 * n + 5, input=n * step, offset=n, node="n0"))
        for node in NODES:
            logs[node].append(entry(node, n, offset=n, value=n * step))
    return rows, logs


def kinds(verdict):
    return [finding.kind for finding in verdict.findings]


@pytest.mark.parametrize("parts", [1, 5, 40])
def test_clean_history_needs_no_second_round(tmp_path, parts):
    rows, logs = history()
    verdicts, rounds = both(tmp_path, rows, logs, parts)
    assert [verdict.outcome for verdict in verdicts] == [Outcome.VALID] * 2
    assert rounds == {"places": 0, "windows": 0}
    assert verdicts[0].counts["entries"] == verdicts[1].counts["entries"] == 72


@pytest.mark.parametrize("at", [0, 3, 4, 5, 6, 7, 23])
class TestPlanted:
    """Each at the first and last entry of a window and of a segment, and inside."""

    def test_loss_is_told_with_what_stands_there_from_another_part(self, tmp_path, at):
        rows, logs = history()
        rows.append(op(99, "append", 0, None, "info", input=77 * RUN, key="q/0"))
        for node in NODES[1:]:
            logs[node][at] = entry(node, at, offset=at, value=77 * RUN)
        (durable, prefix), rounds = both(tmp_path, rows, logs)
        assert kinds(durable) == ["lost-append"]
        assert durable.findings[0].operations == (at,)
        assert f"n1 has {77 * RUN} (op 99, entry {at}) there" in durable.findings[0].message
        assert kinds(prefix) == ["divergent"]
        assert rounds["places"] == 1

    def test_altered(self, tmp_path, at):
        rows, logs = history()
        for node in NODES:
            logs[node][at] = entry(node, at, offset=at, value=77 * RUN)
        (durable, prefix), _ = both(tmp_path, rows, logs)
        assert kinds(durable) == ["altered"]
        assert "which no client appended" in durable.findings[0].message
        assert prefix.outcome is Outcome.VALID

    def test_entry_without_a_value_in_its_place(self, tmp_path, at):
        rows, logs = history()
        for node in NODES:
            logs[node][at] = entry(node, at, offset=at)
        (durable, _), _ = both(tmp_path, rows, logs)
        assert kinds(durable) == ["altered"]
        assert f"n0 has an entry without a value (entry {at})" in durable.findings[0].message

    def test_reordered_with_a_neighbour(self, tmp_path, at):
        rows, logs = history()
        other = at - 1 if at else 1
        for node in NODES:
            logs[node][at] = entry(node, at, offset=at, value=other * RUN)
            logs[node][other] = entry(node, other, offset=other, value=at * RUN)
        (durable, _), _ = both(tmp_path, rows, logs)
        assert kinds(durable) == ["reordered"] * 2
        assert sorted(finding.offset for finding in durable.findings) == sorted((at, other))
        assert f"(op {at}, entry {other})" in durable.findings[at > other].message or (
            f"(op {at}, entry {other})" in durable.findings[at < other].message
        )

    def test_duplicate_far_from_the_first(self, tmp_path, at):
        rows, logs = history()
        for node in NODES:
            logs[node].append(entry(node, 24, offset=24, value=at * RUN))
        (durable, _), _ = both(tmp_path, rows, logs)
        assert kinds(durable) == ["duplicated"]
        assert durable.findings[0].details["offsets"] == {node: [at, 24] for node in NODES}

    def test_missing_on_one_node(self, tmp_path, at):
        rows, logs = history()
        del logs["n2"][at]
        (durable, prefix), _ = both(tmp_path, rows, logs, committed=dict.fromkeys(NODES, 23))
        assert kinds(durable) == ["missing-on-node"]
        assert kinds(prefix) == ["gap"]
        assert prefix.findings[0].details == {"node": "n2", "first": at, "last": at}

    def test_damage(self, tmp_path, at):
        rows, logs = history()
        logs["n1"][at]["problem"] = "bodyCrc does not match"
        (durable, prefix), _ = both(tmp_path, rows, logs)
        assert sorted(kinds(durable)) == ["damaged", "missing-on-node"]
        assert "n1 has a damaged entry (bodyCrc" in durable.findings[1].message
        assert prefix.outcome is Outcome.UNKNOWN

    def test_same_value_and_other_content(self, tmp_path, at):
        rows, logs = history()
        logs["n1"][at]["crc"] += 1
        (durable, prefix), rounds = both(tmp_path, rows, logs)
        assert durable.outcome is Outcome.VALID
        assert kinds(prefix) == ["divergent"]
        assert prefix.findings[0].details["index"] == at
        assert rounds["places"] == 0

    def test_term_falls(self, tmp_path, at):
        rows, logs = history()
        for node in NODES:
            for n, row in enumerate(logs[node]):
                row["term"] = 7 if n < at else 6
        (_, prefix), _ = both(tmp_path, rows, logs)
        assert kinds(prefix) == ["term-fell"] * (3 if at else 0)

    def test_index_twice(self, tmp_path, at):
        rows, logs = history()
        logs["n0"].insert(at + 1, dict(logs["n0"][at]))
        (_, prefix), _ = both(tmp_path, rows, logs, committed=dict.fromkeys(NODES, 23))
        assert kinds(prefix) == ["index-twice"]

    def test_what_is_not_committed_may_differ(self, tmp_path, at):
        rows, logs = history()
        for row in logs["n2"][at:]:
            row.update(term=9, crc=99)
        committed = {"n0": 23, "n1": 23, "n2": at - 1}
        (_, prefix), _ = both(tmp_path, rows, logs, committed=committed)
        assert prefix.outcome is Outcome.VALID


def draw(rng):
    """Draw a history and logs in which much is wrong."""
    rows, logs = [], {node: [] for node in NODES}
    keys = [f"q/{n}" for n in range(rng.randint(1, 3))]
    ends = dict.fromkeys(keys, 0)
    for n in range(rng.randint(0, 25)):
        key, again = rng.choice(keys), rng.random() < 0.15
        value = rng.randint(0, 9) if again else n * rng.choice((1, RUN))
        outcome = rng.choice(("ok", "ok", "ok", "info", "fail"))
        row = op(n, "append", n * 10, n * 10 + 5, outcome, input=value, key=key)
        row["node"] = rng.choice(("n0", None))
        if outcome == "ok":
            row["offset"] = ends[key] + (rng.randint(0, 3) if rng.random() < 0.05 else 0)
        rows.append(row if rng.random() < 0.95 else {**row, "f": "read"})
        if outcome == "ok" or rng.random() < 0.5:
            stored = value if rng.random() < 0.9 else rng.choice((0, n * RUN, 99 * RUN))
            for node in NODES:
                logs[node] += _stored(rng, node, key, ends[key], stored)
            ends[key] += 1
    for of in logs.values():
        for index, row in enumerate(of):
            row.update(index=index, position=index * 100)
            if rng.random() < 0.02:
                row["term"] = rng.randint(0, 2)
        if of and rng.random() < 0.1:
            del of[rng.randrange(len(of))]
    committed = {
        node: len(of) - 1 - (rng.random() < 0.2) * rng.randint(0, 4)
        for node, of in logs.items()
        if rng.random() < 0.9
    }
    return rows, logs, committed


def _stored(rng, node, key, offset, value):
    chance = rng.random()
    if chance < 0.85:
        return [entry(node, 0, key, offset, value)]
    if chance < 0.9:
        return [entry(node, 0, key, offset, rng.choice((99 * RUN, value + 1, None)))]
    if chance < 0.93:
        return [entry(node, 0, key, offset + n, value) for n in range(2)]
    if chance < 0.95:
        return [entry(node, 0, key, offset, value, problem="bodyCrc does not match")]
    if chance < 0.96:
        hole = {"size": None, "term": None, "crc": None}
        return [entry(node, 0, None, problem="a hole", **hole)]
    return [entry(node, 0, None)] if chance < 0.97 else []


def test_random_logs_give_the_same_verdicts_in_parts(tmp_path):
    rng = Random(3)
    seen = Counter()
    for _ in range(25):
        rows, logs, committed = draw(rng)
        if not any(logs.values()) and not rows:
            continue
        verdicts, rounds = both(
            tmp_path, rows, logs, rng.randint(1, 9), rng.randint(1, 9), committed=committed,
            windows=(FaultWindow(3, "kill", "kill n1", 20, 60, True, ""),),
        )  # fmt: skip
        for verdict in verdicts:
            seen.update(kinds(verdict))
            seen[verdict.outcome] += 1
        seen["second round"] += bool(rounds["places"] or rounds["windows"])
    wanted = {
        "lost-append", "altered", "reordered", "missing-on-node", "duplicated", "damaged",
        "divergent", "gap", "term-fell", "second round", *Outcome,
    }  # fmt: skip
    assert wanted <= set(seen), seen

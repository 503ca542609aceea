"""Ranges of the log are judged apart and joined again: nothing slips through a border."""

from __future__ import annotations

import pyarrow as pa
import pytest

from shaketable.checkers.logs.committed_prefix import PLUGIN
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import ENTRIES
from tests.support.checker_histories import context

NODES = ("n0", "n1", "n2")


def entry(node, index, term=1, crc=7, problem=None):
    row = dict.fromkeys(ENTRIES.names)
    row.update(node=node, index=index, term=term, crc=crc, position=index * 100, problem=problem)
    return row


def judge(rows, committed, width):
    buckets = {}
    for row in rows:
        buckets.setdefault(row["index"] // width, []).append(row)
    about = context(committed=committed)
    found = [
        PLUGIN.check({"entries": pa.Table.from_pylist(part, ENTRIES)}, about)
        for part in buckets.values()
    ]
    return PLUGIN.conclude(pa.concat_tables(found), about)


@pytest.mark.parametrize("width", [1, 2, 3, 100])
class TestBuckets:
    def rows(self):
        return [entry(node, n, 1 + n // 4) for node in NODES for n in range(10)]

    def judge(self, rows, width, **committed):
        return judge(rows, {**dict.fromkeys(NODES, 9), **committed}, width)

    def kinds(self, verdict):
        return [finding.kind for finding in verdict.findings]

    def test_equal_logs(self, width):
        verdict = self.judge(self.rows(), width)
        assert verdict.outcome is Outcome.VALID
        assert "3 nodes committed the same log up to index 9 (30 entries)" in verdict.summary

    def test_what_is_not_committed_may_differ(self, width):
        rows = [r for r in self.rows() if r["node"] != "n2" or r["index"] < 7]
        rows += [entry("n2", n, 9, 99) for n in range(7, 10)]
        assert self.judge(rows, width, n2=6).outcome is Outcome.VALID
        assert self.kinds(self.judge(rows, width)) == ["divergent"] * 3

    @pytest.mark.parametrize("index", range(10))
    def test_gap(self, width, index):
        rows = [r for r in self.rows() if (r["node"], r["index"]) != ("n1", index)]
        verdict = self.judge(rows, width)
        assert self.kinds(verdict) == ["gap"]
        assert verdict.findings[0].details == {"node": "n1", "first": index, "last": index}

    @pytest.mark.parametrize("index", range(1, 10))
    def test_term_falls(self, width, index):
        rows = [entry(node, n, 5 if n < index else 4) for node in NODES for n in range(10)]
        assert self.kinds(self.judge(rows, width)) == ["term-fell"] * 3

    def test_same_term_other_content(self, width):
        rows = self.rows()
        rows[3]["crc"] = 8
        verdict = self.judge(rows, width)
        assert self.kinds(verdict) == ["divergent"]
        assert verdict.findings[0].details["index"] == 3

    def test_index_twice(self, width):
        verdict = self.judge([*self.rows(), entry("n0", 4, 2)], width)
        assert self.kinds(verdict) == ["index-twice"]

    def test_damage_is_a_doubt_and_no_gap(self, width):
        rows = [r for r in self.rows() if (r["node"], r["index"]) != ("n1", 5)]
        verdict = self.judge([*rows, entry("n1", 5, None, None, "garbage")], width)
        assert verdict.findings == ()
        assert verdict.outcome is Outcome.UNKNOWN

"""Checkers that go wrong, for tests of the engines; importable on Spark's executors."""

from __future__ import annotations

import pyarrow as pa

from checkers.findings import Findings, gather, settle
from harness.targets.dledger_files import read_entries
from harness.verdict import Finding


class Picky:
    """Finds something in q/0, crashes in q/1, is content with all other queues."""

    name = "picky"
    tables = ("operations",)
    partition = "key"

    def check(self, tables, context):
        key = tables["operations"]["key"][0].as_py()
        if key == "q/1":
            raise ZeroDivisionError("planted in q/1")
        findings = Findings()
        if key == "q/0":
            findings.add("oddity", [0], lambda _: Finding("oddity", "odd.", key, 0))
        return findings.table({"queues": 1})

    def conclude(self, findings, context):
        return settle(self.name, gather(findings), context, clean="content")


class NoConclusion(Picky):
    name = "no-conclusion"

    def check(self, tables, context):
        return Findings().table({})

    def conclude(self, findings, context):
        raise LookupError("planted in conclude")


class WrongShape(Picky):
    name = "wrong-shape"

    def check(self, tables, context):
        return pa.table({"kind": ["no", "findings"]})


def broken_log(directory, node):
    """Reads some, then fails."""
    yield from read_entries(directory, node)
    if node == "n2":
        raise OSError("planted in n2")

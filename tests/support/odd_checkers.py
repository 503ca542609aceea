"""Checkers that go wrong, for tests of the engines; importable on Spark's executors."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pyarrow as pa

from shaketable.checkers.findings import Findings, gather, settle
from shaketable.harness.contracts.verdict import Finding
from shaketable.harness.targets.logs.dledger_files import read_entries


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


class Patient(Picky):
    """Searches until its time is over, as a search of a hard history would."""

    name = "patient"

    def check(self, tables, context):
        is_over = context.begin_search()
        while not is_over():
            time.sleep(0.01)
        findings = Findings()
        key = tables["operations"]["key"][0].as_py()
        findings.add("undecided", [0], lambda _: Finding("undecided", "time is over.", key))
        return findings.table({})

    def conclude(self, findings, context):
        doubts = [finding.message for finding in gather(findings).kept]
        return settle(self.name, gather(findings.slice(0, 0)), context, clean="", doubts=doubts)


class Endless(Picky):
    """Never looks at the clock."""

    name = "endless"

    def check(self, tables, context):
        while True:
            time.sleep(0.01)


class Deadly(Picky):
    """Ends its process at q/1, as a bug in native code or the kernel's memory killer would."""

    name = "deadly"

    def check(self, tables, context):
        if tables["operations"]["key"][0].as_py() == "q/1":
            os.kill(os.getpid(), signal.SIGKILL)
        return Findings().table({"queues": 1})


class Hungry(Picky):
    """Takes all memory that it can get."""

    name = "hungry"

    def check(self, tables, context):
        eaten = []
        while True:
            eaten.append(np.empty(1 << 30, np.uint8))  # untouched: it costs the machine nothing

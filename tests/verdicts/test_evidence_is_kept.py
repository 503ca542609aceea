"""What of the nodes' logs is kept when a run is judged, and that it never stands in the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shaketable.checkers.engine.judge import CheckJob
from shaketable.harness.contracts.plugins import CheckContext, Promises
from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.schema import ENTRIES, OPERATIONS
from shaketable.harness.judging import judge

KEY = "q/0"


def read_log(directory: Path, node: str) -> Iterator[pa.RecordBatch]:
    rows = [
        {"node": node, "index": n, "term": 1, "position": n, "size": 1, "crc": n, "key": KEY,
         "offset": n, "value": n, "problem": None}
        for n in range(30)
    ]  # fmt: skip
    yield pa.RecordBatch.from_pylist(rows, schema=ENTRIES)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.operations.mkdir(parents=True)
    rows = [
        dict.fromkeys(OPERATIONS.names)
        | {"op": n, "process": 0, "f": "append", "key": KEY, "input": n + (n == 7), "offset": n,
           "call_ns": n, "return_ns": n + 1, "outcome": "ok"}
        for n in range(30)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, schema=OPERATIONS), folder.operations / "a.parquet")
    return folder


@pytest.fixture
def job(tmp_path: Path) -> CheckJob:
    context = CheckContext(nodes=("n0", "n1"), committed={"n0": 29, "n1": 29}, promises=Promises(),
                           windows=(), faults_asked=(), incomplete=None)  # fmt: skip
    logs = {node: tmp_path / node for node in context.nodes}
    return CheckJob((), logs, read_log, context, ())


def verdict(*findings: Finding, observed: tuple[Finding, ...] = ()) -> Verdict:
    return Verdict("durability", Outcome.INVALID, "", findings, len(findings), observed=observed)


def kept(folder: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(folder.entries_json.read_bytes())
    return found


def test_entries_and_a_map_are_kept(folder: RunFolder, job: CheckJob) -> None:
    judge.save_log_entries(folder, job, [verdict(Finding("lost-append", "", KEY, 7))])
    found = kept(folder)
    assert [row[0] for row in found["entries"]["n0"]] == list(range(3, 12))
    assert found["maps"][0]["nodes"]["n1"]["counts"] == {"present": 29, "missing": 0, "other": 1}


def test_findings_of_the_log_and_observed_ones_count_too(folder: RunFolder, job: CheckJob) -> None:
    gap = Finding("gap", "", details={"node": "n0", "first": 12, "last": 13})
    seen = Finding("unseen", "", KEY, 25)
    judge.save_log_entries(folder, job, [verdict(gap, observed=(seen,))])
    found = kept(folder)
    assert [(p["key"], p["offset"], p["index"]) for p in found["places"]] == [
        (None, None, 12), (None, None, 13), (KEY, 25, None),
    ]  # fmt: skip
    assert found["maps"] == []


def test_of_findings_that_are_alike_the_first_are_kept(folder: RunFolder, job: CheckJob) -> None:
    many = [Finding("lost-append", "", KEY, n, details={"faults": ["kill 1"]}) for n in range(20)]
    more = [Finding("lost-append", "", KEY, 20 + n, details={"fault": 2}) for n in range(3)]
    judge.save_log_entries(folder, job, [verdict(*many, *more)])
    offsets = [place["offset"] for place in kept(folder)["places"]]
    assert offsets == [0, 20, 1, 21, 2, 22, *range(3, judge.PER_KIND_MAX)]


def test_nothing_found_keeps_nothing_and_takes_the_old_away(
    folder: RunFolder, job: CheckJob
) -> None:
    judge.save_log_entries(folder, job, [verdict(Finding("lost-append", "", KEY, 7))])
    for nothing in ((), (Finding("not-linearizable", "", KEY),)):
        judge.save_log_entries(folder, job, [verdict(*nothing)])
        assert not folder.entries_json.exists()


def test_a_reader_that_breaks_does_not_break_the_check(folder: RunFolder, job: CheckJob) -> None:
    def broken(directory: Path, node: str) -> Iterator[pa.RecordBatch]:
        raise ZeroDivisionError

    found = [verdict(Finding("lost-append", "", KEY, 7))]
    judge.save_log_entries(folder, replace(job, read_log=broken), found)
    assert not folder.entries_json.exists()


def test_too_large_a_file_is_not_written(
    folder: RunFolder, job: CheckJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "FILE_BYTES_MAX", 100)
    judge.save_log_entries(folder, job, [verdict(Finding("lost-append", "", KEY, 7))])
    assert not folder.entries_json.exists()

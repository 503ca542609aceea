"""Both engines give the same verdicts, finding by finding, and survive what goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shaketable.checkers import stats
from shaketable.checkers.engine.judge import SegmentedReader
from shaketable.checkers.engine.local import run_local
from shaketable.checkers.logs import linearizable_log
from shaketable.checkers.spark import frames
from shaketable.checkers.spark.pipeline import SparkEngine
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.targets.logs.dledger_files import log_segments, read_segment
from tests.support.checker_histories import job, op, operations_file, parse
from tests.support.engine_campaigns import ALL, campaign, clean
from tests.support.odd_checkers import NoConclusion, Picky, WrongShape, broken_log


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request):
    """Each engine's function from a job to its verdicts."""
    return run_local if request.param == "local" else request.getfixturevalue("spark").run


def test_clean_campaign_is_valid(tmp_path, engine):
    for verdict in engine(clean(tmp_path)):
        assert verdict.outcome is Outcome.VALID, f"{verdict.checker}: {verdict.summary}"
        assert not verdict.findings


@pytest.mark.spark
@pytest.mark.parametrize("seed", [1, 2])
def test_engines_agree_row_for_row(tmp_path, spark, seed):
    task = campaign(tmp_path, seed)
    local, through_spark = run_local(task), spark.run(task)
    assert local == through_spark
    by_name = {verdict.checker: verdict.outcome for verdict in local}
    assert by_name["linearizable-log"] is by_name["durability"] is Outcome.INVALID
    assert by_name["committed-prefix"] is Outcome.INVALID
    assert sum(len(verdict.findings) for verdict in local) > 10


@pytest.mark.spark
@pytest.mark.parametrize("is_clean", [True, False])
def test_logs_read_by_segments_give_the_same_verdicts(tmp_path, spark, is_clean, monkeypatch):
    """One task reads the same data file of all nodes side by side."""
    monkeypatch.setattr(frames, "SIDE_BY_SIDE_MIN", 2)
    task = clean(tmp_path, file_bytes=2048) if is_clean else campaign(tmp_path, 4)
    assert len(log_segments(task.logs["n0"], "n0")) >= 2
    reader = SegmentedReader(log_segments, read_segment)
    assert spark.run(replace(task, segments=reader)) == run_local(task)


@pytest.mark.spark
@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent.parent / "histories").glob("*.txt"))[:3]
)
def test_golden_histories_through_spark(tmp_path, spark, path):
    text = path.read_text()
    (verdict,) = spark.run(job(tmp_path, parse(text), [linearizable_log.PLUGIN]))
    assert verdict.outcome is Outcome[text.split()[1].upper()]


def test_checker_that_crashes_is_unknown_and_keeps_what_it_found(tmp_path, engine):
    rows = [op(n, "append", 0, 1, input=n, offset=0, key=f"q/{n}") for n in range(3)]
    picky, stats_verdict = engine(job(tmp_path, rows, [Picky(), stats.PLUGIN]))
    assert picky.outcome is Outcome.INVALID
    assert [finding.kind for finding in picky.findings] == ["oddity"]
    assert "ZeroDivisionError: planted in q/1" in picky.data["traceback"]
    assert stats_verdict.outcome is Outcome.VALID
    (picky,) = engine(job(tmp_path, rows[1:], [Picky()]))
    assert picky.outcome is Outcome.UNKNOWN
    assert "crashed in 1 part(s) of its work: ZeroDivisionError: planted in q/1" in picky.summary
    for checker, error in ((NoConclusion(), "LookupError"), (WrongShape(), "ValueError")):
        (verdict,) = engine(job(tmp_path, rows, [checker]))
        assert verdict.outcome is Outcome.UNKNOWN
        assert error in verdict.data["traceback"]


def test_log_that_cannot_be_read_leaves_the_others(tmp_path, engine):
    verdicts = {v.checker: v for v in engine(clean(tmp_path, read_log=broken_log))}
    for name in ("durability", "committed-prefix"):
        assert verdicts[name].outcome is Outcome.UNKNOWN
        assert "the log of n2: OSError: planted in n2" in verdicts[name].summary
        assert verdicts[name].findings == ()
    assert verdicts["linearizable-log"].outcome is Outcome.VALID


def test_incomplete_history_is_never_valid(tmp_path, engine):
    verdicts = engine(clean(tmp_path, incomplete="worker-1.seg is cut"))
    assert {verdict.outcome for verdict in verdicts} == {Outcome.UNKNOWN}
    assert all("worker-1.seg is cut" in verdict.summary for verdict in verdicts)


def test_nothing_at_all_is_not_valid(tmp_path, engine):
    task = job(tmp_path, [], ALL, faults_asked=("kill",))
    assert {verdict.outcome for verdict in engine(task)} == {Outcome.UNKNOWN}


def test_operations_that_cannot_be_read(tmp_path, engine):
    task = job(tmp_path, [], [stats.PLUGIN])
    task.operations[0].unlink()
    with pytest.raises(HarnessError, match="cannot be read"):
        engine(task)
    task.operations[0].write_bytes(b"PAR1 garbage PAR1")
    with pytest.raises(HarnessError):
        engine(task)


def test_several_files_of_operations(tmp_path, engine):
    task = job(tmp_path, [op(0, "append", 0, 1, input=1, offset=0)], [stats.PLUGIN])
    more = operations_file(
        tmp_path / "more.parquet", [op(1, "append", 2, 3, input=2, offset=1, key="q/1")]
    )
    both = type(task)((*task.operations, more), {}, task.read_log, task.context, task.checkers)
    assert engine(both)[0].counts["operations"] == 2


PROGRAM = """
import sys, time
from shaketable.checkers.spark.pipeline import SparkEngine
engine = SparkEngine("local[1]")
if sys.argv[1] == "booting":
    import threading
    threading.Thread(target=engine.start).start()
    while engine.scratch is None or not (engine.scratch / "spark.log").is_file():
        time.sleep(0.01)
else:
    engine.start()
print(engine.scratch, flush=True)
time.sleep(600)
"""


def with_variable(name):
    """Return ids of the live processes whose environment has that variable set."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{name}=1".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.spark
@pytest.mark.parametrize("moment", ["booting", "started"])
def test_jvm_dies_with_a_harness_that_is_killed(tmp_path, moment):
    mark = f"SHAKETABLE_TEST_{os.getpid()}_{moment.upper()}"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, moment],
        stdout=subprocess.PIPE, env={**os.environ, mark: "1"}, cwd=tmp_path,
    )  # fmt: skip
    try:
        scratch = Path(program.stdout.readline().decode().strip())
        assert scratch.is_dir()
        while len(with_variable(mark)) < 2:  # while booting, the file may be there before the JVM
            assert program.poll() is None
            time.sleep(0.02)
    finally:
        program.send_signal(signal.SIGKILL)
        program.communicate()
    while with_variable(mark) or scratch.exists():  # a hang fails by the test's timeout
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_master_that_cannot_be_used(spark, monkeypatch):
    with pytest.raises(UsageError, match=r"Spark does not start on locl\[2\]"):
        SparkEngine("locl[2]").start()

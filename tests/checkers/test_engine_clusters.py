"""The same verdicts, row for row, wherever Spark is: here, on a cluster, behind a server."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shaketable.checkers import stats
from shaketable.checkers.engine.local import run_local
from shaketable.checkers.spark.pipeline import SparkEngine
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import Outcome
from tests.support.connect_server import connect_server
from tests.support.engine_campaigns import campaign
from tests.support.volume import whole
from tests.support.written_by_key import CAS_REGISTER, job_of, stale_register

ROOT = Path(__file__).parent.parent.parent

ELSEWHERE = """
import pickle, sys
from pathlib import Path
from shaketable.checkers.spark.pipeline import SparkEngine
jobs = pickle.loads(Path(sys.argv[2]).read_bytes())
engine = SparkEngine(sys.argv[1])
try:
    verdicts = [engine.run(job) for job in jobs]
finally:
    engine.stop()
Path(sys.argv[3]).write_bytes(pickle.dumps(verdicts))
"""
"""A process has one driver of its own, and the tests' session is one."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """A campaign with logs that disagree, registers written by key, and the same ones shuffled."""
    folder = tmp_path_factory.mktemp("clusters")
    by_key = job_of(stale_register(folder), CAS_REGISTER, stats.PLUGIN)
    return (campaign(folder, 3), by_key)


@pytest.fixture(scope="module")
def expected(jobs):
    """What the engine without Spark says, with more than one kind of outcome in it."""
    verdicts = [run_local(job) for job in jobs]
    outcomes = {verdict.outcome for each in verdicts for verdict in each}
    assert {Outcome.VALID, Outcome.INVALID} <= outcomes
    return verdicts


@pytest.mark.spark
def test_a_session_here_agrees(jobs, expected, spark):
    assert [spark.run(job) for job in jobs] == expected


@whole  # packages are shipped to a server, too, below
@pytest.mark.spark
def test_a_cluster_of_executors_agrees(jobs, expected, tmp_path, spark):
    """`spark` is asked for so that the test is skipped where there is no Java."""
    assert spark.java is not None
    asked, answered = tmp_path / "jobs", tmp_path / "verdicts"
    asked.write_bytes(pickle.dumps(jobs))
    subprocess.run(
        [sys.executable, "-c", ELSEWHERE, "local-cluster[2,1,2048]", str(asked), str(answered)],
        cwd=ROOT, check=True,
    )  # fmt: skip
    assert pickle.loads(answered.read_bytes()) == expected


@pytest.mark.spark
def test_a_spark_connect_server_agrees(jobs, expected, spark):
    assert spark.java is not None
    with connect_server() as address:
        engine = SparkEngine(address)
        try:
            assert engine.start() is None, "no Java is needed here"
            assert [engine.run(job) for job in jobs] == expected
        finally:
            engine.stop()
        assert engine.scratch is None
    assert not [path for path in sys.path if path.endswith(".zip") and "shaketable" in path]
    (before,) = jobs[1:]
    again = spark.run(replace(before, checkers=(stats.PLUGIN,)))
    assert again == expected[1][1:], "the session of this process is none of the server's"


def test_a_server_that_is_not_there_is_told_in_one_line():
    with pytest.raises(
        UsageError, match=r"Spark does not start on sc://127\.0\.0\.1:9: .+"
    ) as told:
        SparkEngine("sc://127.0.0.1:9").start()
    assert "\n" not in str(told.value)

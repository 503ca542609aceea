"""The same verdicts, row for row, wherever Spark is: here, on a cluster, behind a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers import stats
from checkers.engine.local import run_local
from checkers.engine.spark import SparkEngine
from harness.errors import UsageError
from harness.verdict import Outcome
from tests.support.engine_campaigns import campaign
from tests.support.written_by_key import CAS_REGISTER, job_of, stale_register

ROOT = Path(__file__).parent.parent.parent


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


def test_a_server_that_is_not_there_is_told_in_one_line():
    with pytest.raises(
        UsageError, match=r"Spark does not start on sc://127\.0\.0\.1:9: .+"
    ) as told:
        SparkEngine("sc://127.0.0.1:9").start()
    assert "\n" not in str(told.value)

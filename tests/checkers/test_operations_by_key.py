"""Operations are judged as they were written, and sorted first where they were not."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.checkers import stats
from shaketable.checkers.engine import keys
from shaketable.checkers.engine.judge import TAGGED, conclude
from shaketable.checkers.engine.keys import (
    KeyJudge,
    coded,
    judge_tables,
    plan,
    read_files,
    split_times,
)
from shaketable.checkers.engine.local import judge_in_processes, run_local
from shaketable.harness.budget_clock import budget_clock_s
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history import operation_files
from shaketable.harness.history.export import load_operations
from shaketable.harness.history.schema import OPERATIONS
from tests.support.checker_histories import context, op, table
from tests.support.odd_checkers import Deadly, Endless, Hungry, Patient, Picky
from tests.support.written_by_key import CAS_REGISTER, KEYS, job_of, queues, stale_register

"""On a new machine the first of them waits for kernels, beside two that compile the same."""


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request):
    return run_local if request.param == "local" else request.getfixturevalue("spark").run


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(operation_files.file_ranges, "__defaults__", (150,))
    monkeypatch.setattr(operation_files, "OPERATIONS_PER_FILE_MAX", 500)


def test_the_one_stale_register_is_found(tmp_path, small_files, engine):
    run = stale_register(tmp_path)
    job = job_of(run, CAS_REGISTER, stats.PLUGIN)
    planned = plan(job.operations, 400)
    assert len(planned.tasks) > 3
    assert sum(task.rows for task in planned.tasks) == load_operations(run).num_rows
    verdict, counted = engine(job)
    assert verdict.outcome is Outcome.INVALID
    assert [finding.key for finding in verdict.findings] == ["stale"]
    assert verdict.counts["partitions"] == KEYS + 1
    assert verdict.counts["by_open_sets"] == KEYS
    assert counted.outcome is Outcome.VALID


def test_files_of_other_origin_give_the_same(tmp_path, engine):
    run = stale_register(tmp_path)
    job = job_of(run, CAS_REGISTER, stats.PLUGIN)
    verdicts = engine(job)
    rows = load_operations(run)
    shuffled = rows.take(pa.array(np.random.default_rng(3).permutation(rows.num_rows)))
    foreign = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    half = rows.num_rows // 2
    pq.write_table(shuffled.slice(0, half), foreign[0])
    pq.write_table(shuffled.slice(half), foreign[1])
    other = type(job)(tuple(foreign), {}, job.read_log, job.context, job.checkers)
    assert plan(foreign).unsorted == tuple(foreign)
    assert engine(other) == verdicts


def test_two_runs_that_share_keys_are_not_taken_for_sorted(tmp_path):
    first, second = queues(tmp_path / "a", 3), queues(tmp_path / "b", 3)
    files = [*first.operations.glob("*.parquet"), *second.operations.glob("*.parquet")]
    assert plan(files).unsorted == tuple(files)
    assert plan(files[:1]).unsorted == ()


def test_a_part_of_a_huge_key_alone_is_not_taken_for_the_whole(tmp_path, small_files):
    run = stale_register(tmp_path)
    files = sorted(run.operations.glob("*.parquet"))
    cut = next(n for n, file in enumerate(files) if plan([file]).unsorted)
    assert plan(files).unsorted == ()
    assert plan(files[: cut + 1]).unsorted
    assert plan(files[cut + 1 :]).unsorted


class Collect:
    """Says which rows came together as one key."""

    name = "collect"
    tables = ("operations",)
    partition = "key"

    def __init__(self):
        self.seen = []

    def check(self, tables, context):
        rows = tables["operations"].to_pylist()
        self.seen.append((rows[0]["key"], [row["op"] for row in rows]))
        return pa.Table.from_pylist([], TAGGED.remove(0))


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    has_null=st.booleans(),
    cuts=st.lists(st.integers(0, 30), max_size=5),
    at_a_time=st.sampled_from((1, 5, 1000)),
)
def test_keys_come_together_however_tables_are_cut(counts, has_null, cuts, at_a_time):
    names = [None if has_null and n == 0 else f"k{n}" for n in range(len(counts))]
    expected, rows = [], []
    for name, count in zip(names, counts, strict=True):
        ops = list(range(len(rows), len(rows) + count))
        rows += [op(n, "read", n, n, key=name) for n in ops]
        expected.append((name, ops))
    edges = sorted({0, *(cut for cut in cuts if cut < len(rows)), len(rows)})
    collect = Collect()
    judge = KeyJudge([collect], context())
    before = keys.ROWS_AT_A_TIME
    keys.ROWS_AT_A_TIME = at_a_time
    try:
        for begin, end in itertools.pairwise(edges):
            list(judge.add(coded(table(rows[begin:end]))))
        list(judge.finish())
    finally:
        keys.ROWS_AT_A_TIME = before
    assert collect.seen == expected


@pytest.mark.parametrize("at_a_time", [1, 2, 1000])
def test_a_checker_judges_its_topics_alone(monkeypatch, at_a_time):
    of_topics = [None, "a", "a/0", "a/1", "b/0", "c/0", "c/1"]
    rows = [op(n, "read", n, n, key=key) for n, key in enumerate(of_topics)]
    everybody, some = Collect(), Collect()
    some.name = "some"
    only_some = replace(context(), topics={"some": frozenset({"a", "c"})})
    monkeypatch.setattr(keys, "ROWS_AT_A_TIME", at_a_time)
    judge = KeyJudge([everybody, some], only_some)
    list(judge.add(coded(table(rows))))
    list(judge.finish())
    assert [key for key, _ in everybody.seen] == of_topics
    assert [key for key, _ in some.seen] == [None, "a", "a/0", "a/1", "c/0", "c/1"]


def test_what_a_task_did_is_told_and_is_no_finding(tmp_path):
    run = queues(tmp_path, 4)
    (task,) = plan(sorted(run.operations.glob("*.parquet"))).tasks
    clock = iter(range(100))
    found = judge_tables(read_files(task.paths), [Picky()], context(), lambda: next(clock))
    findings, spent = split_times(pa.concat_tables(found))
    assert (spent.rows, spent.read_s, spent.judge_s) == (4, 1, 2)
    assert set(findings["checker"].to_pylist()) == {"picky"}


def test_columns_come_as_they_should(tmp_path):
    run = queues(tmp_path, 2)
    (read,) = read_files([str(path) for path in run.operations.glob("*.parquet")])
    assert read.cast(OPERATIONS) == load_operations(run)
    assert all(column.num_chunks == 1 for column in read.columns)


# ---- deadlines, crashes, memory -------------------------------------------------------------


def test_a_deadline_leaves_what_it_cuts_off_unknown(tmp_path, engine):
    run = queues(tmp_path, 3)
    deadline = budget_clock_s() + 3
    patient, counted = engine(job_of(run, Patient(), stats.PLUGIN, deadline_unix_s=deadline))
    assert patient.outcome is counted.outcome is Outcome.UNKNOWN
    # On a busy machine the deadline may pass before the first key is begun.
    assert "time is over" in patient.summary or "not judged" in patient.summary
    # Or, on a busy machine, while the three are counted: they are one part then.
    assert (
        "3 part(s) were not judged: the deadline passed before q/0 was" in counted.summary
        or "1 part(s) were not judged: the deadline passed while they were" in counted.summary
    )


def in_processes(run, *checkers, deadline_unix_s=None):
    """Judge each key by itself in processes of this machine."""
    job = job_of(run, *checkers, deadline_unix_s=deadline_unix_s)
    told = type(job.context)((), {}, job.context.promises, search=job.context.search,
                             clock_unix_s=time.time)  # fmt: skip
    tasks = plan(job.operations, 1).tasks
    found = pa.concat_tables(judge_in_processes(tasks, checkers, told))
    return conclude(checkers, split_times(found)[0], told)


@pytest.fixture(params=["processes", pytest.param("spark", marks=pytest.mark.spark)])
def apart(request):
    """An engine whose checkers run in processes of their own."""
    if request.param == "processes":
        return in_processes
    spark = request.getfixturevalue("spark")
    return lambda run, *checkers, **more: spark.run(job_of(run, *checkers, **more))


def test_a_checker_that_ends_its_process_costs_itself_alone(tmp_path, apart):
    run = queues(tmp_path, 3)
    deadly, counted = apart(run, Deadly(), stats.PLUGIN)
    assert deadly.outcome is Outcome.UNKNOWN
    assert "crashed in 1 part(s) of its work" in deadly.summary
    assert deadly.data["traceback"]
    assert counted.outcome is Outcome.VALID
    assert counted.counts["operations"] == 3


def test_a_checker_that_eats_memory_gets_an_error_not_the_machine(tmp_path, apart):
    run = queues(tmp_path, 2)
    hungry, counted = apart(run, Hungry(), stats.PLUGIN)
    assert hungry.outcome is Outcome.UNKNOWN
    assert "MemoryError" in hungry.data["traceback"]
    assert counted.outcome is Outcome.VALID


def test_a_checker_that_never_ends_is_ended(tmp_path, apart):
    run = queues(tmp_path, 2)
    deadline = budget_clock_s() + 3
    for verdict in apart(run, Endless(), deadline_unix_s=deadline):
        assert verdict.outcome is Outcome.UNKNOWN
        assert "deadline passed" in verdict.summary
    (counted,) = apart(run, stats.PLUGIN)  # the engine goes on working
    assert counted.outcome is Outcome.VALID


def test_processes_give_what_one_process_gives(tmp_path, small_files):
    run = stale_register(tmp_path)
    job = job_of(run, CAS_REGISTER, stats.PLUGIN)
    assert in_processes(run, *job.checkers) == run_local(job)

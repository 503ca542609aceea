"""Counts by window, quantiles, and the verdict that a run was vacuous."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shaketable.checkers import stats, vacuity
from shaketable.checkers.engine.local import run_local
from shaketable.checkers.vacuity import OPERATIONS_INSIDE_MIN
from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.contracts.verdict import Outcome
from tests.support.checker_histories import context, job, op


def window(fault, name, start, stop, took_effect=True):
    return FaultWindow(fault, name, f"{name} something", start, stop, took_effect, "")


def judge(tmp_path, rows, **more):
    return run_local(job(tmp_path, rows, [stats.PLUGIN, vacuity.PLUGIN], **more))


def rows(count=200):
    made = []
    for n in range(count):
        f = "append" if n % 2 else "read"
        row = op(n, f, n * 1000, n * 1000 + (n + 1) * 1_000_000, key=f"q/{n % 3}")
        if n % 10 == 9:
            row.update(outcome="info", return_ns=None, error="timed out")
        made.append(row)
    return made


def test_stats_add_up_over_queues_and_windows(tmp_path):
    windows = (window(0, "kill", 0, 49_000), window(1, "partition", 40_000, 59_500))
    verdict, _ = judge(tmp_path, rows(), windows=windows)
    assert verdict.outcome is Outcome.VALID
    assert verdict.counts == {"operations": 200, "ok": 180, "fail": 0, "info": 20}
    data = verdict.data
    assert data["by_f"]["append"] == {"ok": 80, "fail": 0, "info": 20}
    assert data["inside"]["append"] == {"ok": 24, "fail": 0, "info": 6}
    assert data["outside"]["read"]["ok"] == 70
    assert [w["by_f"]["read"]["ok"] for w in data["windows"]] == [25, 10]
    assert data["errors"] == [{"f": "append", "outcome": "info", "error": "timed out", "count": 20}]
    latency = data["latency_ms"]["read"]
    assert latency["count"] == 100
    assert latency["max"] == 199
    assert 99 <= latency["p50"] <= 99 * 1.045
    assert 197 <= latency["p99"] <= 199


def test_function_that_never_succeeded_is_unknown(tmp_path):
    made = [*rows(), op(999, "end", 0, 1, "fail", error="refused")]
    verdict, _ = judge(tmp_path, made)
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.summary.endswith("the most frequent error: refused (of end)")
    often = [op(999, "end", 0, 1, outcome, error="timed out") for outcome in ("fail", "info")]
    verdict, _ = judge(tmp_path, [*made, *often])
    assert verdict.summary.endswith("the most frequent error: timed out (of end)")
    without_reason = [*rows(), op(999, "end", 0, 1, "fail")]
    verdict, _ = judge(tmp_path, without_reason)
    assert verdict.summary.endswith("not a single ok end")
    verdict, _ = judge(tmp_path, [])
    assert verdict.outcome is Outcome.UNKNOWN


def test_many_error_texts_are_bounded(tmp_path):
    made = [op(n, "append", 0, 1, "fail", error=f"e{n}") for n in range(500)]
    verdict, _ = judge(tmp_path, made)
    errors = verdict.data["errors"]
    assert len(errors) == stats.ERRORS_MAX
    assert errors[0] == {
        "f": "append", "outcome": "fail", "error": stats.OTHER_ERRORS,
        "count": 500 - stats.ERRORS_MAX,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "windows", "outcome", "text"),
    [
        ((), (), Outcome.VALID, "no faults were requested"),
        (("kill",), (), Outcome.UNKNOWN, "faults were requested (kill), none took effect"),
        (
            ("kill",),
            (window(0, "kill", 0, 10**9, took_effect=False),),
            Outcome.UNKNOWN,
            "none took effect",
        ),
        (("kill",), (window(0, "kill", 0, 3000),), Outcome.UNKNOWN, "only 4 operations"),
        (
            ("kill",),
            (window(0, "kill", 0, 10**9),),
            Outcome.VALID,
            "180 operations succeeded",
        ),
        (
            ("kill", "pause"),
            (window(0, "kill", 0, 10**9), window(1, "pause", 0, 10**9, took_effect=False)),
            Outcome.UNKNOWN,
            "pause was injected and never took effect",
        ),
        (
            ("kill", "pause"),
            (window(0, "kill", 0, 10**9), window(1, "kill", 0, 10**9, took_effect=False)),
            Outcome.VALID,
            "warning: requested, but never injected: pause",
        ),
    ],
)
def test_vacuous(tmp_path, asked, windows, outcome, text):
    _, verdict = judge(tmp_path, rows(), faults_asked=asked, windows=windows)
    assert verdict.outcome is outcome
    assert text in verdict.summary


def test_in_a_group_of_one_node_what_succeeds_after_a_fault_counts(tmp_path):
    struck = {"faults_asked": ("kill",), "windows": (window(0, "kill", 0, 3000),)}
    _, verdict = judge(tmp_path, rows(), nodes=("n0",), **struck)
    assert verdict.outcome is Outcome.VALID
    assert verdict.counts["operations_inside"] == 180
    before = (window(0, "kill", 150_000, 151_000),)
    _, verdict = judge(tmp_path, rows(), nodes=("n0",), **struck | {"windows": before})
    assert verdict.summary.startswith("only 45 operations succeeded while a fault was in")
    assert "or after, at least 50" in verdict.summary


def test_what_succeeds_after_a_fault_that_took_down_all_nodes_counts(tmp_path):
    def counted(name, *victims):
        windows = (replace(window(0, name, 0, 3000), victims=victims),)
        _, verdict = judge(tmp_path, rows(), faults_asked=(name,), windows=windows)
        return verdict.counts["operations_inside"]

    nodes = context().nodes
    inside = counted("power", nodes[0])
    assert counted("partition", *nodes) == inside < OPERATIONS_INSIDE_MIN
    assert counted("power", *nodes) == counted("kill", *nodes) == 180


def test_operations_inside_overlapping_windows_count_once(tmp_path):
    windows = (window(0, "kill", 0, 53_000), window(1, "kill", 0, 53_000))
    _, verdict = judge(tmp_path, rows(), faults_asked=("kill",), windows=windows)
    assert verdict.counts["operations_inside"] == 49 == OPERATIONS_INSIDE_MIN - 1
    assert verdict.outcome is Outcome.UNKNOWN

"""What is said of two runs: everything that got worse, nothing of two alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from shaketable.harness import cli
from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.comparing import comparison, significance
from shaketable.reports.comparing.compared_measures import (
    CALM,
    WINDOWS_MAX,
    FaultPeriod,
    Measured,
    Recoveries,
    Series,
    Window,
    measure,
    series_of,
    windows,
)
from shaketable.reports.comparing.comparison import Judgement, compare, headline
from shaketable.reports.comparing.page import render_comparison, result, to_json
from shaketable.reports.run_page.view import build_view
from shaketable.reports.run_view import CheckerView

S = 1_000_000_000


def series(
    seed: int, seconds: int = 30, slower: float = 1.0, refused: float = 0.01, condition: str = CALM
) -> Series:
    """Seconds that hang together, as those of a real run do."""
    rng = np.random.default_rng(seed)
    noise = np.convolve(rng.normal(0, 0.12, seconds + 4), np.ones(5) / 2, "valid")
    latency = 8.0 * slower * np.exp(noise)
    return Series(
        throughput=800 / slower * np.exp(-noise / 4),
        median_ms=latency,
        p99_ms=5 * latency * np.exp(rng.normal(0, 0.2, seconds)),
        refused=np.clip(refused + rng.normal(0, 0.004, seconds), 0, 1),
        pieces=np.arange(seconds) // 4,
        condition=condition,
    )


def run(seed: int, **changed: object) -> Measured:
    rng = np.random.default_rng(seed + 1000)
    healthy = Measured(
        folder=f"store/quick/{seed}",
        name="quick",
        verdict="VALID",
        why="",
        operations=30_000,
        conditions={
            CALM: series(seed),
            "kill": series(seed + 1, 12, 1.6, 0.2, "kill"),
        },
        recoveries={
            "kill": Recoveries(tuple(rng.lognormal(0, 0.3, 5))),
            "pause": Recoveries(tuple(rng.lognormal(-1, 0.4, 5))),
        },
        faults_asked=("kill", "pause"),
    )
    return replace(healthy, **changed)


def worse(a: Measured, b: Measured) -> set[tuple[str, str]]:
    return {(each.where, each.what) for each in compare(a, b).worse}


def test_nothing_is_said_of_two_healthy_runs() -> None:
    compared = [compare(run(seed), run(seed + 1)) for seed in range(0, 24, 2)]
    told = [each for one in compared for each in (*one.worse, *one.better)]
    assert told == []


def test_what_got_worse_is_named_with_how_much_and_the_other_way_round_it_got_better() -> None:
    slowed = run(4, conditions={CALM: series(4, slower=8), "kill": series(5, 12, 1.6, 0.2, "kill")})
    compared = compare(run(1), slowed)
    assert {(each.where, each.what) for each in compared.worse} == {
        (CALM, "throughput"),
        (CALM, "median latency"),
        (CALM, "p99 latency"),
    }
    median = next(each for each in compared.worse if each.what == "median latency")
    assert median.low is not None
    assert median.high is not None
    assert 3 < median.low < 8 < median.high
    assert "times longer" in median.text
    assert result(compared) == "WORSE"
    back = compare(slowed, run(1))
    assert not back.worse
    assert len(back.better) == 3
    assert comparison.headline(back) == "nothing got worse, 3 got better"


def test_what_several_checkers_found_in_one_history_counts_once(tmp_path: Path) -> None:
    def checker(name: str, *totals: tuple[str, int]) -> CheckerView:
        return CheckerView(
            name, "INVALID", "", (), (), 0, 0, (), totals=totals, observed_totals=totals
        )

    both = (
        checker("log", ("lost-append", 3), ("stale-read", 1)),
        checker("durability", ("lost-append", 2)),
    )
    measured = measure(replace(build_view(tmp_path), checkers=both))
    assert measured.findings == measured.observed == {"lost-append": 3, "stale-read": 1}


def test_a_condition_is_compared_with_the_same_condition() -> None:
    """A run with longer faults is no slower group."""
    longer = run(8, conditions={CALM: series(8, 10), "kill": series(9, 40, 1.6, 0.2, "kill")})
    assert worse(run(1), longer) == set()


def test_time_under_a_fault_that_the_other_run_never_asked_for_meets_its_calm_time() -> None:
    slow_disk = run(
        6,
        conditions={CALM: series(6), "disk-slow": series(7, 20, slower=15, condition="disk-slow")},
        faults_asked=("disk-slow",),
    )
    compared = compare(run(1), slow_disk)
    assert {each.what for each in compared.worse} >= {"throughput", "median latency", "p99 latency"}
    assert all(each.where == "under disk-slow (A: calm)" for each in compared.worse)
    drawn_otherwise = replace(slow_disk, faults_asked=("kill", "pause"))
    both_asked = replace(run(1), faults_asked=("kill", "pause", "disk-slow"))
    assert worse(both_asked, drawn_otherwise) == set()
    assert any("not compared" in note for note in compare(both_asked, drawn_otherwise).notes)


def test_more_refused_operations_are_seen() -> None:
    refusing = run(2, conditions={CALM: series(2, refused=0.3)})
    found = compare(run(1, conditions={CALM: series(1)}), refusing)
    assert [(each.where, each.what) for each in found.worse] == [(CALM, "refused or unknown")]
    assert "points more" in found.worse[0].text


def test_longer_recoveries_are_seen_and_few_of_them_say_nothing() -> None:
    long = {name: Recoveries((9.0, 8.0, 7.5, 9.5, 10.0), 1) for name in ("kill", "pause")}
    assert {where for where, _ in worse(run(1), run(2, recoveries=long))} >= {
        "after all faults that both had"
    }
    slow = {"kill": Recoveries((59.0, 61.0, 60.0, 58.0, 62.0))}
    five = compare(run(1), run(2, recoveries=slow))  # five against five are enough
    assert ("after kill", "recovery") in {(each.where, each.what) for each in five.worse}
    three = {"kill": Recoveries((0.3, 0.31, 0.32))}
    fewer = {"kill": Recoveries((60.0, 61.0, 62.0))}
    open_ = compare(run(1, recoveries=three), run(2, recoveries=fewer))
    assert not open_.worse
    assert [each.where for each in open_.unsure] == ["after kill"]
    assert (
        headline(open_) == "no difference that is sure; 1 number differs, and may do so by chance"
    )
    few = {"kill": Recoveries((9.0, 8.0))}
    compared = compare(run(1), run(2, recoveries=few))
    assert not compared.worse
    judged = [each.judgement for each in compared.differences if each.what == "recovery"]
    assert judged == [Judgement.UNSURE]


def test_verdicts_and_findings_need_no_statistics() -> None:
    broken = run(2, verdict="INVALID", why="2 acknowledged appends are lost", findings={"lost": 2})
    assert worse(run(1), broken) == {("all", "verdict"), ("all", "lost")}
    both = compare(replace(run(1), verdict="INVALID", findings={"lost": 9}), broken)
    assert not both.worse
    assert any("9 found in A, 2 in B" in each.text for each in both.differences)


def test_runs_of_which_little_was_recorded_are_not_called_alike() -> None:
    empty = Measured("x", "x", "UNKNOWN", "", 0, {}, {})
    compared = compare(empty, empty)
    assert not compared.is_conclusive
    assert result(compared) == "UNKNOWN"
    short = run(1, conditions={CALM: series(1, 3)}, recoveries={})
    assert not compare(short, run(2)).worse
    assert [note[:20] for note in compared.notes] == [
        "no operations of A c",
        "no operations of B c",
    ]
    assert to_json(compared)["result"] == "unknown"


def test_windows_of_conditions_leave_nothing_out_and_count_nothing_twice() -> None:
    cut = windows(
        [(0, 20 * S)], [FaultPeriod("kill", 3 * S, 7 * S), FaultPeriod("pause", 6 * S, 9 * S)]
    )
    assert set(cut) == {CALM, "kill", "kill + pause", "pause"}
    assert cut["kill + pause"] == (Window(6 * S, 7 * S),)
    every = sorted((window.start_ns, window.stop_ns) for of in cut.values() for window in of)
    assert [start for start, _ in every[1:]] == [stop for _, stop in every[:-1]]
    assert (every[0][0], every[-1][1]) == (0, 20 * S)
    assert windows([(0, S // 3)], []) == {}


def test_windows_are_measured_as_they_were() -> None:
    rows = [
        dict.fromkeys(OPERATIONS.names)
        | {
            "op": n,
            "f": "append",
            "call_ns": n * S // 10,
            "outcome": "info" if n % 10 == 9 else "ok",
        }
        | {"return_ns": None if n % 10 == 9 else n * S // 10 + (1 + n % 10) * S // 1000}
        for n in range(20)
    ]
    measured = series_of(
        pa.Table.from_pylist(rows, schema=OPERATIONS),
        {CALM: (Window(0, S), Window(S, 2 * S), Window(2 * S, 3 * S))},
    )[CALM]
    assert measured.throughput.tolist() == [9, 9, 0]
    assert measured.refused[:2] == pytest.approx([0.1, 0.1])
    assert np.isnan(measured.refused[2])
    assert measured.median_ms[:2] == pytest.approx([5, 5])
    assert measured.p99_ms[:2] == pytest.approx([9, 9])


def test_chance_is_what_it_is_said_to_be() -> None:
    pieces = np.arange(40) // 3
    values = np.tile(np.arange(1.0, 11), 4)
    a, b = significance.Sample(values, pieces), significance.Sample(values * 3, pieces)
    by = significance.ratio(a, b, significance.mean, 0.05)
    assert by.low < 3 < by.high
    assert by.high / by.low < 3
    assert sum(map(len, a.blocks)) == 40
    assert max(map(len, a.blocks)) == 3
    assert [len(of) for of in significance.Sample(values, pieces * 0).blocks] == [4] * 10
    of_equal = significance.difference(a, a, significance.mean, 0.05)
    assert of_equal.low < 0 < of_equal.high
    assert significance.p_value_greater([((1, 2, 3), (4, 5, 6))]) == pytest.approx(1 / 20, abs=0.01)
    assert significance.p_value_greater([((4, 5, 6), (1, 2, 3))]) == pytest.approx(1, abs=0.01)
    assert significance.p_value_greater([((), (1,))]) == 1
    assert significance.p_value_greater([((2,), (2,)), ((5, 5), (5, 5))]) == 1


def test_a_page_does_not_run_what_a_run_is_named() -> None:
    hostile = run(
        2, name="<script>alert(1)</script>", errors={("info", "<img src=x onerror=a>"): 3}
    )
    page = render_comparison(compare(run(1), hostile))
    assert "<script" not in page
    assert "<img" not in page


def test_a_machine_that_others_kept_busy_is_no_slower_group() -> None:
    slowed = run(4, conditions={CALM: series(4, slower=8)}, busy_with_others=0.6)
    idle = run(1, busy_with_others=0.1)
    compared = compare(idle, slowed)
    assert not compared.worse
    assert any("60% of B's" in note for note in compared.notes)
    assert len(compare(idle, replace(slowed, busy_with_others=0.2)).worse) == 3
    assert len(compare(idle, replace(slowed, busy_with_others=None)).worse) == 3
    assert len(compare(replace(idle, busy_with_others=0.9), slowed).worse) == 3
    broken = replace(slowed, verdict="INVALID", why="lost", findings={"lost": 1})
    assert {each.what for each in compare(idle, broken).worse} == {"verdict", "lost"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere", "nowhere"],
        [".", "."],
        [str(Path(__file__)), "."],
        ["RUN", "RUN", "--html", "."],
        ["RUN", "RUN", "--html", "nowhere/page.html"],
        ["RUN"],
    ],
)
def test_bad_input_gets_one_line(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "history" / "segments").mkdir(parents=True)
    (tmp_path / "campaign.toml").write_text("nodes = 3\n")
    given = [str(tmp_path) if argument == "RUN" else argument for argument in arguments]
    assert cli.run(["compare", *given]) == 254
    assert capsys.readouterr().err.count("\n") == 1


def test_runs_that_were_killed_at_once_are_compared_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "history" / "segments").mkdir(parents=True)
    (tmp_path / "campaign.toml").write_text("nodes = 3\n")
    assert cli.run(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert "too little was measured" in capsys.readouterr().out
    assert cli.run(["compare", str(tmp_path), str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["result"] == "unknown"


def test_a_time_that_no_run_has_needs_no_memory() -> None:
    cut = windows([(0, 10**18)], [FaultPeriod("kill", 5 * S, 9 * S)])
    assert sum(map(len, cut.values())) <= WINDOWS_MAX + 2
    assert max(window.stop_ns for window in cut[CALM]) == 10**18


def test_windows_of_usual_runs_are_seconds_as_before() -> None:
    cut = windows([(0, 3 * 3600 * S)], [])
    assert {window.stop_ns - window.start_ns for window in cut[CALM]} == {S}


def test_a_new_kind_of_anomaly_is_told_though_it_breaks_no_promise() -> None:
    a, b = run(1), replace(run(2), observed={"duplicate": 4, "unseen": 1})
    compared = compare(replace(a, observed={"unseen": 9}), b)
    told = [each for each in compared.differences if each.what == "duplicate"]
    assert [(each.judgement, each.differs) for each in told] == [(Judgement.UNSURE, True)]
    assert told[0].text == "duplicate (breaks no promise): 0 observed in A, 4 in B"
    assert "may do so by chance" in headline(compared)
    assert not [each for each in compared.differences if each.what == "unseen"]
    assert result(compared) == "ALIKE"
    as_finding = compare(a, replace(b, findings={"duplicate": 4}))
    assert [each.what for each in as_finding.worse] == ["duplicate"]


def test_fewer_operations_where_fewer_were_asked_for_are_not_worse() -> None:
    def slower(rate: str) -> Measured:
        slow = replace(run(2), setting={"rate": rate, "concurrency": "4n"})
        calm = slow.conditions[CALM]
        less = replace(calm, throughput=calm.throughput / 4)
        return replace(slow, conditions={**slow.conditions, CALM: less})

    a = replace(run(1), setting={"rate": "800.0", "concurrency": "4n"})
    same = compare(a, slower("800.0"))
    assert [(each.where, each.what) for each in same.worse] == [(CALM, "throughput")]
    other = compare(a, slower("200.0"))
    assert other.worse == ()
    assert "different loads (rate 800.0 in A, 200.0 in B)" in " ".join(other.notes)
    back = compare(slower("200.0"), a)
    assert back.better == ()


def test_recoveries_know_which_of_them_never_were() -> None:
    assert Recoveries((1.0, 2.0, 9.0, 8.0), 2).recovered_s == (1.0, 2.0)
    assert Recoveries((1.0,), 0).recovered_s == (1.0,)


def test_a_page_is_not_written_over_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [tmp_path / name for name in "ab"]
    for each in runs:
        (each / "history" / "segments").mkdir(parents=True)
        (each / "campaign.toml").write_text("")
        (each / "report.html").write_text("evidence")
    target = runs[0] / "report.html"
    assert cli.run(["compare", *map(str, runs), "--html", str(target)]) == 254
    assert "is judged; write it somewhere else" in capsys.readouterr().err
    assert target.read_text() == "evidence"

"""`shrink`: what it prints, what it keeps and its exit codes, over a simulator of numbers."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shaketable.harness import cli, discovery
from shaketable.harness.terminal import output
from shaketable.harness.terminal.simulations import seed_runs

Run = Callable[..., tuple[int, str, str]]
KEPT = "store/shrunk/fakeshrink-late-7"


@pytest.fixture
def shaketable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    info = tmp_path / "fake_shrinking-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-shrinking\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[shaketable.targets]\nfakeshrink = fake_shrinker:TARGET\nfakesim = fake_simulator:TARGET\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))  # the processes that run seeds inherit it
    importlib.invalidate_caches()
    discovery.clear_caches()
    monkeypatch.setattr(output.out, "width", 100)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def run(*arguments: str, target: str = "fakeshrink") -> tuple[int, str, str]:
        code = cli.run([*arguments, "--target", target])
        told = capsys.readouterr()
        return code, told.out, told.err

    yield run
    discovery.clear_caches()


def interrupt_at(monkeypatch: pytest.MonkeyPatch, *runs: int) -> None:
    importlib.import_module("fake_shrinker")
    monkeypatch.setattr("fake_shrinker.FakeShrinker.interrupts", runs)


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


def test_a_failing_seed_is_shrunk_told_and_kept(shaketable: Run) -> None:
    code, out, err = shaketable("shrink", "7", "--mutant", "late")
    assert (code, err) == (1, "")
    assert "fakeshrink, simulated: the core world · seed 7 · 30 s · mutant late\n" in out
    assert "BROKEN: one-leader\n\ntold in 100 columns" in out
    assert "INVALID  one-leader breaks with 1 fault and 117 operations" in out
    assert "shrunk   from 6 faults and 1,000 operations, in 20 runs and 0.5 s\n" in out
    assert f"run      {KEPT}/shrunk.json\n" in out
    assert f"story    {KEPT}/story.html\n" in out
    assert f"./shaketable replay {KEPT}/shrunk.json --target fakeshrink\n" in out
    assert "go on" not in out
    assert files() == [f"{KEPT}/shrunk.json", f"{KEPT}/story.html"]
    assert Path(KEPT, "shrunk.json").read_text() == "seed 7, 117 operations left\n"


def test_a_bug_of_the_tree_is_not_kept_as_a_healthy_run(
    shaketable: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrinker = importlib.import_module("fake_shrinker")
    monkeypatch.setattr(
        shrinker.FakeShrinker,
        "shrink",
        lambda self, spec, _s, watch: self._smaller(spec.seed, None, shrinker.BEFORE, watch),
    )
    assert shaketable("shrink", "7")[0] == 1
    kept = "store/shrunk/fakeshrink-7"
    assert files() == [f"{kept}/shrunk.json", f"{kept}/story.html"]


def test_what_breaks_nothing_is_said_in_a_line_and_leaves_no_file(shaketable: Run) -> None:
    code, out, err = shaketable("shrink", "8", "--mutant", "late")
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == ["seed 8 breaks nothing: there is nothing to shrink"]
    assert not list(Path().iterdir())


def test_without_a_seed_the_first_that_fails_is_looked_for(shaketable: Run) -> None:
    code, out, _ = shaketable("shrink", "--mutant", "late", "--first-seed", "8")
    assert code == 1
    assert "the core world · seeds from 8 on · 30 s each · mutant late\n" in out
    assert "seed 14: one-leader broken at 4.000 ms" in out
    assert "store/shrunk/fakeshrink-late-14/shrunk.json" in out


def test_a_hunt_for_what_is_not_found_ends(
    shaketable: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seed_runs, "HUNT_SEEDS_MAX", 12)
    code, out, _ = shaketable("shrink", "--mutant", "hidden", "--first-seed", "3")
    assert code == 0
    assert "hidden breaks nothing in the seeds 3 to 14: there is nothing to shrink" in out
    assert not list(Path().iterdir())


def test_ctrl_c_keeps_the_smallest_so_far_and_the_file_goes_on(
    shaketable: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupt_at(monkeypatch, 3)
    code, out, _ = shaketable("shrink", "7", "--mutant", "late")
    assert code == 1
    assert "in 3 runs and 0.5 s; interrupted: it may get smaller still\n" in out
    assert f"go on    ./shaketable shrink {KEPT}/shrunk.json --target fakeshrink\n" in out
    assert Path(KEPT, "shrunk.json").read_text() == "seed 7, 729 operations left\n"
    assert signal.getsignal(signal.SIGINT) is before
    interrupt_at(monkeypatch)
    code, out, _ = shaketable("shrink", f"{KEPT}/shrunk.json")
    assert code == 1
    assert "from 1 fault and 729 operations, in 20 runs" in out
    assert Path(KEPT, "shrunk.json").read_text() == "seed 7, 84 operations left\n"
    assert files() == [f"{KEPT}/shrunk.json", f"{KEPT}/story.html"]


def test_a_second_ctrl_c_stops_at_once(shaketable: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("fake_shrinker")

    def deaf(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("fake_shrinker.FakeShrinker.shrink", deaf)
    code, _, err = shaketable("shrink", "7", "--mutant", "late")
    assert (code, err) == (255, "shaketable: interrupted before a verdict\n")
    assert not list(Path().iterdir())


def test_out_takes_the_files_and_nothing_else_there_is_touched(shaketable: Run) -> None:
    Path("my runs").mkdir()
    Path("my runs/notes.txt").write_text("mine\n")
    code, out, _ = shaketable("shrink", "7", "--mutant", "late", "--out", "my runs")
    assert code == 1
    assert "./shaketable replay 'my runs/shrunk.json' --target fakeshrink\n" in out
    assert files() == ["my runs/notes.txt", "my runs/shrunk.json", "my runs/story.html"]


def test_what_cannot_be_written_is_one_line_after_the_story(shaketable: Run) -> None:
    Path("store").write_text("a file")
    code, out, err = shaketable("shrink", "7", "--mutant", "late")
    assert code == 255
    assert "BROKEN: one-leader" in out
    assert err == f"shaketable: cannot write into {KEPT}: Not a directory\n"


def test_a_saved_run_that_holds_by_now_is_left_alone(shaketable: Run) -> None:
    Path("old.json").write_text("nothing\n")
    code, out, _ = shaketable("shrink", "old.json")
    assert code == 0
    assert "old.json breaks nothing any more: there is nothing to shrink" in out
    assert files() == ["old.json"]


def test_progress_is_told_without_a_terminal_too(
    shaketable: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seed_runs, "LINE_EVERY_S", 0.0)
    out = shaketable("shrink", "7", "--mutant", "late", "--seconds", "5")[1]
    assert "0 s of 5 s: 1 run, 1 fault and 900 operations left\n" in out
    assert "0 s of 5 s: 20 runs, 1 fault and 117 operations left\n" in out


def test_simulate_names_it_as_the_next_step_where_it_can_be_taken(shaketable: Run) -> None:
    asked = ("simulate", "--seeds", "8", "--mutant", "late", "--jobs", "1")
    shrink = "  ./shaketable shrink 7 --world core --mutant late --target fakeshrink\n"
    assert shrink in shaketable(*asked)[1]
    assert shrink in shaketable("simulate", "--seed", "7", "--mutant", "late")[1]
    assert "shaketable shrink" not in shaketable(*asked, "--world", "node")[1]
    assert "shaketable shrink" not in shaketable(*asked, target="fakesim")[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "nothing to shrink: give a seed, a file of a shrunk run, or --mutant"),
        (["7", "--mutant", "lat"], "unknown mutant of fakeshrink 'lat'; did you mean 'late'?"),
        (["7", "--world", "node"], "the node world cannot be shrunk: take --world core"),
        (["7", "--seconds", "0"], "--seconds 0: expected 1 to 86400"),
        (["7", "--seconds", "nan"], "--seconds nan: expected"),
        (["7", "--time-limit", "1"], "--time-limit 1: expected 10 to"),
        (["99999999999999999999"], "seed 99999999999999999999: expected 0 to"),
        (["7", "--first-seed", "3"], "--first-seed is for a hunt"),
        (["--mutant", "late", "--first-seed", "-1"], "seed -1: expected 0 to"),
        (["7", "--out", "a-file"], "--out a-file: it is there and no folder"),
        (["a-file", "--mutant", "late"], "no --world, --mutant or --time-limit with it"),
        (["a-file"], "a-file is no shrunk run"),
        (["nowhere.json"], "nowhere.json: neither a seed nor a file that is there"),
        (["--sedonds", "9"], "--sedonds"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "told",
)
def test_bad_usage_is_one_line(shaketable: Run, arguments: list[str], told: str) -> None:
    Path("a-file").write_text("nothing of the kind")
    code, _, err = shaketable("shrink", *arguments)
    assert told in err
    assert code == 254
    assert err.count("\n") == 1
    assert files() == ["a-file"]


def test_a_target_that_cannot_shrink_is_told(shaketable: Run) -> None:
    code, out, err = shaketable("shrink", "7", "--mutant", "late", target="fakesim")
    assert (code, out) == (254, "")
    assert "runs of the target fakesim cannot be shrunk" in err


LED = """\
      n0   n1   n2
  1.0  |    o    |  n1 leads term 1; it
       |    #    |  writes entry 3
  2.0  |    o    |  n1 sends entry 3 to n2
  3.0  X    |    |  n0 crashes in term 1
"""


def test_a_story_wider_than_the_terminal_is_folded_in_its_last_column() -> None:
    story = (
        "      n0   n1   n2\n"
        "  1.0  o--->|    |  n0 sends entry 3 to n1\n"
        "| up   o something happens   * fsync\n"
    )
    assert seed_runs.fold(story, 80) == story
    assert seed_runs.fold(story, 35).splitlines() == [
        "      n0   n1   n2",
        "  1.0  o--->|    |  n0 sends entry",
        "       |    |    |  3 to n1",
        "| up   o something happens",
        "* fsync",
    ]
    assert seed_runs.fold(LED, 35).splitlines() == [
        "      n0   n1   n2",
        "  1.0  |    o    |  n1 leads term",
        "       |    #    |  1; it writes",
        "       |    #    |  entry 3",
        "  2.0  |    o    |  n1 sends entry",
        "       |    #    |  3 to n2",
        "  3.0  X    |    |  n0 crashes in",
        "       :    |    |  term 1",
    ]
    assert max(map(len, seed_runs.fold(story, 26).splitlines())) <= 26


def test_help_offers_no_world_whose_runs_cannot_be_shrunk(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["shrink", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--world NAME core (the pure code" in shown
    assert "node the whole node" not in shown

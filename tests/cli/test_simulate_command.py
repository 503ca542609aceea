"""`simulate` and `replay`: what they print and their exit codes, over a world of hardly a thing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shaketable.harness import cli, discovery
from shaketable.harness.terminal import output
from shaketable.harness.terminal.simulations import simulation

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shaketable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    info = tmp_path / "fake_simulation-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-simulation\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[shaketable.targets]\nfakesim = fake_simulator:TARGET\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))  # the processes that run seeds inherit it
    importlib.invalidate_caches()
    discovery.clear_caches()
    monkeypatch.setattr(output.out, "width", 100)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run([*arguments, "--target", "fakesim"])
        told = capsys.readouterr()
        return code, told.out, told.err

    yield run
    discovery.clear_caches()


def test_clean_seeds_are_valid_and_counted(shaketable: Run) -> None:
    code, out, _ = shaketable("simulate", "--seeds", "20", "--jobs", "2", "--time-limit", "10")
    assert code == 0
    assert "fakesim, simulated: the core world · seeds 1 to 20 · 2 jobs · 10 s each" in out
    assert "VALID  no invariant was broken in 20 seeds" in out
    assert "200 a virtual second, 40,000 in all" in out
    assert "5.5 a seed, 5 at least" in out
    assert "in 50.0% of the seeds" in out
    assert "2 of 3 reached" in out
    assert "candidate/tick" in out


def test_the_first_violation_ends_it_with_the_command_that_replays_it(shaketable: Run) -> None:
    code, out, _ = shaketable(
        "simulate", "--seeds", "50", "--mutant", "late", "--jobs", "2", "--world", "node"
    )
    assert code == 1
    assert "INVALID  1 seed breaks an invariant, of 7 run" in out
    assert "seed 7: one-leader broken at 4.000 ms: n0 and n1 both lead term 3" in out
    assert "./shaketable replay 7 --world node --mutant late --target fakesim" in out
    assert "not reached" not in out


def test_keep_going_finds_them_all(shaketable: Run) -> None:
    code, out, _ = shaketable(
        "simulate", "--seeds", "30", "--mutant", "late", "--jobs", "3", "--keep-going"
    )
    assert code == 1
    assert "INVALID  4 seeds break an invariant, of 30 run" in out
    for seed in (7, 14, 21, 28):
        assert f"seed {seed}: one-leader" in out


def test_one_seed_shows_its_trace_or_writes_it(shaketable: Run, tmp_path: Path) -> None:
    code, out, _ = shaketable("simulate", "--seed", "3")
    assert code == 0
    *lines, last = out.splitlines()
    assert len(lines) == 5
    assert last.startswith("seed 3: 5 events, 6,000 operations, 6 faults in 30 s; digest ")
    file = tmp_path / "trace.txt"
    code, out, _ = shaketable("simulate", "--seed", "3", "--trace", str(file))
    assert (code, out.splitlines()) == (0, [last])
    assert file.read_text().splitlines() == lines
    assert shaketable("simulate", "--seed", "7", "--mutant", "late")[0] == 1


def test_a_broken_simulator_is_a_fault_of_the_harness(shaketable: Run) -> None:
    code, _, err = shaketable("simulate", "--seeds", "3", "--mutant", "crash", "--jobs", "1")
    assert code == 255
    assert "ValueError: the simulator is broken" in err
    trace = Path(err.rpartition("traceback: ")[2].strip())
    assert "fake_simulator.py" in trace.read_text()
    trace.unlink()


def test_a_process_that_dies_is_told_with_its_seed(shaketable: Run) -> None:
    code, _, err = shaketable(
        "simulate", "--seeds", "3", "--first-seed", "11", "--mutant", "die", "--jobs", "1"
    )
    assert code == 255
    assert "seed=11" in err
    assert "died (exit code -9)" in err


def test_the_table_hunts_each_planted_bug(shaketable: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    mutants = {"late": "", "always": ""}
    monkeypatch.setattr("fake_simulator.FakeSimulator.mutants", mutants)
    monkeypatch.setattr(simulation, "HUNT_STRIDE", 10)
    code, out, _ = shaketable("simulate", "--table", "--jobs", "2")
    assert code == 0
    told = " ".join(out.split())
    # From seed 1, 11, 21, 31 and 41 on, the next seventh seed:
    assert "late median 4 seeds (7, 4, 1, 5, 2): one-leader" in told
    assert "always median 1 seeds (1, 1, 1, 1, 1): one-leader" in told
    assert "2 of 2 planted bugs found within 2,000 seeds, each of 5 times" in told


def test_the_table_may_hunt_one_bug_and_less_often(
    shaketable: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fake_simulator.FakeSimulator.mutants", {"late": "", "always": ""})
    monkeypatch.setattr(simulation, "HUNT_STRIDE", 10)
    code, out, _ = shaketable("simulate", "--table", "--mutant", "late", "--hunts", "2")
    assert code == 0
    told = " ".join(out.split())
    assert "late median 5.5 seeds (7, 4): one-leader" in told
    assert "always" not in told
    assert "1 of 1 planted bug found within 2,000 seeds, each of 2 times" in told


def test_the_table_may_be_written_for_the_gate(
    shaketable: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fake_simulator.FakeSimulator.mutants", {"late": ""})
    monkeypatch.setattr(simulation, "HUNT_STRIDE", 10)
    file, policy = tmp_path / "hunted.json", tmp_path / "gate.toml"
    policy.write_text("[detection]\n")
    assert shaketable("simulate", "--table", "--hunts", "2", "--json", str(file))[0] == 0
    assert cli.run(["gate", str(file), "--policy", str(policy)]) == 0
    assert shaketable("simulate", "--json", str(file))[0] == 254
    assert shaketable("simulate", "--table", "--json", str(tmp_path / "no" / "file"))[0] == 254


def test_replay_shows_each_step_and_what_changed(shaketable: Run) -> None:
    code, out, _ = shaketable("replay", "3", "--from", "1", "--to", "3")
    assert code == 0
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "1.000 n0 step 1",
        "n0: term 1",
        "n1: term 0",
        "2.000 n0 step 2",
        "n0: term 2",
        "3.000 n0 step 3",
        "n0: term 3",
        "the end: nothing was found wrong",
    ]
    assert shaketable("replay", "7", "--mutant", "late")[0] == 1


def test_replay_takes_a_file(shaketable: Run, tmp_path: Path) -> None:
    recording = tmp_path / "inputs.rec"
    recording.write_text("recording\n")
    code, out, _ = shaketable("replay", str(recording))
    assert code == 0
    assert "n0 recorded" in out
    recording.write_text("something else")
    code, _, err = shaketable("replay", str(recording))
    assert code == 254
    assert "is no recording" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["simulate", "--seeds", "0"], "--seeds 0: expected 1 to"),
        (["simulate", "--seeds", "12345678"], "--seeds 12345678: expected 1 to 1000000\n"),
        (["simulate", "--jobs", "0"], "--jobs 0: expected 1 to"),
        (["simulate", "--seed", "-1"], "seed -1: expected 0 to"),
        (["simulate", "--time-limit", "nan"], "--time-limit nan: expected 10 to"),
        (["simulate", "--world", "cor"], "unknown world 'cor'; did you mean 'core'?"),
        (["simulate", "--mutant", "lat"], "unknown mutant of fakesim 'lat'; did you mean 'late'?"),
        (["simulate", "--trace", "x"], "--trace is for one seed: give --seed, too"),
        (["simulate", "--table", "--seed", "1"], "give no --seed"),
        (["simulate", "--seed", "1", "--trace", "no/where"], "cannot write no/where"),
        (["replay", "nowhere"], "nowhere: neither a seed nor a file that is there"),
        (["replay", "1", "--from", "9", "--to", "8"], "--from 9 is after --to 8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "told",
)
def test_bad_input_is_one_line(shaketable: Run, arguments: list[str], told: str) -> None:
    code, out, err = shaketable(*arguments)
    assert told in err
    assert (code, out) == (255 if "cannot write" in told else 254, "")
    assert err.count("\n") == 1


def test_a_target_without_a_simulated_world_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["simulate", "--target", "nobody"]) == 254
    assert "unknown target 'nobody'" in capsys.readouterr().err

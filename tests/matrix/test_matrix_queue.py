"""The queue of a matrix: what is run, what is kept, and what an end by force leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.matrix.folder import FaultCount, Journal, Outcome, code_of, pending
from shaketable.harness.matrix.plan import Cell, Plan
from shaketable.harness.matrix.running import Queue, exit_code, to_json, verdict, view
from shaketable.reports.matrix_page import render_matrix

NOW = "2026-11-22T10:00:00.000+00:00"


def outcome(code: int, attempt: int = 1, why: str = "") -> Outcome:
    return Outcome(attempt=attempt, code=code, why=why, faults={"kill": FaultCount(3, 4)})


class Script:
    """A process that ends with the exit status it is made with, once it was looked at `looks`."""

    def __init__(self, code: int, looks: int = 1) -> None:
        self.code, self.looks = code, looks
        self.signals: list[int] = []

    def poll(self) -> int | None:
        self.looks -= 1
        return self.code if self.looks < 0 else None

    def send_signal(self, sig: int) -> None:
        self.signals.append(sig)

    def wait(self) -> int:
        return self.code


class Watching:
    """Remembers how many cells ran at once."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.most = 0
        self.order: list[str] = []

    def began(self, cell: str) -> None:
        self.running.add(cell)
        self.most = max(self.most, len(self.running))
        self.order.append(cell)

    def ended(self, cell: str, outcome: Outcome) -> None:
        self.running.remove(cell)

    def tick(self) -> None:
        """Nothing."""


def test_cells_run_in_their_order_and_so_many_at_once(tmp_path: Path) -> None:
    watching = Watching()
    with Journal(tmp_path / "j") as journal:
        queue = Queue(
            journal,
            lambda cell, _: Script(int(cell[1])),
            lambda _, attempt, code, __: outcome(code, attempt),
            watching,
        )
        assert queue.run(["c0", "c1", "c2", "c0x"], jobs=2)
        assert watching.order == ["c0", "c1", "c2", "c0x"]
        assert watching.most == 2
        assert {cell: code_of(done) for cell, done in journal.attempts.items()} == {
            "c0": 0,
            "c1": 1,
            "c2": 2,
            "c0x": 0,
        }


def test_what_was_begun_and_did_not_end_is_run_anew(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.began("a", NOW)
        journal.ended("a", NOW, outcome(0))
        journal.began("b", NOW)
    with Journal(tmp_path / "j") as journal:
        assert pending(["a", "b", "c"], journal.attempts, again=False) == ["b", "c"]
        assert journal.began("b", NOW) == 2


def test_a_torn_last_line_never_happened_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.began("a", NOW)
        journal.ended("a", NOW, outcome(0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with Journal(path) as journal:
        assert pending(["a"], journal.attempts, again=False) == ["a"]
        journal.ended("a", NOW, outcome(2))
    with Journal(path) as journal:
        assert code_of(journal.attempts["a"]) == 2
    path.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(HarnessError, match="line 1"):
        Journal(path)


def test_a_line_that_fitted_only_in_part_does_not_spoil_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with Journal(tmp_path / "j") as journal:
        journal.began("a", NOW)
        with monkeypatch.context() as full_disk:
            full_disk.setattr(os, "write", lambda file, data: write(file, data[:9]))
            with pytest.raises(HarnessError, match="only a part of a line fitted"):
                journal.began("b", NOW)
        journal.began("c", NOW)
    with Journal(tmp_path / "j") as journal:
        assert journal.begun == {"a": 1, "c": 1}


def test_one_process_runs_a_matrix_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"), pytest.raises(UsageError, match="another process"):
        Journal(tmp_path / "j")


def test_a_retry_keeps_both_results_and_hides_no_invalid_one(tmp_path: Path) -> None:
    plan = Plan(
        name="m",
        effects_min=3,
        cells=tuple(
            Cell(id=name, target="t", workload="w", faults=(name,), world="process", seed="1")
            for name in ("a", "b", "c")
        ),
    )
    attempts = {
        "a": [outcome(1, 1, "lost"), outcome(0, 2)],
        "b": [outcome(255, 1, "no port"), outcome(0, 3)],
        "c": [outcome(0)],
    }
    assert pending(("a", "b", "c"), attempts, again=True) == ["a"]
    assert exit_code(plan, attempts) == 1
    found = to_json(plan, attempts)
    assert found["verdict"] == "INVALID"
    assert [len(cell["attempts"]) for cell in found["cells"]] == [2, 2, 1]
    shown = view(plan, attempts, "resume")
    assert [row.cells[0].verdict for row in shown.rows if row.cells[0]] == [
        "INVALID",
        "VALID",
        "VALID",
    ]
    page = render_matrix(shown)
    assert page.count(">INVALID<") == 3  # above all, in the table, and where it is explained
    assert "output/b.1.txt" in page, "there is no report of what failed"


def test_what_was_not_run_is_no_verdict_and_the_worst_counts() -> None:
    cells = tuple(
        Cell(
            id=name,
            target="t",
            workload="w",
            faults=(name,),
            world="sim",
            seed="1",
            skipped=skipped,
        )
        for name, skipped in (("a", ""), ("b", ""), ("c", "not there"))
    )
    plan = Plan(name="m", effects_min=0, cells=cells)
    assert exit_code(plan, {"a": [outcome(0)]}) == 255
    assert verdict(plan, {"a": [outcome(0)]}) == "OPEN"
    assert verdict(plan, {"a": [outcome(1)]}) == "INVALID"
    assert exit_code(plan, {"a": [outcome(0)], "b": [outcome(2)]}) == 2
    assert exit_code(plan, {"a": [outcome(1)], "b": [outcome(254)]}) == 254
    assert exit_code(plan, {"a": [outcome(0)], "b": [outcome(0)]}) == 0


def test_values_of_others_are_escaped_on_the_page() -> None:
    cell = Cell(id="a", target="t", workload="w", faults=("<b x>",), world="w<i x>", seed="1")
    plan = Plan(name="m", effects_min=0, cells=(cell,))
    page = render_matrix(view(plan, {"a": [outcome(2, 1, "<script>x</script>")]}, "<u>"))
    for harmful in ("<b x>", "<i x>", "<script>x", "<u>"):
        assert harmful not in page


def test_an_end_tells_those_under_way_and_leaves_them_to_be_run(tmp_path: Path) -> None:
    """Real processes: one obeys the second signal as `run` does, and none is left."""
    obeys = (
        "import signal, sys, time\n"
        "count = [0]\n"
        "def told(*_):\n"
        "    count[0] += 1\n"
        "    if count[0] == 2: sys.exit(255)\n"
        "signal.signal(signal.SIGTERM, told)\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    started: list[subprocess.Popen[bytes]] = []

    class Ending(Watching):
        def tick(self) -> None:
            queue.end()

    def launch(_cell: str, _attempt: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", obeys], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        with process.stdout as output:
            output.readline()
        return process

    with Journal(tmp_path / "j") as journal:
        queue = Queue(journal, launch, lambda *_: outcome(0), Ending())
        assert not queue.run(["a", "b"], jobs=1)
        assert [process.returncode for process in started] == [255]
        assert pending(["a", "b"], journal.attempts, again=False) == ["a", "b"]
        assert journal.begun == {"a": 1}


def test_a_journal_that_cannot_be_written_leaves_no_process(tmp_path: Path) -> None:
    process = Script(0, looks=2)

    def read(*_: object) -> Outcome:
        raise HarnessError("no room")

    with Journal(tmp_path / "j") as journal:
        queue = Queue(journal, lambda *_: process, read, Watching())
        with pytest.raises(HarnessError, match="no room"):
            queue.run(["a"], jobs=1)
    assert signal.SIGKILL not in process.signals

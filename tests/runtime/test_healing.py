"""What a killed run left is undone, once; what is not a run's, or lives, is not touched."""

import json
import os
import signal
import tempfile
from dataclasses import dataclass, field

import pytest

from harness import discovery, marks
from harness.errors import UsageError
from harness.marks import Mark, Who
from harness.runtime import healing, ledger
from tests.support.left_behind import Sleepers, killed_ledger, make_run

NOBODY = Who(1, 1)
"""Pid 1 did not start at the first tick: this process is gone."""


@pytest.fixture
def sleepers():
    started = Sleepers()
    yield started
    started.end()


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A folder for scratch folders of this test alone."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_all_processes_of_a_run_are_ended_and_nobody_elses(tmp_path, sleepers, scratch):
    run = make_run(tmp_path)
    log = run / "node.log"
    written = killed_ledger(run)
    marked, stopped = (sleepers.sleeper(str(Mark(NOBODY, run))) for _ in range(2))
    os.kill(stopped, signal.SIGSTOP)
    named, child = sleepers.parent(log)
    written.process("n0", named)
    reused = sleepers.sleeper(cwd=run)
    written.process("n1", reused)
    text = (run / "faults.jsonl").read_text()
    started = marks.who(reused).started
    (run / "faults.jsonl").write_text(
        text.replace(
            f'"pid":{reused},"started":{started}', f'"pid":{reused},"started":{started - 9}'
        )
    )  # the ledger names one that had that pid before
    reader = sleepers.sleeper(cwd=run)
    other = sleepers.sleeper(str(Mark(NOBODY, make_run(tmp_path, "two"))))

    (healed,) = healing.heal_store(run.parent, depth=1)[:1]
    assert (healed.folder, healed.left) == (run, ())
    gone = {marked, stopped, named, child}
    assert {int(line.split()[2]) for line in healed.did} == gone
    assert [pid for pid in gone if marks.who(pid) is not None] == []
    assert marks.who(reused) is not None
    assert marks.who(reader) is not None

    assert healing.heal_run(run).did == ()
    assert marks.who(other) is None  # of the same store: it was healed, too


def test_a_run_whose_harness_lives_is_not_touched(tmp_path, sleepers, scratch):
    run = make_run(tmp_path)
    with marks.occupied(run):  # we are its harness
        pid = sleepers.sleeper(os.environ[marks.VARIABLE])
        assert [each.is_alive for each in healing.heal_store(tmp_path)] == [True]
        with pytest.raises(UsageError, match="its harness is at work"):
            healing.heal_run(run)
    assert marks.VARIABLE not in os.environ
    assert healing.heal_store(tmp_path)[0].is_alive  # by the mark, though nobody holds the lock
    assert marks.who(pid) is not None

    written = ledger.Ledger(run / "faults.jsonl", lambda: 0)
    with pytest.raises(UsageError, match="its harness is at work"):  # by the ledger
        healing.heal_run(run)
    written.close()


@dataclass
class Foreign:
    """Somebody's fault that does something outside of the group."""

    name: str = "foreign"
    undone: list = field(default_factory=list)
    error: Exception | None = None

    async def undo(self, undo, world):
        if self.error is not None:
            raise self.error
        await world.resume("n0", 3)
        self.undone.append(undo)


def test_open_faults_are_undone_by_what_the_ledger_says_newest_first(
    tmp_path, scratch, monkeypatch
):
    run, fault = make_run(tmp_path), Foreign()
    monkeypatch.setattr(discovery, "get", lambda kind, name: fault)
    written = killed_ledger(run)
    for number in range(3):
        written.applying(number, "foreign", {})
        written.applied(number, {"door": number})
    written.undone(1)
    written.applying(3, "foreign", {})
    path = run / "faults.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event":"applied","fau')  # torn

    fault.error = RuntimeError("the door is jammed")
    healed = healing.heal_run(run)
    assert healed.did == ("ended, while it was applied, fault 3 (foreign)",)
    assert [line.partition(": ")[2] for line in healed.left] == [
        "RuntimeError: the door is jammed"
    ] * 2
    fault.error = None
    healed = healing.heal_store(tmp_path)[0]  # what is stuck is tried again
    assert healed.did == ("undid fault 2 (foreign)", "undid fault 0 (foreign)")
    assert fault.undone == [{"door": 2}, {"door": 0}]
    assert healing.heal_store(tmp_path) == []
    assert ledger.read(path).is_healed
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()][-3:] == [
        "undone",
        "undone",
        "healed",
    ]


def test_a_run_that_ended_by_itself_is_left_as_it_is(tmp_path, scratch):
    run = make_run(tmp_path)
    written = killed_ledger(run)
    written.applying(0, "kill", {})
    written.applied(0, {"incarnations": {}})
    written.undone(0)
    written.close()
    before = (run / "faults.jsonl").read_bytes()
    assert healing.heal_store(tmp_path) == []
    assert healing.heal_run(run).did == ()
    assert (run / "faults.jsonl").read_bytes() == before


def test_a_ledger_that_cannot_be_read_hinders_no_other_run(tmp_path, sleepers, scratch):
    broken, run = make_run(tmp_path, "broken"), make_run(tmp_path)
    (broken / "faults.jsonl").write_text('{"event"\n{"event":"applied"}\n')
    pid = sleepers.sleeper(str(Mark(NOBODY, run)))
    of_the_broken = sleepers.sleeper(str(Mark(NOBODY, broken)))
    first, second = healing.heal_store(tmp_path)
    assert first.folder == broken
    assert [line.partition(" (")[0] for line in first.did] == [f"ended process {of_the_broken}"]
    assert first.left[0].endswith(
        "line 1 is no JSON: Expecting ':' delimiter: line 1 column 9 (char 8)"
    )
    assert [line.partition(" (")[0] for line in second.did] == [f"ended process {pid}"]


def test_scratch_folders_of_the_dead_are_removed_and_only_these(scratch):
    of_the_living = scratch / f"{marks.scratch_prefix('spark')}x"
    here = str(marks.me())
    of_the_dead = scratch / of_the_living.name.replace(here, f"{os.getpid()}.1")
    of_elsewhere = scratch / f"shaketable-spark-{os.getpid()}.1.7-x"  # of a container, say
    foreign = scratch / "shaketable-notes"
    for folder in (of_the_living, of_the_dead, of_elsewhere, foreign):
        (folder / "inside").mkdir(parents=True)
    (scratch / f"{of_the_dead.name}-link").symlink_to(foreign)
    assert healing.remove_scratch() == (f"removed {of_the_dead}, whose process is gone",)
    assert sorted(path.name for path in scratch.iterdir()) == sorted(
        [of_the_living.name, of_elsewhere.name, foreign.name, f"{of_the_dead.name}-link"]
    )
    assert (foreign / "inside").exists()

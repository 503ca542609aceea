"""What a killed run left is undone, once; what is not a run's, or lives, is not touched."""

import json
import os
import signal
import tempfile

import pytest
from foreign_faults import put_in

from shaketable.harness import discovery, run_markers
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.run_markers import ProcessIdentity, RunMarker
from shaketable.harness.runtime import ended_world, healing, ledger
from shaketable.harness.terminal.heal import heal
from tests.support.left_behind import Sleepers, killed_ledger, make_run

NOBODY = ProcessIdentity(1, 1)
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
    marked, stopped = (sleepers.sleeper(str(RunMarker(NOBODY, run))) for _ in range(2))
    os.kill(stopped, signal.SIGSTOP)
    named, child = sleepers.parent(log)
    written.process("n0", named)
    reused = sleepers.sleeper(cwd=run)
    written.process("n1", reused)
    text = (run / "faults.jsonl").read_text()
    started = run_markers.identify(reused).started
    (run / "faults.jsonl").write_text(
        text.replace(
            f'"pid":{reused},"started":{started}', f'"pid":{reused},"started":{started - 9}'
        )
    )  # the ledger names one that had that pid before
    reader = sleepers.sleeper(cwd=run)
    other = sleepers.sleeper(str(RunMarker(NOBODY, make_run(tmp_path, "two"))))

    (healed,) = healing.heal_store(run.parent, depth=1)[:1]
    assert (healed.folder, healed.left) == (run, ())
    gone = {marked, stopped, named, child}
    assert {int(line.split()[2]) for line in healed.did} == gone
    assert [pid for pid in gone if run_markers.identify(pid) is not None] == []
    assert run_markers.identify(reused) is not None
    assert run_markers.identify(reader) is not None

    assert healing.heal_run(run).did == ()
    assert run_markers.identify(other) is None  # of the same store: it was healed, too


def test_a_run_whose_harness_lives_is_not_touched(tmp_path, sleepers, scratch):
    run = make_run(tmp_path)
    with run_markers.working_in(run):  # we are its harness
        pid = sleepers.sleeper(os.environ[run_markers.VARIABLE])
        assert [each.is_alive for each in healing.heal_store(tmp_path)] == [True]
        with pytest.raises(UsageError, match="its harness is at work"):
            healing.heal_run(run)
    assert run_markers.VARIABLE not in os.environ
    assert healing.heal_store(tmp_path)[0].is_alive  # by the mark, though nobody holds the lock
    assert run_markers.identify(pid) is not None

    written = ledger.Ledger(run / "faults.jsonl", lambda: 0)
    with pytest.raises(UsageError, match="its harness is at work"):  # by the ledger
        healing.heal_run(run)
    written.close()


DOOR = """
    async def undo(self, undo, world):
        print("a plug-in may say something")
        await world.resume("n0", 3)
        if Path({jammed!r}).exists():
            raise RuntimeError("the door is jammed")
        with open({undone!r}, "a") as file:
            file.write(f"{{undo['door']}}\\n")
"""
"""Somebody's fault that does something outside of the group."""


@pytest.fixture(autouse=True)
def _found_anew():
    """No plug-in of one test is known in the next one."""
    yield
    discovery.clear_caches()


def test_open_faults_are_undone_by_what_the_ledger_says_newest_first(
    tmp_path, scratch, monkeypatch
):
    jammed, undone = tmp_path / "jammed", tmp_path / "undone"
    door = DOOR.format(jammed=str(jammed), undone=str(undone))
    put_in(tmp_path / "site", monkeypatch, {"foreign": door})
    run = make_run(tmp_path)
    written = killed_ledger(run)
    for number in range(3):
        written.applying(number, "foreign", {})
        written.applied(number, {"door": number})
    written.undone(1)
    written.applying(3, "foreign", {}, {"door": 3})
    path = run / "faults.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event":"applied","fau')  # torn

    jammed.touch()
    healed = healing.heal_run(run)
    assert healed.did == ()
    assert [line.partition(": ")[2] for line in healed.left] == [
        f"RuntimeError: the door is jammed. {by_hand(run, number)}" for number in (3, 2, 0)
    ]
    jammed.unlink()
    healed = healing.heal_store(tmp_path)[0]  # what is stuck is tried again
    assert healed.did == (
        "undid, by what it gave ahead, fault 3 (foreign)",
        "undid fault 2 (foreign)",
        "undid fault 0 (foreign)",
    )
    assert undone.read_text() == "3\n2\n0\n"
    assert healing.heal_store(tmp_path) == []
    assert ledger.read(path).is_healed
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()][-4:] == [
        "undone",
        "undone",
        "undone",
        "healed",
    ]


def by_hand(run, number):
    return f"When it was looked after by hand: ./shaketable heal {run} --forget {number}"


def test_the_command_forgets_a_fault_of_one_run_that_it_cannot_undo(tmp_path, scratch, monkeypatch):
    put_in(tmp_path / "site", monkeypatch, {"gone": "raise SystemExit('not here')"})
    run = make_run(tmp_path / "store")
    written = killed_ledger(run)
    written.applying(4, "gone", {"door": "north"})
    assert heal(run) == ExitCode.HARNESS
    with pytest.raises(UsageError, match="--forget needs the folder of one run"):
        heal(tmp_path / "store", forget=[4])
    assert heal(run, forget=[4]) == ExitCode.VALID
    assert heal(tmp_path / "store") == ExitCode.VALID


def test_an_undo_of_somebody_elses_can_neither_hang_nor_end_a_heal(tmp_path, scratch, monkeypatch):
    monkeypatch.setattr(ended_world, "START_TIMEOUT_S", 16.0)
    monkeypatch.setattr(ended_world, "UNDO_TIMEOUT_S", 4.0)
    child = tmp_path / "child"
    faults = {
        "blocks": f"""
    async def undo(self, undo, world):
        child = subprocess.Popen(["sleep", "300"])
        Path({str(child)!r}).write_text(str(child.pid))
        time.sleep(300)  # no timeout of trio's ends that
""",
        "ends": """
    async def undo(self, undo, world):
        sys.exit(3)
""",
        "dies": """
    async def undo(self, undo, world):
        os._exit(4)
""",
        "broken": "raise SystemExit('not here')",
    }
    put_in(tmp_path / "site", monkeypatch, faults)
    for number, name in enumerate(("blocks", "ends", "dies", "broken")):
        written = killed_ledger(make_run(tmp_path, f"{number}-{name}"))
        written.applying(number, name, {}, {"door": 1})
    written = killed_ledger(make_run(tmp_path, "9-ours"))
    written.applying(0, "pause", {"victims": ["n1"]})
    written.applied(0, {"incarnations": {"n1": 4}})

    healed = healing.heal_store(tmp_path)
    told = [each.left[0].partition(" is not undone: ")[2] for each in healed[:4]]
    assert [line.partition(". When it was")[0] for line in told] == [
        "not within 4 s",
        "SystemExit: 3",
        "its undo ended Python (exit status 4)",
        "HarnessError: cannot load the plug-in broken = foreign_broken:PLUGIN: "
        "SystemExit: not here",
    ]
    assert healed[4].did == ("undid fault 0 (pause)",)
    assert run_markers.identify(int(child.read_text())) is None


def test_what_a_fault_did_that_was_killed_half_way_is_not_known_unless_it_is_ours(
    tmp_path, scratch, monkeypatch
):
    """A plug-in without an undo ahead stays in the list until somebody looked after it."""
    undone = tmp_path / "undone"
    door = DOOR.format(jammed="", undone=str(undone))
    put_in(tmp_path / "site", monkeypatch, {"foreign": door})
    run = make_run(tmp_path)
    written = killed_ledger(run)
    written.applying(4, "foreign", {"door": "north"})
    written.applying(5, "pause", {"victims": ["n1"]})
    for _ in range(2):
        healed = healing.heal_run(run)
        assert [line.partition(" is not undone: ")[0] for line in healed.left] == [
            "fault 4 (foreign)"
        ]
        assert "it is not known what it did" in healed.left[0]
        assert '{"door": "north"}' in healed.left[0]
        assert healed.left[0].endswith(by_hand(run, 4))
    assert not undone.exists()
    with pytest.raises(UsageError, match="no fault 5 of this run is open"):
        healing.heal_run(run, forget=[5])
    healed = healing.heal_run(run, forget=[4])
    assert healed.left == ()
    assert healed.did == ('forgot fault 4 (foreign), as requested: its plan: {"door": "north"}',)
    assert healing.heal_run(run).did == ()
    assert healing.heal_store(tmp_path) == []


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
    pid = sleepers.sleeper(str(RunMarker(NOBODY, run)))
    of_the_broken = sleepers.sleeper(str(RunMarker(NOBODY, broken)))
    first, second = healing.heal_store(tmp_path)
    assert first.folder == broken
    assert [line.partition(" (")[0] for line in first.did] == [f"ended process {of_the_broken}"]
    assert first.left[0].endswith(
        "line 1 is no JSON: Expecting ':' delimiter: line 1 column 9 (char 8)"
    )
    assert [line.partition(" (")[0] for line in second.did] == [f"ended process {pid}"]


def test_scratch_folders_of_the_dead_are_removed_and_only_these(scratch):
    of_the_living = scratch / f"{run_markers.scratch_prefix('spark')}x"
    here = str(run_markers.this_process())
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

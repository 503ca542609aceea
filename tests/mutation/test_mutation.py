"""The mutation tool itself: what it makes, how it draws, what its judges say of known mutants."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation import children, reach
from tests.mutation.__main__ import draw, waiting
from tests.mutation.journal import Journal
from tests.mutation.mutants import Mutant, mutants_in, mutants_of, sample
from tests.mutation.operators import OPERATORS, Source
from tests.mutation.reach import Reach
from tests.mutation.stages import JUDGES, Limits, Outcome, campaigns, simulation, unit_tests
from tests.mutation.summary import summarise
from tests.mutation.trees import ROOT, copy_of_tree

EVERY_OPERATOR = '''
class Log:
    def append(self, batch, at, sizes):
        """if batch: docstrings are left alone."""
        assert at < 7
        if batch and not at:
            self.log.info("forgotten by nobody")
            return False
        if at + 1 <= self.end:
            raise DiskFull(f"{at - 1} is full")
        self.end = max(at, self.end)
        self.file.sync()
        self.index.add(batch[at:])
        return self.end

    def __repr__(self):
        return f"{self.end + 1}" if self.end < 7 else ""
'''


def changes(text: str) -> dict[str, list[str]]:
    """Return the replacements of each operator in a file."""
    found: dict[str, list[str]] = {name: [] for name in OPERATORS}
    for mutant in mutants_in(Source("log.py", text), "raft", Counter()):
        found[mutant.operator].append(mutant.new)
    return found


def test_every_operator_makes_what_it_says_and_leaves_the_unseen_alone() -> None:
    found = changes(EVERY_OPERATOR)
    full = '__import__("shaketable.system.store.disk", fromlist=["DiskFailed"]).DiskFailed'
    assert found == {
        "drop-condition": ["((not at))", "((batch))"],
        "drop-guard": ["False", "False"],
        "drop-not": ["bool(at)"],
        "swap-comparison": ["((at + 1) < (self.end))"],
        "off-by-one": ["(at)", "(at) + 1"],
        "swap-min-max": ["min"],
        "skip-sync": ["pass"],
        "skip-call": ["pass"],
        "skip-assignment": ["pass"],
        "wrong-answer": ["True"],
        "wrong-error": [full + '(f"{at - 1} is full")'],
    }


def test_every_mutant_of_the_sample_is_python_and_differs() -> None:
    mutants = draw(["raft", "store", "broker", "client", "master_slave"], 65, seed=1)
    assert len(mutants) == len({one.id for one in mutants}) == 325
    for mutant in mutants:
        text = mutant.text(ROOT)
        compile(text, mutant.path, "exec")
        assert text != (ROOT / mutant.path).read_text()


def test_a_sample_takes_all_operators_and_files_in_turn() -> None:
    mutants = mutants_of(ROOT, "raft")
    drawn = sample(mutants, 40, seed=3)
    assert [one.id for one in drawn] == [one.id for one in sample(mutants[::-1], 40, seed=3)]
    assert {one.id for one in drawn} != {one.id for one in sample(mutants, 40, seed=4)}
    of_operator = Counter(one.operator for one in drawn)
    assert max(of_operator.values()) - min(of_operator.values()) <= 1
    assert len({one.path for one in drawn}) == len({one.path for one in mutants})


def test_a_sample_keeps_what_is_judged_when_the_source_changes() -> None:
    mutants = mutants_of(ROOT, "master_slave")
    before = {one.id for one in sample(mutants, 30, seed=1)}
    changed = [one for one in mutants if one.path != mutants[0].path]
    after = sample(changed, 30, seed=1, judged=before)
    assert {one.id for one in after} >= {one.id for one in changed} & before
    assert len({one.id for one in after}) == 30


def test_ids_outlive_edits_elsewhere_in_the_file() -> None:
    moved = "import os\n\n\ndef other(x):\n    return x\n" + EVERY_OPERATOR
    before = {one.id for one in mutants_in(Source("log.py", EVERY_OPERATOR), "raft", Counter())}
    assert before == {one.id for one in mutants_in(Source("log.py", moved), "raft", Counter())}
    changed = EVERY_OPERATOR.replace("at + 1 <= self.end", "at + 1 <= self.begin")
    after = {one.id for one in mutants_in(Source("log.py", changed), "raft", Counter())}
    assert len(before - after) == 3  # what stands in that line, and only that


def known(path: str, operator: str, old: str) -> Mutant:
    """Return the one mutant of a line that says `old`."""
    package = path.split("/")[1]
    found = [
        one
        for one in mutants_of(ROOT, package)
        if one.path == path and one.operator == operator and old in one.diff(ROOT).split("\n")[0]
    ]
    assert len(found) == 1, f"{path} {old}: {[one.diff(ROOT) for one in found]}"
    return found[0]


def reached_by(mutant: Mutant, everybody: list[str]) -> Reach:
    """Say that all of these execute the mutant's line."""
    lines = {str(line): everybody for line in range(mutant.line, mutant.last_line + 1)}
    return Reach({mutant.path: lines}, dict.fromkeys(everybody, 0.0))


def test_what_a_seed_and_a_test_execute_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with copy_of_tree() as tree:
        by_seed = reach.of_seeds(tree, "core", 1, 10.0)
    voted = {line for line, who in by_seed.lines["system/raft/member_state.py"].items() if who}
    assert len(voted) > 50
    assert by_seed.of("system/raft/core.py", 1, 10_000) == ["1"]
    monkeypatch.setattr(reach, "TEST_FOLDERS", ("tests/raft/test_one_leader_two_terms.py",))
    with copy_of_tree() as tree:
        by_test = reach.of_tests(tree)
    found = by_test.of("system/raft/core.py", 1, 10_000)
    assert found
    assert all(one.startswith("tests/raft/test_one_leader_two_terms.py::test_") for one in found)


def test_simulation_finds_a_vote_that_nobody_saves() -> None:
    mutant = known("system/raft/ledger.py", "skip-call", "self._write(SaveState(term, voted_for))")
    reach = reached_by(mutant, ["1", "2", "3"])
    with copy_of_tree(ROOT, {mutant.path: mutant.text(ROOT)}) as tree:
        found = simulation("core", mutant, tree, reach, Limits(virtual_s=10), [])
    assert found.outcome == "killed"
    assert "crash" not in found.by


def test_what_changes_nothing_survives_and_a_deeper_look_goes_on_behind_it() -> None:
    mutant = known("system/raft/ledger.py", "skip-call", "self._write(SaveState(term, voted_for))")
    reach = reached_by(mutant, ["1", "2", "3"])
    with copy_of_tree(ROOT) as tree:  # without the change, as an equivalent one would be
        found = simulation("core", mutant, tree, reach, Limits(1, virtual_s=10), [])
        assert (found.outcome, found.tried) == ("survived", ["1"])
        deeper = simulation("core", mutant, tree, reach, Limits(2, virtual_s=10), found.tried)
    assert (deeper.outcome, deeper.tried) == ("survived", ["1", "2"])


def test_a_unit_test_finds_a_crc_that_is_not_looked_at() -> None:
    mutant = next(
        one
        for one in mutants_of(ROOT, "store")
        if one.path == "system/store/entry.py"
        and one.operator == "drop-guard"
        and "crc" in one.diff(ROOT)
    )
    reach = reached_by(mutant, ["tests/store/test_store_entries.py"])
    with copy_of_tree(ROOT, {mutant.path: mutant.text(ROOT)}) as tree:
        found = unit_tests(mutant, tree, reach)
    assert found.outcome == "killed"
    assert found.by.startswith("tests/store/test_store_entries.py::")


def test_a_simulated_campaign_finds_commits_that_nobody_sends() -> None:
    mutant = known("system/client/group.py", "skip-call", "RequestCode.UPDATE_CONSUMER_OFFSET")
    reach = reached_by(mutant, ["group-offsets.1"])
    with copy_of_tree(ROOT, {mutant.path: mutant.text(ROOT)}) as tree:
        found = campaigns(mutant, tree, reach, Limits(), [])
    assert found.outcome == "killed"
    assert found.tried == ["group-offsets.1"]
    assert found.by.startswith("group-offsets.1: INVALID")


def test_what_nobody_executes_is_not_run() -> None:
    mutant = mutants_of(ROOT, "master_slave")[0]
    nobody = Reach({}, {})
    assert unit_tests(mutant, ROOT, nobody).outcome == "not-reached"
    assert simulation("core", mutant, ROOT, nobody, Limits(), []).outcome == "not-reached"
    assert campaigns(mutant, ROOT, nobody, Limits(), []).outcome == "not-reached"


def test_programs_that_turn_in_circles_are_ended_and_named() -> None:
    ended = children.run([sys.executable, "-c", "while True: pass"], ROOT, cpu_s=1)
    assert ended.code is None


def test_a_journal_that_was_cut_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).note("m1", "core", Outcome("survived", "", ["1", "2"], 3.0), "tree")
    with path.open("a") as file:
        file.write('{"mutant": "m2", "jud')
    Journal(path).note("m3", "unit", Outcome("killed", "a test"), "tree")
    journal = Journal(path)
    assert journal.of("m3", "unit") == Outcome("killed", "a test")
    assert journal.of("m1", "core") == Outcome("survived", "", ["1", "2"], 3.0)
    assert journal.of("m2", "core") is None


def test_a_compact_journal_says_the_same_in_fewer_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.note("m2", "node", Outcome("survived", "", ["1"], 1.0), "tree")
    journal.note("m1", "core", Outcome("not-reached"), "tree")
    journal.note("m2", "node", Outcome("killed", "an invariant", ["1", "2"], 2.0), "tree")
    journal.compact()
    assert len(path.read_text().splitlines()) == 2
    assert Journal(path).known == journal.known


def test_what_was_missed_on_another_tree_is_asked_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.note("found", "core", Outcome("killed"), "before")
    journal.note("missed", "core", Outcome("survived", "", ["1"]), "before")
    journal.note("unreached", "core", Outcome("not-reached"), "before")
    journal.note("asked", "core", Outcome("survived", "", ["1"]), "now")
    again = Journal(tmp_path / "journal.jsonl")
    again.forget_missed("now")
    assert set(again.known) == {("found", "core"), ("asked", "core")}
    again.compact()
    assert Journal(tmp_path / "journal.jsonl").known == journal.known, "not asked yet: still known"


def test_who_is_found_meanwhile_is_not_asked_about_again(tmp_path: Path) -> None:
    mutants = sample(mutants_of(ROOT, "master_slave"), 2, seed=1)
    journal = Journal(tmp_path / "journal.jsonl")
    asked = []
    for name, mutant in waiting(mutants, ["core", "node"], Limits(), journal, True):
        asked.append((name, mutant.id))
        outcome = Outcome("killed" if mutant is mutants[0] else "survived")
        journal.note(mutant.id, name, outcome, "tree")
    first, second = (one.id for one in mutants)
    assert asked == [("core", first), ("core", second), ("node", second)]


def test_the_summary_names_survivors_without_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = tmp_path / "survivors.toml"
    reasons.write_text("")
    monkeypatch.setattr("tests.mutation.summary.REASONS", reasons)
    mutants = sample(mutants_of(ROOT, "master_slave"), 3, seed=1)
    journal = Journal(tmp_path / "journal.jsonl")
    for mutant, outcome in zip(mutants, ("killed", "survived", "timeout"), strict=True):
        for judge in JUDGES:
            journal.note(mutant.id, judge, Outcome(outcome), "tree")
    assert summarise(mutants, journal) == 1
    printed = capsys.readouterr().out
    row = next(line.split() for line in printed.splitlines() if line.startswith("all"))
    assert row[1:] == ["3", "2/3", "2/3", "2/3", "2", "0", "2/3", "1", "0", "0", "67%"]
    journal.known.pop((mutants[1].id, "campaigns"))  # not asked yet: open, and not found
    summarise(mutants, journal)
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if "all" in line[:3])
    assert row[1:] == ["3", "2/3", "2/3", "2/2", "2", "0", "2/3", "0", "1", "0", "67%"]
    assert f"{mutants[1].id} {mutants[1].path}:{mutants[1].line}" in printed
    assert "NO REASON GIVEN" in printed
    journal.note(mutants[1].id, "campaigns", Outcome("noticed", "log.1: UNKNOWN"), "tree")
    assert summarise(mutants, journal) == 0
    assert "is noticed by log.1: UNKNOWN" in capsys.readouterr().out

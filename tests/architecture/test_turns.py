"""Long tests take turns: each has one, a run says which it was, and who names tests gets them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import turns
from tests.support.turns import (
    ALL,
    ALWAYS,
    LONG_S,
    TABLE,
    TURNS,
    read_table,
    table_of,
    turn_of_commit,
)  # fmt: skip

ROOT = Path(__file__).parents[2]
SHARE_MAX = 1.5
"""So much longer than the average the longest turn may take."""
TESTS = "def test_long():\n    pass\n\n\ndef test_short():\n    pass\n"


def test_the_table_names_tests_that_there_are() -> None:
    texts: dict[str, str] = {}
    for name in read_table(TABLE.read_text()):
        file, _, rest = name.partition("::")
        text = texts.setdefault(file, (ROOT / file).read_text())
        function = rest.partition("[")[0].rpartition("::")[2]
        assert re.search(rf"\bdef {function}\(", text), f"{name}: measure long tests anew"


def test_what_is_always_run_is_in_no_turn() -> None:
    assert not [name for name in read_table(TABLE.read_text()) if name.startswith(ALWAYS)]
    assert all((ROOT / name.removesuffix("::")).is_file() for name in ALWAYS)


def test_turns_take_equally_long() -> None:
    seconds = dict.fromkeys(range(1, TURNS + 1), 0.0)
    taken = read_table(TABLE.read_text())
    for name, turn in turns.turns().items():
        seconds[turn] += taken[name]
    assert max(seconds.values()) < SHARE_MAX * sum(seconds.values()) / TURNS


def test_each_long_test_has_one_turn_and_others_are_always_run() -> None:
    name = next(iter(turns.turns()))
    waiting = [turns.waits_for_another(name, str(turn)) for turn in range(1, TURNS + 1)]
    assert waiting.count(False) == 1
    assert not turns.waits_for_another(name, ALL)
    assert not any(turns.waits_for_another("t.py::test", str(n)) for n in range(1, TURNS + 1))


def test_a_table_is_read_as_it_was_written() -> None:
    seconds = {"a.py::t[x y]": 9.0, "b.py::t": LONG_S, "c.py::t": 20.25, f"{ALWAYS[0]}t[1]": 60.0}
    assert table_of(seconds) == "20.2 c.py::t\n9.0 a.py::t[x y]\n"
    assert read_table(table_of(seconds)) == {"c.py::t": 20.2, "a.py::t[x y]": 9.0}


def test_without_git_it_is_the_first_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert turn_of_commit(tmp_path) == 1
    monkeypatch.setenv("PATH", "")
    assert turn_of_commit(ROOT) == 1


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of two tests, the first of which takes long and has the first turn."""
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "tests" / "test_two.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    (tmp_path / "given.py").write_text(
        "from tests.support import turns\n"
        "turns.turns = lambda: {'tests/test_two.py::test_long': 1}\n"
    )
    return tmp_path


def end_of(tree: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "given", *arguments],
        cwd=tree, env=os.environ | {"PYTHONPATH": f"{tree}:{ROOT}"},
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        ([], 2), (["--turn", "2"], 1), (["-n", "2", "--turn", "2"], 1), (["--turn", ALL], 2),
        (["tests/test_two.py"], 2), (["-k", "long"], 1),
    ],
    ids=str,
)  # fmt: skip
def test_who_names_tests_gets_them(tree: Path, arguments: list[str], passed: int) -> None:
    out = end_of(tree, *arguments)  # there is no git: the first turn
    assert f"{passed} passed" in out
    assert ("tests that take long: part" in out) == (arguments == [] or arguments[-1] == "2")

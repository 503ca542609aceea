"""CI runs the same Hypothesis examples each time, the soak others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soaks import fresh_examples, whole_volumes
from tests.support.volume import VARIABLE, WHOLE, part_of, volume

ROOT = Path(__file__).parents[2]
CONFTEST = ROOT / "tests" / "conftest.py"
TESTS = """
from hypothesis import given, settings, strategies

@settings(max_examples=20)
@given(strategies.integers())
def test_prints_examples(number):
    print("\\nexample", number)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_examples.py").write_text(TESTS)
    return tmp_path


def examples(tree: Path, *options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *options],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(CONFTEST.parent.parent)},  # it imports tests.support
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [line for line in done.stdout.splitlines() if line.startswith("example")]


def test_ci_runs_the_same_examples(tree: Path) -> None:
    first = examples(tree)
    assert len(first) == 20
    assert examples(tree) == first


def test_the_soak_runs_others(tree: Path) -> None:
    fresh = [examples(tree, "--hypothesis-profile=fresh", f"--hypothesis-seed={n}") for n in (1, 2)]
    assert len(fresh[0]) == len(fresh[1]) == 20
    assert fresh[0] != fresh[1]


def test_a_folder_without_property_tests_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fresh_examples.main([str(tmp_path)]) == fresh_examples.NO_TESTS
    assert str(tmp_path) in capsys.readouterr().err


def test_the_whole_volume_is_more_than_ci_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (volume(100), volume(1)) == (25, 1)
    assert [*part_of(range(6))] == [0, 4]
    monkeypatch.setenv(VARIABLE, WHOLE)
    assert (volume(100), volume(1)) == (100, 1)
    assert [*part_of(range(6))] == [0, 1, 2, 3, 4, 5]


def test_tests_like_others_are_left_to_the_soak(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "--co", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += [str(ROOT / "tests" / "e2e" / "test_leadership_campaigns.py")]
    seen = {}
    for value in ("", WHOLE):
        environment = os.environ | {VARIABLE: value}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
        seen[value] = re.findall(r"::test_leadership\w+\[(\w+)\]", done.stdout)
    assert seen == {"": ["process"], WHOLE: ["process", "sim"]}


def test_files_of_volume_are_found(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text("from tests.support.volume import volume\n")
    (tmp_path / "test_others.py").write_text("import os\n")
    assert whole_volumes.tests_of_volume([tmp_path]) == [tmp_path / "test_cases.py"]
    assert whole_volumes.main([str(tmp_path / "nowhere")]) == whole_volumes.NO_TESTS

"""A skip must be told, and must fail where everything is required."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent.parent / "conftest.py"

TESTS = """
import pytest

def test_runs():
    pass

def test_needs_maven():
    pytest.skip("no Maven here")

@pytest.mark.e2e
def test_slow():
    raise AssertionError("left out by --fast")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_skipping.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = e2e: slow\n")
    return tmp_path


def run_pytest(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(CONFTEST.parent.parent)},  # it imports tests.support
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_skip_is_listed_with_its_reason(tree: Path) -> None:
    done = run_pytest(tree, "--fast")
    assert done.returncode == 0
    assert "skipped, and why" in done.stdout
    assert "1  no Maven here" in done.stdout
    assert "1 passed, 1 skipped, 1 deselected" in done.stdout.splitlines()[-1]


def test_a_skip_fails_where_all_is_required(tree: Path) -> None:
    done = run_pytest(tree, "--fast", "--require-all")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "--require-all asks for all" in done.stdout


def test_nothing_skipped_passes_where_all_is_required(tree: Path) -> None:
    done = run_pytest(tree, "--fast", "--require-all", "-k", "runs")
    assert done.returncode == 0
    assert "skipped: nothing" in done.stdout


def test_without_fast_the_slow_ones_run(tree: Path) -> None:
    assert run_pytest(tree).returncode == pytest.ExitCode.TESTS_FAILED

"""Machine code of kernels is not used beyond the sources that it was compiled from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shaketable.harness.compiled import delete_stale_cache


def test_a_change_to_any_kernel_forgets_what_was_kept(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text("import callee")
    (tmp_path / "callee.py").write_text("one = 1")
    kept = tmp_path / "__pycache__" / "caller.run-1.py311.nbi"
    kept.parent.mkdir()
    kept.write_bytes(b"code")
    assert delete_stale_cache(tmp_path)
    assert not kept.exists()
    kept.write_bytes(b"code")
    assert not delete_stale_cache(tmp_path)
    assert kept.exists()
    (tmp_path / "callee.py").write_text("one = 2")
    assert delete_stale_cache(tmp_path)
    assert not kept.exists()


def test_a_folder_without_a_place_for_code_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("one = 1")
    assert delete_stale_cache(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kernel.py"]


KERNELS = """
from shaketable.harness.compiled import bare, compiled

@bare
def doubled(value):
    return value + value

@compiled
def first(value):
    return doubled(value) + 1

@compiled
def second(value):
    return doubled(value) + 2
"""


@pytest.mark.parametrize("no_bytecode", ["", "1"])
def test_the_next_process_loads_kernels_and_their_parts(tmp_path: Path, no_bytecode: str) -> None:
    (tmp_path / "kernels_of_test.py").write_text(KERNELS)
    assert calls(tmp_path, no_bytecode, "k.first(20), k.first.stats") == ["41", "misses 1"]
    assert calls(tmp_path, no_bytecode, "k.first(20), k.first.stats") == ["41", "misses 0"]
    seen = calls(tmp_path, no_bytecode, "k.second(20), k.doubled.stats")
    assert seen == ["42", "misses 0"], "a part that one kernel compiled is loaded for another one"


def calls(folder: Path, no_bytecode: str, expression: str) -> list[str]:
    """Return the value and the cache misses that a process of its own printed."""
    program = (
        f"import kernels_of_test as k; value, stats = {expression};"
        "print(value); print('misses', sum(stats.cache_misses.values()))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(folder), *sys.path)),
        "PYTHONDONTWRITEBYTECODE": no_bytecode,
        "NUMBA_CACHE_DIR": "",
    }
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return ended.stdout.split("\n")[:2]

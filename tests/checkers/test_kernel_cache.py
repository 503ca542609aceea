"""Machine code of kernels is kept for the next process, as long as it is that of their sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shaketable.checkers.engine import compiling
from shaketable.checkers.kernels import search, search_trace, search_windows
from shaketable.harness import discovery
from shaketable.harness.compiled import delete_stale_cache, is_cached
from shaketable.harness.judging.engines import LOCAL, Engine
from tests.support.checker_histories import job
from tests.support.model_fuzz import compare


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


KERNELS_OF_THE_SEARCH = (
    search.run, search_windows.start_refutation, search_trace.trace, search_trace.name_operations,
)  # fmt: skip


def test_what_is_compiled_ahead_is_all_that_searches_call() -> None:
    compiling.compile_kernels()
    ahead = [kernel.signatures for kernel in KERNELS_OF_THE_SEARCH]  # type: ignore[attr-defined]
    assert [len(signatures) for signatures in ahead] == [1, 1, 1, 1]
    assert all(map(is_cached, KERNELS_OF_THE_SEARCH))
    for model in ("cas-register", "counter", "fifo-queue", "mutex"):
        for seed in range(12):
            compare(discovery.get("models", model), seed)
    assert ahead == [kernel.signatures for kernel in KERNELS_OF_THE_SEARCH]  # type: ignore[attr-defined]


def test_a_fresh_process_compiles_ahead_and_does_not_search_as_python() -> None:
    program = (
        "from shaketable.checkers.engine import compiling; compiling.compile_kernels();"
        "print(len(compiling.run.signatures))"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["1"]


def test_nothing_is_compiled_ahead_where_all_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_cached", lambda _: True)
    ahead = compiling.Compiling()
    assert not ahead.is_running()
    said: list[str] = []
    ahead.wait(said.append)
    assert not said


def test_a_check_says_that_it_waits_for_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "is_cached", lambda _: False)
    steps: list[str] = []
    engine = Engine(LOCAL, "")
    engine.compile_ahead()
    assert engine.run(job(tmp_path, [], []), steps.append) == []
    assert steps[0].startswith("compiling the kernels of the search")
    engine.stop()


def test_what_compiles_ends_with_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_cached", lambda _: False)
    ahead = compiling.Compiling()
    assert ahead.is_running()
    ahead.stop()
    assert not ahead.is_running()

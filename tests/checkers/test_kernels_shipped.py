"""Kernels in the zip file that executors get: unpacked once a machine, machine code and all."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from shaketable.checkers.kernels import log_match
from shaketable.checkers.spark.session import _ship

EXECUTOR = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from shaketable.checkers import stats
from shaketable.checkers.kernels import log_match
assert stats.__file__.startswith(sys.argv[1]), "the packages are those of the zip file"
print(log_match.__file__)
key, value = np.array([1, 1, 2]), np.array([5, 5, 6])
slots, following, first = (np.full(n, log_match.NOWHERE, dtype=np.int32) for n in (8, 3, 3))
log_match.hash_values(key, value, slots, following, first)
hits = sum(log_match.hash_values.stats.cache_hits.values())
print(first.tolist(), "kept" if hits else "compiled")
"""
FIRST = [0, 0, 2]
"""What the kernel finds there: the first row with the same key and value."""


def executor(archive: Path, cwd: Path | None = None, **more: str) -> list[str]:
    told = subprocess.run(
        [sys.executable, "-c", EXECUTOR, str(archive)],
        env=os.environ | more, cwd=cwd, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return told.stdout.splitlines()


@pytest.fixture
def archive(tmp_path):
    key = np.array([1, 1, 2])
    slots, following, first = (np.full(n, log_match.NOWHERE, dtype=np.int32) for n in (8, 3, 3))
    log_match.hash_values(key, key, slots, following, first)  # so that there is machine code
    return _ship(tmp_path)


def test_executors_share_the_machine_code_of_the_driver(archive, tmp_path):
    cache = tmp_path / "cache"
    module, answer = executor(archive, XDG_CACHE_HOME=str(cache))
    (folder,) = (cache / "shaketable").iterdir()
    assert Path(module) == folder / "log_match.py"
    assert answer == f"{FIRST} kept"
    before = sorted(path.stat().st_mtime_ns for path in folder.rglob("*.py"))
    assert executor(archive, XDG_CACHE_HOME=str(cache)) == [module, answer]
    assert sorted(path.stat().st_mtime_ns for path in folder.rglob("*.py")) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing half made"


def test_other_kernels_have_another_folder(archive, tmp_path):
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            more = b"\n# changed\n" if name == "shaketable/checkers/kernels/log_match.py" else b""
            new.writestr(name, old.read(name) + more)
    cache = tmp_path / "cache"
    ours, _ = executor(archive, XDG_CACHE_HOME=str(cache))
    theirs, answer = executor(changed, XDG_CACHE_HOME=str(cache))
    assert Path(ours).parent != Path(theirs).parent
    assert answer.endswith("compiled"), "machine code of other sources is not used"


def test_where_no_folder_can_be_written_kernels_run_from_the_zip_file(archive, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    (tmp_path / "shaketable").write_text("a file where its own folder would be")
    module, answer = executor(archive, cwd=tmp_path, XDG_CACHE_HOME=str(blocked))
    assert module == f"{archive}/shaketable/checkers/kernels/log_match.py"
    assert answer.startswith(f"{FIRST}")

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import reports


@pytest.mark.parametrize("kind", ["clean_run", "invalid_run", "interrupted_run", "empty_run"])
def test_each_kind_of_run_gets_both_files(kind: str, request: pytest.FixtureRequest) -> None:
    sample = request.getfixturevalue(kind)
    folder: Path = getattr(sample, "folder", sample)
    written = reports.write(folder)
    assert [path.name for path in written] == ["report.html", "junit.xml"]
    if keep := os.environ.get("SHAKETABLE_KEEP_SAMPLES"):
        shutil.copytree(folder, Path(keep) / kind, dirs_exist_ok=True)

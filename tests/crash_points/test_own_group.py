"""Our own group, by the command's defaults: a point of it is tried, and breaks nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shaketable.harness import cli
from shaketable.reports.crash_points_page import Tries

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("fuse")]


def test_a_point_of_our_own_group(tmp_path: Path) -> None:
    given = ("--point", "fsync:9", "--operations", "40", "--seed", "1")
    assert cli.run(["crash-points", *given, "--store", str(tmp_path)]) == 0
    (folder,) = (tmp_path / "crash-points").iterdir()
    tries = msgspec.json.decode((folder / "crash-points.json").read_bytes(), type=Tries)
    assert [(one.name, one.result) for one in tries.tried] == [("fsync:9", "VALID")]
    assert tries.workload == "log"
    assert tries.tried[0].lost_bytes > 0

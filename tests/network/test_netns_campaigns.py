"""Real groups in network namespaces: shaken by packets, and gone with a harness that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.network import enter

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).parent.parent / "support" / "namespace_programs.py"
PATIENCE_S = 60.0


def campaign(fault: str, store: Path) -> subprocess.Popen[str]:
    argv = enter.new([sys.executable, str(PROGRAM), "run_a_campaign", fault, str(store)])
    return subprocess.Popen(argv, text=True, stdout=subprocess.PIPE)


def told(process: subprocess.Popen[str]) -> Iterator[list]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def namespaces() -> dict[str, set[int]]:
    """The living processes by their network namespace."""
    found: dict[str, set[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.setdefault(str((path / "ns/net").readlink()), set()).add(int(path.name))
    return found


def wait_until_gone(spaces: set[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := {space: pids for space, pids in namespaces().items() if space in spaces}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_group_in_namespaces_is_shaken_by_lost_packets_and_agrees_after_it(tmp_path) -> None:
    before = namespaces().keys()
    with campaign("loss", tmp_path) as process:
        lines, during = [], set()
        for line in told(process):
            lines.append(line)
            if line[0] == "began":
                during = namespaces().keys() - before
    assert len(during) >= 4, "the harness's, and one for each node"
    *faults, (_, status, applied, bit, problems) = lines
    assert (status, problems) == ("complete", [])
    assert applied == bit >= 1, faults
    wait_until_gone(during)


def test_a_harness_killed_during_a_fault_of_links_leaves_nothing(tmp_path) -> None:
    before = namespaces().keys()
    with campaign("half-open", tmp_path) as process:
        assert next(told(process)) == ["began", "half-open"]
        during = namespaces().keys() - before
        process.kill()
    assert len(during) >= 4
    wait_until_gone(during)

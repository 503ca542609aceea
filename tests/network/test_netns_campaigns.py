"""Real groups in network namespaces: shaken by packets, and gone with a harness that is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from shaketable.harness import namespaces

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).parent.parent / "support" / "namespace_programs.py"
PATIENCE_S = 60.0


def campaign(fault: str, store: Path) -> subprocess.Popen[str]:
    argv = namespaces.new([sys.executable, str(PROGRAM), "run_a_campaign", fault, str(store)])
    return subprocess.Popen(argv, text=True, stdout=subprocess.PIPE)


def told(process: subprocess.Popen[str]) -> Iterator[list]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def living() -> Iterator[tuple[int, int, str]]:
    """The living processes: each one's id, its parent's, and its network namespace."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                yield int(path.name), int(parent), str((path / "ns/net").readlink())


def held_namespaces(process: subprocess.Popen[str], opened: ExitStack) -> set[str]:
    """The network namespaces of its own and below it, kept until `opened` closes.

    As long as one is kept, no other test's namespace can get the same number.
    """
    family, every = {process.pid}, list(living())
    while more := {pid for pid, parent, _ in every if parent in family} - family:
        family |= more
    outside = str(Path("/proc/self/ns/net").readlink())
    found = set()
    for pid, _, space in every:
        if pid in family and space != outside and space not in found:
            with suppress(OSError):
                kept = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
                opened.callback(os.close, kept)
                found.add(f"net:[{os.fstat(kept).st_ino}]")
    return found


def wait_until_gone(spaces: set[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := [each for each in living() if each[2] in spaces]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_group_in_namespaces_is_shaken_by_lost_packets_and_agrees_after_it(tmp_path) -> None:
    with ExitStack() as opened:
        with campaign("loss", tmp_path) as process:
            lines, during = [], set()
            for line in told(process):
                lines.append(line)
                if line[0] == "began":
                    during |= held_namespaces(process, opened)
        assert len(during) >= 4, "the harness's, and one for each node"
        *faults, (_, status, applied, bit, problems) = lines
        assert (status, problems) == ("complete", [])
        idle = [evidence for kind, _, *evidence in faults if kind == "idle"]
        assert applied == bit + len(idle), faults
        assert bit >= 1, faults
        # By chance a short fault meets a few packets and loses none; it says so.
        assert all(text.startswith("0 packets lost") for [text] in idle), faults
        wait_until_gone(during)


def test_a_harness_killed_during_a_fault_of_links_leaves_nothing(tmp_path) -> None:
    with ExitStack() as opened:
        with campaign("half-open", tmp_path) as process:
            assert next(told(process)) == ["began", "half-open"]
            during = held_namespaces(process, opened)
            process.kill()
        assert len(during) >= 4
        wait_until_gone(during)

"""Whole campaigns through the command line: real nodes, real faults, Spark, the report.

One clean system that must be judged valid, one planted bug that must be judged invalid
when it is shaken and valid when it is not, and a harness that is killed half way.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shaketable.harness import discovery
from shaketable.harness.history.schema import EVENTS, OPERATIONS
from tests.support.shaketable_runs import shaketable
from tests.support.volume import whole

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

GONE_WITHIN_S = 5
START_WAIT_S = 60
MUTANT = ("--mutant", "ack-before-quorum")
PACED = ("--rate", "250")
"""Clients as fast as they can take both cores, and show nothing more."""


def processes_naming(text: str) -> list[str]:
    """Command lines of living processes that name `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError, IndexError):
            continue
        line = b" ".join(words).decode(errors="replace")
        if entry.name.isdigit() and text in line and state != "Z":
            found.append(f"{entry.name} {line}")
    return found


def children_of(pid: int) -> list[int]:
    """The process' children, and theirs."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == pid:
            found += [int(entry.name), *children_of(int(entry.name))]
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def clean_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("clean") / "store"
    done = shaketable("run", "--store", store, "--seed", "e2e", "--time-limit", "18", *PACED)
    assert done.returncode == 0, done.stdout + done.stderr
    (store / "printed.txt").write_text(done.stdout + done.stderr)
    return store


def test_a_clean_run_is_valid_and_says_so(clean_run: Path) -> None:
    printed = (clean_run / "printed.txt").read_text()
    run = (clean_run / "latest").resolve()
    results = json.loads((run / "results.json").read_text())
    assert results["valid"] is True
    combined = discovery.get("workloads", "combined").checkers
    expected = {"invariants", *combined, "run-as-planned"}
    assert {
        name: checker["valid"] for name, checker in results["checkers"].items()
    } == dict.fromkeys(expected, True)
    assert "VALID" in printed
    assert "--seed e2e" in printed
    assert str(run / "report.html") in printed
    assert "took effect" in printed
    assert processes_naming(str(clean_run)) == []


def test_the_store_holds_both_tables_and_every_file(clean_run: Path) -> None:
    run = (clean_run / "latest").resolve()
    for name in (
        "campaign.toml",
        "schedule.json",
        "history.jsonl",
        "results.json",
        "report.html",
        "junit.xml",
        "shaketable.log",
        "faults.jsonl",
        "drain.json",
        "nodes/n0/node.log",
    ):
        assert (run / name).stat().st_size > 0, name
    events = pq.read_table(run / "history" / "events.parquet")
    operations = pq.read_table(run / "history" / "operations")
    assert events.schema.names == EVENTS.names
    assert operations.schema.names == OPERATIONS.names
    lines = (run / "history.jsonl").read_text().splitlines()
    assert len(lines) == events.num_rows
    assert operations.num_rows > 1000
    assert (clean_run / "quick" / "latest").resolve() == run


def test_unsynced_writes_vanished_in_the_kills(clean_run: Path) -> None:
    """A kill is a power loss: without that a durability campaign proves little."""
    conf = (clean_run / "latest" / "nodes" / "n0" / "broker.conf").read_text()
    assert "shaketableDisk=volatile" in conf


def test_analyze_judges_the_stored_run_again_and_alike(clean_run: Path) -> None:
    run = (clean_run / "latest").resolve()
    before = json.loads((run / "results.json").read_text())
    done = shaketable("analyze", run, "--engine", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    after = json.loads((run / "results.json").read_text())
    for name, checker in before["checkers"].items():
        assert after["checkers"][name]["counts"] == checker["counts"], name
        assert after["checkers"][name]["valid"] == checker["valid"], name


def test_a_history_cut_in_the_middle_is_told_and_not_trusted(
    clean_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "cut"
    subprocess.run(["cp", "-a", str((clean_run / "latest").resolve()), str(run)], check=True)
    segment = max((run / "history" / "segments").glob("*.seg"), key=lambda at: at.stat().st_size)
    os.truncate(segment, segment.stat().st_size // 2)
    done = shaketable("analyze", run, "--engine", "local")
    assert done.returncode == 2, done.stdout + done.stderr
    assert segment.name in done.stdout.replace("\n", " ")
    assert "UNKNOWN" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_node_files_that_are_gone_are_no_loss(clean_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "slim"
    subprocess.run(["cp", "-a", str((clean_run / "latest").resolve()), str(run)], check=True)
    shutil.rmtree(run / "nodes")
    done = shaketable("analyze", run, "--engine", "local")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "lost-append" not in done.stdout


@pytest.mark.parametrize(
    ("faults", "seed"),
    [pytest.param("partition", "1", marks=whole), ("kill,pause,partition", "2")],
)
def test_a_planted_bug_is_found_and_shown(tmp_path: Path, faults: str, seed: str) -> None:
    store = tmp_path / "store"
    shaken = ("--faults", faults, "--seed", seed, "--time-limit", "22", *PACED)
    done = shaketable("run", "--store", store, *MUTANT, *shaken, "--engine", "local")
    assert done.returncode == 1, done.stdout + done.stderr
    run = (store / "latest").resolve()
    durability = json.loads((run / "results.json").read_text())["checkers"]["durability"]
    assert durability["valid"] is False
    lost = [found for found in durability["findings"] if found["kind"] == "lost-append"]
    assert lost
    for finding in lost:
        assert finding["offset"] is not None
        assert finding["details"]["acknowledged_by"] in {"n0", "n1", "n2"}
        assert set(finding["details"]["instead"]) == {"n0", "n1", "n2"}
        assert finding["details"]["faults"], "under which fault, or just before which"
    page = (run / "report.html").read_text()
    assert "INVALID" in page
    assert "lost-append" in page
    assert f"op {lost[0]['operations'][0]}" in page
    assert "<failure" in (run / "junit.xml").read_text()


def test_the_planted_bug_hides_without_shaking(tmp_path: Path) -> None:
    done = shaketable(
        "run", "--store", tmp_path / "s", *MUTANT, *PACED, "--faults", "none", "--time-limit", "10",
        "--engine", "local", "--workload", "log",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    store = tmp_path / "store"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "shaketable",
            "run",
            *("--store", str(store), "--workload", "log", "--faults", "pause", "--seed", "2"),
            *("--time-limit", "60"),
            *("--fault-duration-min", "20", "--fault-duration-max", "25"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    try:
        yield process, store
    finally:
        process.kill()
        process.wait()


def test_a_killed_harness_leaves_no_process_and_a_history_that_is_judged(
    running: tuple[subprocess.Popen[bytes], Path],
) -> None:
    process, store = running
    deadline = time.monotonic() + START_WAIT_S
    ledger = store / "latest" / "faults.jsonl"
    while not (ledger.exists() and '"applied"' in ledger.read_text()):
        assert time.monotonic() < deadline, "no fault was applied"
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(1)
    children = children_of(process.pid)
    states = [
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children
    ]
    assert "T" in states, "a node is paused"
    assert len(children) >= 5, "three nodes, two workers"
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + GONE_WITHIN_S
    while alive := [pid for pid in children if is_alive(pid)]:
        assert time.monotonic() < deadline, f"still alive: {alive}"
        time.sleep(0.05)
    assert processes_naming(str(store)) == []
    done = shaketable("analyze", (store / "latest").resolve(), "--engine", "local")
    assert done.returncode == 2, done.stdout + done.stderr
    results = json.loads((store / "latest" / "results.json").read_text())
    assert results["checkers"]["linearizable-log"]["valid"] is True
    assert results["checkers"]["linearizable-log"]["counts"]["judged"] > 500
    assert (store / "latest" / "report.html").exists()
    segment = next((store / "latest" / "history" / "segments").glob("worker-*.seg"))
    os.truncate(segment, segment.stat().st_size // 2)
    done = shaketable("analyze", (store / "latest").resolve(), "--engine", "local")
    assert done.returncode == 2, "a cut recording accuses nobody"
    assert "before the kill" in done.stdout.replace("\n", " ").replace("  ", " ")


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = shaketable("run", "--store", tmp_path / "s", "--base-port", str(port))
    assert done.returncode == 255
    assert f"{port}" in done.stderr
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr

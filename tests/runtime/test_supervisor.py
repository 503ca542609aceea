"""Whole runs on a fake group of real processes: phases, faults that take effect, nothing left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fake_campaign
import msgspec
import pytest

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history.export import export, fault_windows
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.runtime.ledger import open_faults
from shaketable.harness.runtime.observer import PHASES

pytestmark = pytest.mark.e2e

PROGRAM = Path(fake_campaign.__file__)
GONE_WITHIN_S = 5
PATIENCE_S = 60


@pytest.fixture
def tape(monkeypatch):
    fake_campaign.patch(monkeypatch.setattr)
    return fake_campaign.Tape()


def processes_of(folder: Path) -> list[str]:
    """The living processes that name this folder: nodes and (by their parent) workers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(folder) in command:
                found.append(f"{entry.name}: {command}")
    return found


def facts(folder: RunFolder) -> dict:
    return json.loads(folder.run_json.read_bytes())


def test_a_run_goes_through_its_phases_and_every_fault_takes_effect(tape, tmp_path):
    result = fake_campaign.run_fake(tmp_path, tape, nodes=3)
    assert (result.status, result.is_drained, result.problems) == ("complete", True, ())
    assert [name for name, *_ in tape.named("phase_started")] == list(PHASES)
    assert result.faults_planned >= 3
    assert result.faults.applied == result.faults.took_effect == result.faults_planned
    assert result.leader_changes >= 3, "each kind of fault struck the leader first"
    assert len(tape.named("on_drain")) == 1
    assert result.counts.ok > 50
    assert tape.last_counts == result.counts

    known = facts(result.folder)
    assert {*known["faults_done"]} == {
        "planned",
        "applied",
        "took_effect",
        "failed",
        "stuck",
        "left_out",
    }
    assert known["status"] == "complete"
    assert [phase["name"] for phase in known["phases"]] == list(PHASES)
    spans = [(phase["start_ns"], phase["stop_ns"]) for phase in known["phases"]]
    assert spans == sorted(spans)
    assert None not in known["segments"].values()
    statuses = json.loads(result.folder.drain_json.read_bytes())["nodes"]
    assert sorted(statuses) == ["n0", "n1", "n2"]
    indexes = {s[name] for s in statuses.values() for name in ("committed_index", "end_index")}
    assert len(indexes) == 1
    rows = [json.loads(line) for line in result.folder.status_jsonl.read_text().splitlines()]
    assert {row["role"] for row in rows} >= {"leader", "follower", None}

    exported = export(result.folder)
    assert exported.incomplete is None
    windows = fault_windows(exported.events, exported.end_ns)
    assert [window.took_effect for window in windows] == [True] * result.faults_planned
    assert open_faults(result.folder.faults_jsonl) == ()
    assert processes_of(tmp_path) == []


def test_a_node_that_ends_at_start_is_one_clear_error(tape, tmp_path):
    with pytest.raises(HarnessError) as caught:
        fake_campaign.run_fake(tmp_path, tape, mutant="crash")
    assert "ended by itself with exit status 1; its last line: fake node: told to" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)
    (path,) = (tmp_path / "fake").iterdir()
    assert facts(RunFolder(path))["status"] == "failed"
    assert processes_of(tmp_path) == []


def test_a_port_in_use_is_said_before_anything_starts(tape, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HarnessError, match=f"port {port} for the clients of node n0 is in use"):
            fake_campaign.run_fake(tmp_path, tape, base_port=port)
    assert tape.heard == []
    assert list(tmp_path.glob("fake/*/nodes/*/node.log")) == []


class Running:
    """A campaign in a process of its own, and what its observer hears."""

    def __init__(self, store: Path, **options: object) -> None:
        self.store = store
        words = [f"{key}={json.dumps(value)}" for key, value in options.items()]
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(store), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def until(self, *begin: object) -> list:
        for line in self.process.stdout:
            heard = json.loads(line)
            if heard[: len(begin)] == list(begin):
                return heard
        raise AssertionError(f"never heard {begin}: {self.process.stderr.read()}")

    @property
    def folder(self) -> RunFolder:
        (path,) = (self.store / "fake").iterdir()
        return RunFolder(path)

    def children(self) -> list[int]:
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in task.read_text().split()]


def state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return stat.rpartition(")")[2].split()[0]


def is_gone(pid: int) -> bool:
    return state(pid) in ("Z", "X")


def test_sigkill_of_the_harness_while_a_node_is_paused_leaves_no_process_and_a_history(tmp_path):
    with Running(tmp_path, faults=["pause"], time_limit_s=60.0, fault_duration_max_s=50.0,
                 fault_duration_min_s=40.0) as running:  # fmt: skip
        running.until("fault_started")
        pids = running.children()
        assert len(pids) >= 5, "three nodes and two workers"
        states = [
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids
        ]
        assert "T" in states
        time.sleep(0.3)  # some operations under the fault
        running.process.kill()
        running.process.wait()
        deadline = time.monotonic() + GONE_WITHIN_S
        while not all(map(is_gone, pids)) and time.monotonic() < deadline:
            time.sleep(0.02)
        left = [pid for pid in pids if not is_gone(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert left == []
        assert facts(running.folder)["status"] == "running"
        exported = export(running.folder)
        assert exported.operations.num_rows > 20
        (window,) = exported.windows
        assert not window.took_effect, "never probed"
        assert [fault.name for fault in open_faults(running.folder.faults_jsonl)] == ["pause"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_undoes_the_faults_and_the_run_is_still_whole(tmp_path, number):
    with Running(tmp_path, faults=["partition"], time_limit_s=60.0, fault_duration_max_s=50.0,
                 fault_duration_min_s=40.0) as running:  # fmt: skip
        running.until("fault_started")
        running.process.send_signal(number)
        stopped = running.until("fault_stopped")
        assert stopped[1:3] == [0, "partition"]
        running.until("on_drain")
        assert running.until("result") == ["result", "interrupted", True]
        assert running.process.wait() == 0
        assert facts(running.folder)["status"] == "interrupted"
        assert export(running.folder).incomplete is None
        assert open_faults(running.folder.faults_jsonl) == ()
        assert processes_of(tmp_path) == []


def test_a_second_ctrl_c_ends_everything_at_once(tmp_path):
    with Running(tmp_path, faults=["pause"], time_limit_s=60.0, fault_duration_max_s=50.0,
                 fault_duration_min_s=40.0) as running:  # fmt: skip
        running.until("fault_started")
        running.process.send_signal(signal.SIGINT)
        running.until("note")
        running.process.send_signal(signal.SIGINT)
        assert running.until("result")[:2] == ["result", "interrupted"]
        assert running.process.wait() == 0
        assert processes_of(tmp_path) == []
        assert msgspec.json.decode(running.folder.run_json.read_bytes())["status"] == "interrupted"

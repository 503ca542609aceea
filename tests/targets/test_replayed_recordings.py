"""A node that a campaign lets record is replayed step by step by the command's own seam."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
import trio

from shaketable.harness.contracts.errors import DefiniteError, UsageError
from shaketable.harness.contracts.plugins import Address, NodeLayout
from shaketable.harness.contracts.simulation import Step
from shaketable.harness.runtime.processes import ports
from shaketable.harness.targets.dledger import PLUGIN, RECORDING
from shaketable.harness.targets.simulators import SAME_OUTPUTS, DLedgerSimulator

pytestmark = pytest.mark.e2e

STOP_WAIT_S = 30
PATIENCE_S = 60
APPENDS = 20


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """What a group of one node recorded while it was written to."""
    client_port, peer_port = ports.find_free(2)
    at = Address(ports.HOST, client_port)
    options = {"record": "inputs", "data_file_bytes": 1 << 16, "index_file_bytes": 1 << 13}
    layout = NodeLayout("n0", tmp_path, at, Address(ports.HOST, peer_port), {}, options)
    launch = PLUGIN.prepare(layout)
    launch.write_files(tmp_path)
    with (tmp_path / "node.log").open("wb") as log:
        process = subprocess.Popen(launch.argv, cwd=tmp_path, stdout=log, stderr=log)
    try:
        trio.run(write, at)
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_WAIT_S)
    finally:
        process.kill()
        process.wait(STOP_WAIT_S)
    return tmp_path / RECORDING


async def write(at: Address) -> None:
    client = PLUGIN.client({"n0": at}, 5.0)
    with trio.fail_after(PATIENCE_S):
        done = 0
        while done < APPENDS:
            try:
                await client.append("t/0", done)
                done += 1
            except DefiniteError:  # it has not started yet
                await trio.sleep(0.1)
    await client.aclose()


def test_it_does_again_what_the_node_did(recording: Path) -> None:
    steps: list[Step] = []
    assert DLedgerSimulator().replay_file(recording, steps.append) is None
    assert len(steps) > APPENDS
    assert [step.at_ms for step in steps] == sorted(step.at_ms for step in steps)
    assert any("requests of connection" in step.what for step in steps)


def test_a_recording_that_says_otherwise_is_told_at_the_step(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other code than the node's: here one whose effects have another digest."""
    monkeypatch.setattr(
        "shaketable.system.sim.recording.digest_of", lambda effects: b"something else"
    )
    found = DLedgerSimulator().replay_file(recording, lambda step: None)
    assert found is not None
    assert found.invariant == SAME_OUTPUTS
    assert "step" in found.message


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.recording"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(UsageError, match=r"x\.recording"):
        DLedgerSimulator().replay_file(path, lambda step: None)
    with pytest.raises(UsageError, match="cannot read"):
        DLedgerSimulator().replay_file(tmp_path / "absent", lambda step: None)

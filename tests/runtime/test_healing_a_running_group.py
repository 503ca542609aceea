"""Heal puts a group back that runs already: the right one, and only if it can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shaketable.harness import described, discovery
from shaketable.harness.runtime import healing
from tests.support.left_behind import killed_ledger, make_run

FILE = """
[targets.kvs]
nodes = ["10.0.0.1:7000", "10.0.0.2:7000"]
client = "client.py"
[targets.kvs.commands]
kill = ["true"]
start = ["sh", "-c", "echo {id} >> started"]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose harness was killed while it killed n0, and the file of its group here."""
    run = make_run(tmp_path)
    (run / "campaign.toml").write_text('target = "kvs"\nworld = "existing"\nnodes = 2\n')
    nodes = ["10.0.0.1:7000", "10.0.0.2:7000"]
    (run / "run.json").write_text(json.dumps({"group": {"nodes": nodes}}))
    killed_ledger(run).applying(0, "kill", {"victims": ["n0"]})
    describe(tmp_path, FILE, monkeypatch)
    return run


def describe(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / described.FILE_NAME).write_text(text)
    monkeypatch.chdir(folder)
    discovery.clear_caches()


def test_a_fault_is_undone_that_was_being_applied(run: Path, tmp_path: Path) -> None:
    healed = healing.heal_run(run)
    assert healed.did == ("undid, whatever it did: fault 0 (kill)",)
    assert healed.left == ()
    assert sorted((tmp_path / "started").read_text().split()) == ["n0", "n1"]
    assert healing.heal_run(run).did == ()


@pytest.mark.parametrize(
    "other",
    [
        FILE.replace("10.0.0.1", "10.9.9.9"),
        '[targets.kvs]\nclient = "client.py"\nstart = ["server"]\n',
        "",
    ],
)
def test_another_group_of_that_name_is_left_alone(
    run: Path, tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    describe(elsewhere, other, monkeypatch)
    healed = healing.heal_run(run)
    assert healed.did == ()
    [line] = healed.left
    assert "heal it where the run's shaketable.toml is" in line
    assert not list(tmp_path.rglob("started"))
    [did] = healing.heal_run(run, forget={0}).did
    assert did.startswith("forgot fault 0 (kill)")

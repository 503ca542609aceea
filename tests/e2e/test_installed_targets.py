"""Targets that are installed on demand: installed from their registry, shaken, found valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shaketable.harness.installing.cache import cache_folder, is_installed
from tests.support.shaketable_runs import shaketable

pytestmark = pytest.mark.e2e

USUAL = "--time-limit 10"
RARE = "--faults kill --victims one --fault-duration-min 3 --nemesis-interval 5 --time-limit 14"
"""For a group that takes some seconds to elect: with a fault every two, little is acknowledged."""


@pytest.mark.parametrize(
    ("target", "version", "checker", "leader", "faults"),
    [
        ("pysyncobj", "0.3.17", "linearizable-register", " leads in term ", USUAL),
        ("etcd", "3.4.23", "linearizable-register", " leads in term ", USUAL),
        ("nats", "2.9.10", "linearizable-log", "not known who led", RARE),
    ],
)
def test_a_target_is_installed_and_keeps_its_promises(
    target: str, version: str, checker: str, leader: str, faults: str, tmp_path: Path
) -> None:
    installed = shaketable("install", target)  # it is there: tests/support/foreign_programs.py
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert is_installed(cache_folder(), target, version)
    options = "--engine local --rate 200 --steady 1 --seed 1 --scenarios none"
    chosen = ("--option", f"version={version}")
    done = shaketable(
        "run", "--target", target, *options.split(), *faults.split(), *chosen, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "store" / "latest"
    assert "Traceback" not in (run / "shaketable.log").read_text()
    assert f'option = ["version={version}"]' in (run / "campaign.toml").read_text()
    checkers = json.loads((run / "results.json").read_text())["checkers"]
    assert checkers[checker]["valid"] is True
    if faults is USUAL:  # else its campaign file says how to repeat it
        assert f"--option version={version}" in done.stdout
    assert leader in done.stdout
    assert "Traceback" not in (run / "nodes" / "n0" / "node.log").read_text()

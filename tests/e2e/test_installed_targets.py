"""Targets that are installed on demand: installed from their registry, shaken, found valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shaketable.harness.installing import cache_folder, is_installed
from tests.support.further_targets import FURTHER, skip_further
from tests.support.shaketable_runs import shaketable

pytestmark = pytest.mark.e2e

USUAL = "--time-limit 10"
RARE = (
    "--faults kill --victims one --fault-duration-min 12 --fault-duration-max 13"
    " --nemesis-interval 2 --time-limit 18"
)
"""For one that takes some seconds to elect (nats: 4 to 9): it is to serve while one is down."""
LONG = (
    "--faults pause --victims leader --fault-duration-min 14 --fault-duration-max 15"
    " --time-limit 18"
)
"""For one that misses its leader after seconds: its successor is to acknowledge under the fault.

It is not killed: a broker of rocketmq loses messages (docs/findings/rocketmq-killed-broker.md).
"""

KILL = "--faults kill --victims leader --time-limit 60"
"""For one that needs half a minute for that, by its own pace, and more until all are in sync."""


@pytest.mark.parametrize(
    ("target", "options", "checker", "leader", "faults"),
    [
        ("pysyncobj", "version=0.3.17", "linearizable-register", " leads in term ", USUAL),
        ("etcd", "version=3.4.23", "linearizable-register", " leads in term ", USUAL),
        ("nats", "version=2.9.10", "linearizable-log", "unknown: no node reported one", RARE),
        (
            "galera",
            "version=10.11.19",
            "linearizable-register",
            "unknown: no node reported one",
            RARE,
        ),
        ("rabbitmq", "version=3.10.8", "total-queue", "unknown: no node reported one", RARE),
        ("kafka", "version=4.3.1", "linearizable-log", " leads in term 1", LONG),
        ("rocketmq", "version=5.3.3", "linearizable-log", " term 2", LONG),
        ("rocketmq-controller", "version=5.3.3", "linearizable-log", "leader      changed", KILL),
    ],
)
def test_a_target_is_installed_and_keeps_its_promises(
    target: str, options: str, checker: str, leader: str, faults: str, tmp_path: Path
) -> None:
    version = options.rpartition("version=")[2]
    if target in FURTHER and not is_installed(cache_folder(), target, version):
        skip_further(target)
    installed = shaketable("install", target)  # it is there: tests/support/foreign_programs.py
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert is_installed(cache_folder(), target, version)
    steady_s = 20 if faults is KILL else 1
    pace = f"--engine local --rate 200 --steady {steady_s} --seed 1 --scenarios none"
    chosen = ("--option", options)
    done = shaketable(
        "run", "--target", target, *pace.split(), *faults.split(), *chosen, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "store" / "latest"
    assert "Traceback" not in (run / "shaketable.log").read_text()
    listed = json.dumps(options.split(","))
    assert f"option = {listed}" in (run / "campaign.toml").read_text()
    checkers = json.loads((run / "results.json").read_text())["checkers"]
    assert checkers[checker]["valid"] is True
    if faults is USUAL:  # else its campaign file says how to repeat it
        assert f"--option {options}" in done.stdout
    assert leader in done.stdout
    assert "Traceback" not in (run / "nodes" / "n0" / "node.log").read_text()

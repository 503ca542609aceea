"""Servers that are not ours lose power: one that syncs keeps its promise, another is found out."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shaketable.harness.contracts.verdict import ExitCode

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("fuse")]

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = "--engine local --steady 1 --nemesis-interval 0.5"
WAIT_S = 60.0
PAGE = (EXAMPLES.parent / "docs" / "your-own-system.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^    \./shaketable run (.*)$", re.MULTILINE)


def copied(example: str, folder: Path) -> Path:
    here = folder / example
    shutil.copytree(EXAMPLES / example, here, ignore=shutil.ignore_patterns("store", "__pycache__"))
    return here


def command(options: str) -> list[str]:
    return [sys.executable, "-P", "-m", "shaketable", "run", *f"{RUN} {options}".split()]


def run(here: Path, options: str) -> tuple[int, str, dict[str, Any]]:
    done = subprocess.run(
        command(options), cwd=here, capture_output=True, text=True, timeout=380, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    stored = here / "store" / "latest"
    assert "Traceback" not in (stored / "shaketable.log").read_text()
    return done.returncode, done.stdout, json.loads((stored / "results.json").read_text())


def test_what_was_synced_survives(tmp_path: Path) -> None:
    here = copied("kvs", tmp_path)
    options = "--target kvs-disk --faults power --nodes 1 --rate 60 --time-limit 10 --seed 1"
    code, said, results = run(here, options)
    assert code == ExitCode.VALID, said
    assert results["valid"] is True


def test_what_was_not_synced_is_missed_as_the_page_says(tmp_path: Path) -> None:
    here = copied("kvs", tmp_path)
    [shown] = [line for line in COMMAND.findall(PAGE) if "--target kvs-unsynced " in line]
    code, said, results = run(here, f"{shown} --seed 1")
    assert code == ExitCode.INVALID, said
    assert results["checkers"]["linearizable-register"]["valid"] is False
    assert "unsynced bytes lost: n0" in said


TABLE = """
[targets.{name}]
extends = "{base}"
disk = "volatile"
promises = {{ durable_under = ["process", "network", "power"] }}
arguments = [{arguments}]
"""


def on_disk(example: str, program: str, folder: Path, arguments: str = "") -> Path:
    """Return a copy of an example with a target `on-disk`, whose data is on a volatile disk."""
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    here = copied(example, folder)
    with (here / "shaketable.toml").open("a") as file:
        file.write(TABLE.format(name="on-disk", base=example, arguments=arguments))
    return here


@pytest.mark.parametrize(
    ("how_often", "code"), [("always", ExitCode.VALID), ("everysec", ExitCode.INVALID)]
)
def test_redis_keeps_what_it_syncs(how_often: str, code: ExitCode, tmp_path: Path) -> None:
    here = on_disk("redis", "redis-server", tmp_path, f'"--appendfsync", "{how_often}"')
    options = "--target on-disk --faults power --nodes 1 --rate 60 --time-limit 10 --seed 1"
    ended, said, _ = run(here, options)
    assert ended == code, said


def test_etcd_survives_kills_and_power_losses(tmp_path: Path) -> None:
    here = on_disk("http", "etcd", tmp_path)
    options = "--target on-disk --faults kill,power --rate 60 --time-limit 12 --seed 2"
    ended, said, _ = run(here, options)
    assert ended == ExitCode.VALID, said


def test_a_killed_harness_leaves_no_mount_and_no_process(tmp_path: Path) -> None:
    here = copied("kvs", tmp_path)
    options = "--target kvs-disk --faults power --time-limit 60 --seed 1 --store store"
    with subprocess.Popen(command(options), cwd=here, stdout=subprocess.DEVNULL) as harness:
        end_s = time.monotonic() + WAIT_S
        while not (ledgers := [*here.rglob("faults.jsonl")]) or "n2-disk" not in (
            ledgers[0].read_text()
        ):
            assert time.monotonic() < end_s, "no disk was started"
            time.sleep(0.05)
        pids = disks_of(ledgers[0])
        harness.send_signal(signal.SIGKILL)
    healed = subprocess.run(
        [sys.executable, "-P", "-m", "shaketable", "heal"], cwd=here, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert len(pids) == 3
    assert not [pid for pid in pids if is_disk(pid)]
    for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            assert str(here) not in mounts.read_text(), mounts
        except OSError:
            continue


def disks_of(ledger: Path) -> list[int]:
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    return [line["pid"] for line in lines if str(line.get("node", "")).endswith("-disk")]


def is_disk(pid: int) -> bool:
    try:
        return b"volatile_disk" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_machine_without_fuse_says_so(tmp_path: Path) -> None:
    here = copied("kvs", tmp_path)
    hidden = [
        "unshare",
        "-Urm" if os.geteuid() else "-m",
        "sh",
        "-c",
        'mount --bind /dev/null /dev/fuse && exec "$@"',
        "sh",
    ]
    options = "--target kvs-disk --faults power --time-limit 5 --seed 1"
    done = subprocess.run(
        [*hidden, *command(options)], cwd=here, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.USAGE, done.stdout + done.stderr
    [line] = [line for line in done.stderr.splitlines() if "power" in line]
    assert "fault power is not available" in line
    assert "FUSE" in line

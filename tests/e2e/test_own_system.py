"""docs/your-own-system.md, word for word: a group of one's own, found valid and found out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.testing.campaigns import CampaignRun, run_campaign
from tests.support.shaketable_runs import shaketable

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "kvs"
PAGE = (ROOT / "docs" / "your-own-system.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^    \./shaketable (run .*)$", re.MULTILINE)
LINES_MAX = 30
"""What a user writes at most."""


def test_the_page_shows_the_files_of_the_example() -> None:
    shown = dict(BLOCK.findall(PAGE))
    assert set(shown) == {"shaketable.toml", "client.py"}
    for name, text in shown.items():
        assert (EXAMPLE / name).read_text(encoding="utf-8").startswith(text), name
    written = [line for text in shown.values() for line in text.splitlines() if line.strip()]
    assert len(written) <= LINES_MAX


def copied(folder: Path) -> Path:
    for name in ("shaketable.toml", "client.py", "server.py"):
        shutil.copy(EXAMPLE / name, folder)
    return folder


def test_its_command_runs_and_ends_as_it_says(tmp_path: Path) -> None:
    copied(tmp_path)
    [command] = [each for each in COMMAND.findall(PAGE) if "--target kvs-lazy " in each]
    done = shaketable(*command.split(), "--engine", "local", "--seed", "1", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    results = json.loads((tmp_path / "store" / "latest" / "results.json").read_text())
    assert results["valid"] is False
    assert results["workload"] == "register"
    assert "no known leader" in done.stdout
    assert "Traceback" not in (tmp_path / "store" / "latest" / "shaketable.log").read_text()


def test_its_test_passes_for_a_server_that_keeps_its_promises(tmp_path: Path) -> None:
    copied(tmp_path)
    [shown] = re.findall(r"^```python\n(def test_.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    test = tmp_path / "test_kvs.py"
    test.write_text(shown.replace("    shake(", '    shake(engine="local", seed="1", '))
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_new_writes_three_files_once(tmp_path: Path) -> None:
    given = ("new", "target", "my-kv", "--operations", "set", "--start", "./kv '{id}'")
    done = shaketable(*given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = ["my_kv_client.py", "shaketable.toml", "test_my_kv.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all(name in done.stdout for name in names)
    listed = shaketable("list", "targets", cwd=tmp_path).stdout
    assert "my-kv" in listed
    again = shaketable(*given, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (254, "")
    assert "shaketable.toml already describes 'my-kv'" in again.stderr
    other = shaketable("new", "target", "b", "--leader", "http://{client}/status", cwd=tmp_path)
    assert other.returncode == 0, other.stderr
    (tmp_path / "server.py").touch()
    begun = "python3 server.py --id={id}"
    done = shaketable("new", "target", "c", "--operations", "bank", "--start", begun, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "shaketable.toml").read_text().partition("[targets.c]")[2]
    assert 'start = ["python3", "{here}/server.py", "--id={id}"]' in table
    refused = shaketable("run", "--target", "b", "-w", "counter", cwd=tmp_path)
    assert refused.returncode == 254
    assert "clients of b keep no counters" in refused.stderr


def test_from_python_a_wrong_option_is_one_line(tmp_path: Path) -> None:
    copied(tmp_path)
    with pytest.raises(UsageError, match=r"unknown target 'kv'; did you mean 'kvs'\?"):
        run_campaign(target="kv", folder=tmp_path, store=tmp_path / "store")
    with pytest.raises(UsageError, match=r"--no-such-option"):
        run_campaign(no_such_option=True, folder=tmp_path, store=tmp_path / "store")


def test_a_run_that_is_not_valid_fails_the_test_with_its_summary(
    shake: Callable[..., CampaignRun], tmp_path: Path
) -> None:
    options = {"workload": "read-write-register", "engine": "local", "time_limit": "3s"}
    options |= {"steady": 1, "faults": ["kill"], "world": "sim", "seed": "1"}
    with pytest.raises(pytest.fail.Exception, match=r"^UNKNOWN  vacuity") as failed:
        shake(target="dledger", rate=1, **options)
    assert "operations" in str(failed.value)
    assert (tmp_path / "store" / "latest" / "results.json").exists()

"""docs/your-own-system.md, word for word: a group of one's own, found valid and found out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "kvs"
PAGE = (ROOT / "docs" / "your-own-system.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^    \./shaketable (run .*)$", re.MULTILINE)
LINES_MAX = 30
"""What a user writes at most."""


def shaketable(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "shaketable", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_the_page_shows_the_files_of_the_example() -> None:
    shown = dict(BLOCK.findall(PAGE))
    assert set(shown) == {"shaketable.toml", "client.py"}
    for name, text in shown.items():
        assert (EXAMPLE / name).read_text(encoding="utf-8").startswith(text), name
    written = [line for text in shown.values() for line in text.splitlines() if line.strip()]
    assert len(written) <= LINES_MAX


@pytest.mark.parametrize(("target", "code"), [("kvs", 0), ("kvs-lazy", 1)])
def test_its_commands_run_and_end_as_it_says(tmp_path: Path, target: str, code: int) -> None:
    for name in ("shaketable.toml", "client.py", "server.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    [command] = [each for each in COMMAND.findall(PAGE) if f"--target {target} " in each]
    extra = ("--engine", "local", "--faults", "kill,pause,partition", "--seed", "1")
    done = shaketable(tmp_path, *command.split(), *extra)
    assert done.returncode == code, done.stdout + done.stderr
    results = json.loads((tmp_path / "store" / "latest" / "results.json").read_text())
    assert results["valid"] is (code == 0)
    assert results["workload"] == "register"
    assert "no known leader" in done.stdout
    assert "Traceback" not in (tmp_path / "store" / "latest" / "shaketable.log").read_text()


def test_new_writes_three_files_once(tmp_path: Path) -> None:
    given = ("new", "target", "my-kv", "--operations", "set", "--start", "./kv '{id}'")
    done = shaketable(tmp_path, *given)
    assert done.returncode == 0, done.stderr
    names = ["my_kv_client.py", "shaketable.toml", "test_my_kv.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all(name in done.stdout for name in names)
    listed = shaketable(tmp_path, "list", "targets").stdout
    assert "my-kv" in listed
    again = shaketable(tmp_path, *given)
    assert (again.returncode, again.stdout) == (254, "")
    assert "shaketable.toml describes 'my-kv' already" in again.stderr
    other = shaketable(tmp_path, "new", "target", "b", "--leader", "http://{client}/status")
    assert other.returncode == 0, other.stderr
    refused = shaketable(tmp_path, "run", "--target", "b", "-w", "counter")
    assert refused.returncode == 254
    assert "clients of b keep no counters" in refused.stderr

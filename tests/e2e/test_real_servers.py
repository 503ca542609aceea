"""The examples against real servers: a promise that is kept, and one that is found broken.

The weak targets are found out by what a fault does for certain: a node that is cut off does not
hear of writes, and what a killed process had not yet given to the kernel is gone.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.shaketable_runs import shaketable
from tests.support.volume import whole

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LINES_MAX = 30
"""What a user writes at most: all files of an example."""
SERVERS = {
    "redis": ("redis-server", "redis-server"),
    "sql": ("mariadbd", "mariadb-server-core"),
    "http": ("etcd", "etcd-server"),
}
"""The command that an example starts, and the Debian package that has it."""
PROMISED = {"linearizable-register": True, "vacuity": True, "stats": True, "run-as-planned": True}
RUN = "--engine local --rate 100 --steady 1 --nemesis-interval 0.5 --nemesis-schedule sequence"


@pytest.mark.parametrize("example", SERVERS)
def test_an_example_is_short(example: str) -> None:
    files = [path for path in (EXAMPLES / example).iterdir() if path.is_file()]
    lines = [line for path in files for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= LINES_MAX


def run(
    example: str, target: str, options: str, folder: Path
) -> tuple[subprocess.CompletedProcess[str], dict[str, bool | None]]:
    """Run a target of an example in a copy of it; return what was printed, and the verdicts."""
    command, package = SERVERS[example]
    if shutil.which(command) is None:
        pytest.skip(f"no {command} here: Debian's package {package} has it")
    here = folder / example
    shutil.copytree(EXAMPLES / example, here, ignore=shutil.ignore_patterns("store", "__pycache__"))
    given = f"run --target {target} {RUN} {options}"
    done = shaketable(*given.split(), cwd=here)
    stored = here / "store" / "latest"
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "Traceback" not in (stored / "shaketable.log").read_text()
    checkers = json.loads((stored / "results.json").read_text())["checkers"]
    return done, {name: checker["valid"] for name, checker in checkers.items()}


@pytest.mark.parametrize(
    ("target", "faults", "options"),
    [
        # The primary alone has promises to keep: it is the leader here.
        (
            "redis",
            "kill pause partition",
            "--victims leader --fault-duration-min 1 --time-limit 12 --seed 1",
        ),
        pytest.param("sql", "kill pause", "--time-limit 8 --seed 1", marks=whole),
        ("http", "kill pause partition", "--time-limit 14 --seed 1"),
    ],
)
def test_what_a_server_promises_is_kept(
    target: str, faults: str, options: str, tmp_path: Path
) -> None:
    done, verdicts = run(target, target, options, tmp_path)
    assert done.returncode == 0, done.stdout
    assert verdicts == PROMISED
    for fault in faults.split():
        assert re.search(rf"took effect \(.*{fault} [1-9]\b", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("example", "target", "options"),
    [
        ("redis", "redis-memory", "--faults kill --victims leader --time-limit 6 --seed 1"),
        ("sql", "sql-lazy", "--faults kill --time-limit 8 --seed 1"),
        pytest.param(
            "http",
            "http-serializable",
            "--faults partition --victims one --fault-duration-min 2 --time-limit 8 --seed 1",
            marks=whole,
        ),
    ],
)
def test_what_is_not_kept_is_found(example: str, target: str, options: str, tmp_path: Path) -> None:
    done, verdicts = run(example, target, options, tmp_path)
    assert done.returncode == 1, done.stdout
    assert verdicts["linearizable-register"] is False
    # A read of what is gone is stale; a cas that met the lost value tells the same.
    told = " ".join(done.stdout.split())
    assert re.search(r"\(op \d+\) cannot take effect before it returns|is stale: ", told), told

"""Two healthy runs of real processes are alike; a planted bug ends a run when it is seen."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.shaketable_runs import shaketable

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

USUAL = ("--engine", "local", "--rate", "100", "--time-limit", "18", "--steady", "6")


def run(folder: Path, name: str, *words: str) -> str:
    """Run a campaign; return its folder."""
    done = shaketable("run", "--name", name, *USUAL, *words, cwd=folder)
    assert done.returncode in (0, 2), done.stdout + done.stderr
    return f"store/{name}/latest"


def test_two_healthy_runs_are_silent(tmp_path: Path) -> None:
    # Side by side, under the same load: half of the waiting, and as alike as two runs can be.
    with ThreadPoolExecutor(2) as threads:
        healthy, other = threads.map(
            lambda name: run(tmp_path, name, "--faults", "none"), ("healthy", "other")
        )
    alike = shaketable("compare", healthy, other, "--json", cwd=tmp_path)
    assert alike.returncode == 0, alike.stdout
    told = json.loads(alike.stdout)
    judged = [one["text"] for one in told["differences"] if one["judgement"] in ("worse", "better")]
    assert (told["result"], judged) == ("alike", [])


def test_a_planted_bug_ends_a_run_on_processes_early(tmp_path: Path) -> None:
    words = ("--mutant", "ack-before-quorum", "--stop-at-first-violation", "--time-limit", "60")
    shaken = ("--faults", "kill,partition", "--nemesis-interval", "1", "--seed", "7")
    words += ("--engine", "local")
    done = shaketable("run", "--name", "bug", *words, *shaken, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"violation( seen: log/\d+[ :]|: key \S+: )", done.stdout + done.stderr)
    facts = json.loads((tmp_path / "store" / "bug" / "latest" / "run.json").read_text())
    assert facts["status"] == "complete"
    # The nodes' acknowledgements and the histories are judged side by side; the first one counts.
    by_nodes = [seen["text"] for seen in facts["seen_live"]["first"][:1]]
    by_histories = [f"key {seen['key']}: " for seen in facts["online"]["violations"]]
    assert facts["stopped_at"].startswith((*by_nodes, *by_histories))

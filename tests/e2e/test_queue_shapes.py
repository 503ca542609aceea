"""Each workload of messages: a healthy system is valid, the planted bugs it is for are found.

The healthy one runs on processes, the bugs in the simulated world: there they are found every time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

RUN_TIMEOUT_S = 280
BUGS = [
    ("queue-delays", "delays-cut-short", "delayed-messages", "early-delivery"),
    ("queue-delays", "delays-left-at-election", "delayed-messages", "lost-message"),
    ("queue-delays", "delays-repeated-by-new-leader", "group-delivery", "duplicate-delivery"),
    ("queue-batches", "negative-tag-codes-unmatched", "tag-selection", "missed-tag"),
    ("queue-batches", "batch-half-stored", "group-delivery", "lost-message"),
    ("queue-batches", "batch-has-one-id", "group-delivery", "inconsistent-offsets"),
    ("queue-batches", "first-tag-only", "tag-selection", "missed-tag"),
    ("queue-batches", "tags-of-the-last-heartbeat", "group-delivery", "poll-skip"),
    ("queue-held", "held-pull-not-woken", "held-polls", "late-delivery"),
    ("queue-ordered", "lock-lease-in-seconds", "queue-locks", "lock-overlap"),
    ("queue-offsets", "offset-reset-ignored", "consumer-offsets", "offset-ran-ahead"),
    ("queue-offsets", "oneway-commit-of-all-queues", "consumer-offsets", "never-committed"),
    ("queue-push", "committed-before-handled", "push-delivery", "lost-message"),
    ("queue-push", "own-division-of-queues", "push-delivery", "late-delivery"),
    ("queue-push", "gone-consumers-stay", "push-delivery", "late-delivery"),
    ("queue-push-ordered", "unlocks-before-commit", "push-delivery", "out-of-order"),
]
"""Workload, planted bug, checker that finds it, kind that it finds."""


def campaign(store: Path, workload: str, *more: str) -> tuple[int, dict[str, dict[str, object]]]:
    """Run it with hand-overs of leadership; return its exit code and what the checkers said.

    Polls that wait are judged where no fault is in force: their workload has none.
    """
    done = subprocess.run(
        [
            sys.executable, "-m", "harness.cli", "run", "--workload", workload,
            "--faults", "none" if workload == "queue-held" else "transfer",
            "--concurrency", "4n", "--time-limit", "10", "--steady", "4",
            "--nemesis-interval", "1", "--seed", "shapes", "--engine", "local",
            "--store", str(store), *more,
        ],
        capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    results = (store / "latest").resolve() / "results.json"
    assert results.exists(), done.stdout + done.stderr
    return done.returncode, json.loads(results.read_text())["checkers"]


@pytest.mark.parametrize(
    "workload", [*sorted({workload for workload, *_ in BUGS}), "everything-clients"]
)
def test_a_healthy_system_is_valid(tmp_path: Path, workload: str) -> None:
    code, checkers = campaign(tmp_path, workload)
    said = {name: each["summary"] for name, each in checkers.items() if each["valid"] is not True}
    assert (code, said) == (0, {})


@pytest.mark.parametrize(("workload", "mutant", "checker", "kind"), BUGS)
def test_the_planted_bug_is_found(
    tmp_path: Path, workload: str, mutant: str, checker: str, kind: str
) -> None:
    # Between unlock and commit there is a moment, for which it takes many hand-overs of a queue.
    rate = "800" if mutant == "unlocks-before-commit" else "80"
    code, checkers = campaign(
        tmp_path, workload, "--mutant", mutant, "--world", "sim", "--rate", rate
    )
    assert code == 1
    assert checkers[checker]["counts"].get(kind, 0) > 0, checkers[checker]["summary"]

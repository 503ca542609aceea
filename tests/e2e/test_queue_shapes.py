"""Each workload of messages: a healthy system is valid, the planted bugs it is for are found.

Bugs run in the simulated world: there they are found every time. So does the healthy system, by the
same campaigns; on processes it runs those workloads that do together what all the others do.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from shaketable.harness.cli import run
from tests.support.shaketable_runs import shaketable
from tests.support.volume import PARTS, whole

pytestmark = pytest.mark.e2e

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
    ("queue-keys", "unique-keys-are-keys", "found-by-key", "unwanted-key"),
    ("queue-operators", "read-only-topics-written", "refusals", "not-refused"),
    ("queue-operators", "refused-as-system-error", "invariants", "invariant-broken"),
    ("queue-operators", "left-without-word", "refusals", "not-refused"),
    ("queue-ordered", "lock-lease-in-seconds", "queue-locks", "lock-overlap"),
    ("queue-offsets", "offset-reset-ignored", "consumer-offsets", "offset-ran-ahead"),
    ("queue-offsets", "oneway-commit-of-all-queues", "consumer-offsets", "never-committed"),
    ("queue-push", "committed-before-handled", "push-delivery", "lost-message"),
    ("queue-push", "own-division-of-queues", "push-delivery", "late-delivery"),
    ("queue-push", "gone-consumers-stay", "push-delivery", "late-delivery"),
    ("queue-push", "sent-back-nowhere", "retried-messages", "late-delivery"),
    ("queue-push", "overlapping-shares", "queue-owners", "two-owners"),
    ("queue-push-ordered", "unlocks-before-commit", "push-delivery", "out-of-order"),
    ("queue-push-ordered", "reads-without-lock", "invariants", "invariant-broken"),
]
"""Workload, planted bug, checker that finds it, kind that it finds."""
WORKLOADS = sorted({workload for workload, *_ in BUGS})
FIRST_BUGS = {bug[0]: bug for bug in reversed(BUGS)}
ON_PROCESSES = ("everything-clients", "queue-held", "queue-push-ordered")
"""Delays, batches, tags, locks, resets and one-way commits at once; polls that wait in real time; a
client that is pushed to, with locks."""


def arguments(store: Path, workload: str, *more: str, faults: str = "") -> list[str]:
    """Return those of a run with hand-overs of leadership.

    Polls that wait are judged where no fault is in force: their workload has none.
    """
    faults = faults or ("none" if workload == "queue-held" else "transfer")
    return [
        "run", "--workload", workload, "--faults", faults,
        "--concurrency", "4n", "--time-limit", "10", "--steady", "4", "--nemesis-interval", "1",
        "--seed", "shapes", "--engine", "local", "--store", str(store), *more,
    ]  # fmt: skip


def judged(store: Path, code: int, printed: str) -> tuple[int, dict[str, dict[str, object]]]:
    """Return the exit code of a run and what the checkers said."""
    results = (store / "latest").resolve() / "results.json"
    assert results.exists(), printed
    return code, json.loads(results.read_text())["checkers"]


def on_processes(store: Path, workload: str) -> tuple[int, dict[str, dict[str, object]]]:
    done = shaketable(*arguments(store, workload, "--rate", "100"))
    return judged(store, done.returncode, done.stdout + done.stderr)


def simulated(
    store: Path, workload: str, *more: str, rate: str = "80", faults: str = ""
) -> tuple[int, dict[str, dict[str, object]]]:
    """Run it in this process, which has imported most of it: half of what a new one would take."""
    options = ("--world", "sim", "--rate", rate, *more)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = run(arguments(store, workload, *options, faults=faults))
    return judged(store, code, printed.getvalue())


def expect_valid(code: int, checkers: dict[str, dict[str, object]]) -> None:
    said = {name: each["summary"] for name, each in checkers.items() if each["valid"] is not True}
    assert (code, said) == (0, {})


@pytest.mark.parametrize("workload", ON_PROCESSES)
def test_a_healthy_system_is_valid(tmp_path: Path, workload: str) -> None:
    expect_valid(*on_processes(tmp_path, workload))


@pytest.mark.parametrize(
    "workload",
    [pytest.param(name, marks=whole if n % PARTS else ()) for n, name in enumerate(WORKLOADS)],
)
def test_a_healthy_system_is_valid_in_the_campaigns_that_find_bugs(
    tmp_path: Path, workload: str
) -> None:
    expect_valid(*simulated(tmp_path, workload))


def test_a_consumer_that_ends_with_its_broker_is_found_by_its_error(tmp_path: Path) -> None:
    more = ("--mutant", "consumer-ends-with-broker")
    code, checkers = simulated(tmp_path, "queue-push", *more, faults="kill,pause")
    assert code == 1
    assert "calls-end-as-promised" in str(checkers["invariants"]["summary"])


@pytest.mark.parametrize("bug", [None, "order-key-moves"])
def test_an_order_key_that_changes_its_queue_is_found(tmp_path: Path, bug: str | None) -> None:
    """With several broker names, of which one refuses."""
    more = ("--target", "multi-master", *(("--mutant", bug) if bug else ()))
    code, checkers = simulated(tmp_path, "queue-order-keys", *more, faults="disk-full,kill")
    if bug is None:
        expect_valid(code, checkers)
    else:
        assert code == 1
        assert "order-keys-keep-their-queue" in str(checkers["invariants"]["summary"])


@pytest.mark.parametrize(
    ("workload", "mutant", "checker", "kind"),
    [pytest.param(*bug, marks=() if bug is FIRST_BUGS[bug[0]] else whole) for bug in BUGS],
)
def test_the_planted_bug_is_found(
    tmp_path: Path, workload: str, mutant: str, checker: str, kind: str
) -> None:
    # Between unlock and commit there is a moment, for which it takes many hand-overs of a queue.
    rate = "800" if mutant == "unlocks-before-commit" else "80"
    # Who owns a queue, and what is unknown, is judged where nothing happens to the group.
    faults = "none" if checker in ("queue-owners", "invariants") else ""
    code, checkers = simulated(tmp_path, workload, "--mutant", mutant, rate=rate, faults=faults)
    assert code == 1
    assert checkers[checker]["counts"].get(kind, 0) > 0, checkers[checker]["summary"]

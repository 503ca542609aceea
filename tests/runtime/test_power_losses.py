"""All nodes lose power at once: what fsync acknowledged stays, what page caches did does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from power_losses import play

from shaketable.harness.contracts.verdict import Outcome

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("ack", "outcome"), [("fsync", Outcome.VALID), ("page-cache", Outcome.INVALID)]
)
def test_what_was_acknowledged_survives_as_its_policy_says(
    tmp_path: Path, ack: str, outcome: Outcome
) -> None:
    run = play(ack, 1, "0", tmp_path, rate_hz=300.0)
    # With fsync only what is on its way is unsynced: a loss between two appends takes nothing.
    certain = run.losses if ack == "page-cache" else 1
    assert run.losses >= run.biting >= certain, "where no unsynced byte vanished nothing is shown"
    assert run.biting
    assert run.vanished_bytes > 0
    assert run.durability.outcome is outcome, run.durability.summary
    assert {finding.kind for finding in run.durability.findings} <= {"lost-append"}

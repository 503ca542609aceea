"""Whole campaigns of registers, sets, counters and offsets, in the simulated world.

The group is valid under faults, and each workload finds the bug that was planted for it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from shaketable.harness.campaigns.campaign import Campaign, resolve
from shaketable.harness.history import run_folder
from shaketable.harness.judging import engines, judge
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.simulated.run import run_simulated

PLANTED = {
    "register": ("condition-on-committed", ["linearizable-register"]),
    "set": ("full-pull-skips-one", ["set-full"]),
    "counter": ("ends-from-cache", ["counter"]),
    # The member that answers knows that it has not asked the others.
    "offsets": ("offsets-unconfirmed", ["invariants", "consumer-offsets"]),
}
"""By workload, the bug that is planted, and the checkers that find it."""


def judged(store: Path, workload: str, mutant: str | None) -> dict[str, bool | str]:
    campaign = resolve(
        Campaign(
            world="sim",
            workload=workload,
            mutant=mutant,
            seed="7",
            time_limit_s=4.5,
            steady_s=0.5,
            rate_hz=120.0,
            faults=("kill", "partition"),
            nemesis_interval_s=0.5,
            fault_duration_min_s=1.0,
            fault_duration_max_s=1.2,
        )
    )
    folder = run_folder.create(store, campaign.name, datetime.now(UTC))
    result = run_simulated(campaign, folder, SilentObserver())
    assert result.faults.took_effect >= 1
    told = judge.judge(
        folder, campaign, engines.Engine(engines.LOCAL, "local[*]"), lambda step: None
    )
    return {verdict.checker: verdict.outcome.json_value for verdict in told.verdicts}


@pytest.mark.parametrize("workload", sorted(PLANTED))
def test_the_group_is_valid_and_the_planted_bug_is_found(tmp_path: Path, workload: str) -> None:
    mutant, checkers = PLANTED[workload]
    assert set(judged(tmp_path / "clean", workload, None).values()) == {True}
    found = judged(tmp_path / "planted", workload, mutant)
    assert [name for name, outcome in found.items() if outcome is False] == checkers

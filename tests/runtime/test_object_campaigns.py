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
    "register": ("linearizable-register", "condition-on-committed"),
    "set": ("set-full", "full-pull-skips-one"),
    "counter": ("counter", "ends-from-cache"),
    "offsets": ("consumer-offsets", "offsets-unconfirmed"),
}


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
    checker, mutant = PLANTED[workload]
    assert set(judged(tmp_path / "clean", workload, None).values()) == {True}
    found = judged(tmp_path / "planted", workload, mutant)
    broken = [name for name, outcome in found.items() if outcome is False]
    assert [name for name in broken if name != "invariants"] == [checker]  # members may see it too

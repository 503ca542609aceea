"""Leases trust clocks: a leader's that goes too slowly lets its clients read what is stale."""

from __future__ import annotations

from pathlib import Path

import pytest
from lease_drift import LEASE_MS, campaign, play

from shaketable.harness.contracts.errors import UsageError


@pytest.mark.parametrize("workload", ["register", "log"])
def test_a_slow_clock_beyond_the_lease_yields_stale_reads(tmp_path: Path, workload: str) -> None:
    run = play(campaign("0", LEASE_MS, "sim", workload), tmp_path)
    assert run.result.faults.took_effect == 2
    assert run.has_stale_reads, run.linearizable.summary


@pytest.mark.parametrize(
    ("leases_ms", "rate"), [(0, 0.05), (LEASE_MS, 0.95)], ids=["read index", "within the bound"]
)
def test_reads_are_right_by_read_index_and_within_the_bound(
    tmp_path: Path, leases_ms: int, rate: float
) -> None:
    run = play(campaign("0", leases_ms, "sim", "register", rate), tmp_path)
    assert run.result.faults.took_effect == 2
    assert all(verdict.outcome.json_value is True for verdict in run.verdicts), run.verdicts


def test_a_lease_longer_than_an_election_is_refused() -> None:
    with pytest.raises(UsageError, match="leases_ms 250"):
        campaign("0", 250, "sim", "log")

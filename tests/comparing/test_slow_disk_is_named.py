"""Whole simulated campaigns compared: a slowed disk is named, two healthy runs are not accused."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shaketable.harness import cli
from shaketable.harness.campaigns.campaign import Campaign, resolve, to_toml
from shaketable.harness.history import run_folder
from shaketable.harness.history.export import export
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.simulated.run import run_simulated
from shaketable.reports.comparing.page import compare_folders


def recorded(store: Path, seed: str, fault: str, *victims: str) -> Path:
    campaign = resolve(
        Campaign(
            world="sim",
            seed=seed,
            workload="log",
            concurrency="4n",
            time_limit_s=24.0,
            steady_s=7.0,
            rate_hz=60.0,
            faults=(fault,),
            victims=victims,
            nemesis_interval_s=1.0,
            fault_duration_min_s=2.0,
            fault_duration_max_s=3.0,
        )
    )
    folder = run_folder.create(store, campaign.name, datetime.now(UTC))
    run_folder.write_atomically(folder.campaign_toml, to_toml(campaign))
    run_simulated(campaign, folder, SilentObserver())
    export(folder)
    return folder.path


def test_a_slowed_disk_is_named_and_two_healthy_runs_are_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy, other = (recorded(tmp_path, seed, "kill") for seed in ("1", "2"))
    slowed = recorded(tmp_path, "4", "disk-slow", "majority")
    alike = compare_folders(healthy, other)
    assert alike.is_conclusive
    assert [each.text for each in (*alike.worse, *alike.better)] == []
    worse = {(each.where, each.what) for each in compare_folders(healthy, slowed).worse}
    where = "under disk-slow (A: calm)"
    assert (where, "p99 latency") in worse
    assert all(of == where for of, _ in worse)
    assert cli.run(["compare", str(healthy), str(other)]) == 0
    assert "no difference that matters" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert cli.run(["compare", str(healthy), str(slowed), "--html", str(page)]) == 1
    told = capsys.readouterr().out
    assert "p99 latency under disk-slow" in " ".join(told.split())
    assert re.search(r"\d+ to \d+ times longer", " ".join(told.split()))
    assert "p99 latency under disk-slow" in page.read_text()

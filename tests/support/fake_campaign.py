"""Runs campaigns on the fake group: `python fake_campaign.py STORE KEY=VALUE...`, or in a test.

As a program it prints one JSON line for each thing that its observer hears of.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trio
from fake_target import FakeTarget, make_client

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.runtime import rig
from shaketable.harness.runtime.observer import Counts, Observer
from shaketable.harness.runtime.supervisor import RunResult, run_campaign

QUICK: dict[str, Any] = {
    "workload": "log",
    "name": "fake",
    "target": "fake",
    "seed": "7",
    "time_limit_s": 6.0,
    "steady_s": 0.5,
    "nemesis_interval_s": 0.5,
    "fault_duration_min_s": 0.8,
    "fault_duration_max_s": 1.2,
    "rate_hz": 60.0,
    "op_timeout_s": 0.5,
    "scenarios": (),  # of single faults each is to take effect
}


class Tape:
    """An observer that keeps (or prints) all it hears."""

    def __init__(self, out: Any = None) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.last_counts = Counts()
        self._out = out

    def __getattr__(self, name: str) -> Any:
        def hear(*arguments: Any) -> None:
            if name == "counts":
                (self.last_counts,) = arguments
                return
            self.heard.append((name, *arguments))
            if self._out is not None:
                self._out.write(json.dumps([name, *arguments]) + "\n")
                self._out.flush()

        if name.startswith("_"):
            raise AttributeError(name)
        return hear

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for what, *arguments in self.heard if what == name]


def patch(setattr_: Any, target: type[FakeTarget] = FakeTarget) -> None:
    """Let discovery find the fake target too; `setattr_` is setattr or monkeypatch's."""
    get_real, plan_workers = discovery.get, rig.plan_workers

    def get(kind: str, name: str) -> Any:
        return target() if (kind, name) == ("targets", "fake") else get_real(kind, name)

    def plan(*arguments: Any) -> list[Any]:
        plans = plan_workers(*arguments)
        return [dataclasses.replace(plan, client_factory=make_client) for plan in plans]

    setattr_(discovery, "get", get)
    setattr_(rig, "plan_workers", plan)


def run_fake(
    store: Path, observer: Observer, base_port: int | None = None, **more: Any
) -> RunResult:
    campaign = Campaign(**{**QUICK, **more})
    folder: RunFolder = run_folder.create(store, campaign.name, datetime.now(UTC))

    async def main() -> RunResult:
        return await run_campaign(campaign, folder, observer, base_port=base_port)

    return trio.run(main)


if __name__ == "__main__":
    patch(setattr)
    options = {key: json.loads(value) for key, _, value in (a.partition("=") for a in sys.argv[2:])}
    sys.stdout.write(json.dumps(["pid", os.getpid()]) + "\n")
    try:
        result = run_fake(Path(sys.argv[1]), Tape(sys.stdout), **options)  # type: ignore[arg-type]
    except HarnessError as error:
        sys.exit(f"harness: {error}")
    sys.stdout.write(json.dumps(["result", result.status, result.is_drained]) + "\n")

"""Run campaigns from Python and from pytest.

    run = run_campaign(target="kvs", time_limit="20s")
    assert run.is_valid, run.summary

A campaign runs in a process of its own, as `shaketable run` does: its workers must be children of a
main thread, and its nodes must end with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.verdict import ExitCode

Option = str | int | float | bool | Path | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class CampaignRun:
    """A run and its verdict.

    Attributes:
        folder: the run's folder: report.html, results.json, violations/, ...
        valid: True, False, or None if it is unknown.
        summary: what `run` prints at the end.
        results: results.json.
    """

    folder: Path
    valid: bool | None
    summary: str
    results: Mapping[str, Any]

    @property
    def is_valid(self) -> bool:
        """Whether every promise that was tested held."""
        return self.valid is True


def run_campaign(
    campaign: str | Path | None = None,
    *,
    store: str | Path = "store",
    folder: str | Path | None = None,
    **options: Option,
) -> CampaignRun:
    """Run a campaign and return its verdict; blocks until it is over.

    Args:
        campaign: the name of a built-in campaign, or a campaign file.
        store: where the run is kept.
        folder: the folder to run in, where `shaketable.toml` is looked for; default: this one.
        options: those of `shaketable run`, by name: `time_limit="20s"`, `faults=["kill", "pause"]`;
            True gives an option without a value, False and None leave it out.

    Raises:
        UsageError: an option is invalid.
        HarnessError: the harness could not do its work.
    """
    kept = Path(store).absolute()
    argv = [sys.executable, "-P", "-m", "shaketable", "run"]
    argv += [] if campaign is None else [str(campaign)]
    for name, value in {**options, "store": kept}.items():
        argv += _words(name, value)
    done = subprocess.run(
        argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    told = done.stderr.strip().removeprefix("shaketable: ")
    if done.returncode == ExitCode.USAGE:
        raise UsageError(told)
    if done.returncode not in (ExitCode.VALID, ExitCode.INVALID, ExitCode.UNKNOWN):
        raise HarnessError(told or f"the campaign ended with exit status {done.returncode}")
    run = (kept / "latest").resolve()
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    valid = {ExitCode.VALID: True, ExitCode.INVALID: False}.get(ExitCode(done.returncode))
    return CampaignRun(run, valid, _summary(done.stdout), results)


def _words(name: str, value: Option) -> list[str]:
    if value is None or value is False:
        return []
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return [option]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [option, ",".join(map(str, value))]
    return [option, str(value)]


def _summary(output: str) -> str:
    """Return the end of the output, from the verdict on."""
    lines = output.splitlines()
    verdicts = ("VALID ", "INVALID ", "UNKNOWN ")
    begins = [number for number, line in enumerate(lines) if line.startswith(verdicts)]
    return "\n".join(lines[begins[-1] if begins else 0 :]).strip()

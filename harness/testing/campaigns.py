"""Run campaigns from Python and from pytest.

    run = run_campaign(target="kvs", faults=["kill"], time_limit=timedelta(seconds=20))
    assert run.is_valid, run.summary

A campaign runs in a process of its own, as `shaketable run` does: its workers must be children of a
main thread, and its nodes must end with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.verdict import EXIT_BY_OUTCOME, ExitCode, Outcome

if TYPE_CHECKING:
    from shaketable.harness.campaigns.campaign import Campaign

REPORT: Final = "report.html"


@runtime_checkable
class Named(Protocol):
    """A plug-in: a target, a fault, a workload; its name stands for it."""

    name: str


Option = str | float | bool | timedelta | Path | Named | Sequence[str | Named] | None
"""A value of an option; None and False leave it out."""


@dataclass(frozen=True, slots=True)
class CampaignRun:
    """A run and its verdict.

    Attributes:
        folder: the run's folder: report.html, results.json, violations/, ...
        outcome: VALID, INVALID or UNKNOWN.
        summary: what `run` prints at the end.
        results: results.json.
    """

    folder: Path
    outcome: Outcome
    summary: str
    results: Mapping[str, Any]

    @property
    def is_valid(self) -> bool:
        """Whether every promise that was tested held."""
        return self.outcome is Outcome.VALID

    @property
    def report(self) -> Path:
        """The report, one self-contained page."""
        return self.folder / REPORT


def run_campaign(
    campaign: str | Path | Campaign | None = None,
    *,
    store: str | Path = "store",
    folder: str | Path | None = None,
    **options: Option,
) -> CampaignRun:
    """Run a campaign and return its verdict; blocks until it is over.

    Args:
        campaign: a campaign, the name of a built-in one, or a campaign file.
        store: where the run is kept.
        folder: the folder to run in, where `shaketable.toml` is looked for; default: this one.
        options: those of `shaketable run`, by name, which override the campaign's:
            `time_limit=timedelta(seconds=20)`, `faults=["kill", "pause"]`; a plug-in stands for its
            name, True gives an option without a value, False and None leave it out.

    Raises:
        UsageError: an option is invalid.
        HarnessError: the harness could not do its work.
    """
    kept = Path(store).absolute()
    with _file_of(campaign) as file:
        argv = [sys.executable, "-P", "-m", "shaketable", "run"]
        argv += [] if file is None else [str(file)]
        for name, value in {**options, "store": kept}.items():
            argv += _words(name, value)
        done = subprocess.run(
            argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    told = done.stderr.strip().removeprefix("shaketable: ")
    if done.returncode == ExitCode.USAGE:
        raise UsageError(told)
    if done.returncode not in _OUTCOMES:
        raise HarnessError(told or f"the campaign ended with exit status {done.returncode}")
    run = (kept / "latest").resolve()
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    return CampaignRun(run, _OUTCOMES[done.returncode], _summary(done.stdout), results)


_OUTCOMES: Final = {int(code): outcome for outcome, code in EXIT_BY_OUTCOME.items()}


@contextmanager
def _file_of(campaign: str | Path | Campaign | None) -> Iterator[str | Path | None]:
    """Yield what `run` is given for a campaign: its name, or a file."""
    if campaign is None or isinstance(campaign, str | Path):
        yield campaign
        return
    from shaketable.harness.campaigns.campaign import to_toml  # noqa: PLC0415 - only for a campaign by value

    with tempfile.TemporaryDirectory(prefix="shaketable-campaign-") as folder:
        file = Path(folder) / "campaign.toml"
        file.write_text(to_toml(campaign), encoding="utf-8")
        yield file


def _words(name: str, value: Option) -> list[str]:
    if value is None or value is False:
        return []
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return [option]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [option, ",".join(map(_word, value))]
    return [option, _word(value)]


def _word(value: str | float | timedelta | Path | Named) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}"
    if isinstance(value, str | float | int | Path):  # a Path has a name, too
        return str(value)
    return value.name


def _summary(output: str) -> str:
    """Return the end of the output, from the verdict on."""
    lines = output.splitlines()
    verdicts = ("VALID ", "INVALID ", "UNKNOWN ")
    begins = [number for number, line in enumerate(lines) if line.startswith(verdicts)]
    return "\n".join(lines[begins[-1] if begins else 0 :]).strip()

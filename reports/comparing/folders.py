"""Read two run folders and compare them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Final

from shaketable.harness.history.run_folder import NoPlainFileError, read_plain
from shaketable.reports.comparing.compared_measures import Measured, measure
from shaketable.reports.comparing.comparison import Comparison, compare
from shaketable.reports.run_page.view import build_view

SETTING: Final = (
    "target",
    "mutant",
    "nodes",
    "world",
    "workload",
    "faults",
    "rate",
    "concurrency",
    "think_time",
    "queues",
    "time_limit",
    "disk",
    "ack",
)
"""Keys of a campaign that affect the numbers."""
SIMULATED: Final = "sim"
"""The world that does not depend on the machine."""
FILE_BYTES_MAX: Final = 64 << 20
VALUE_CHARS_MAX: Final = 120


def compare_folders(a: Path, b: Path) -> Comparison:
    """Compare run B with run A.

    Raises:
        NotADirectoryError: there is no such folder.
    """
    return compare(measured(a), measured(b))


def measured(folder: Path) -> Measured:
    """Measure a stored run; missing parts have no numbers.

    Raises:
        NotADirectoryError: there is no such folder.
    """
    view = build_view(folder)
    busy_with_others = None if view.world == SIMULATED else _busy_with_others(folder / "run.json")
    return measure(view, _setting(folder / "campaign.toml"), busy_with_others)


def _busy_with_others(run_json: Path) -> float | None:
    """Return the share of the machine that other work took, if the run recorded it."""
    try:
        share = json.loads(read_plain(run_json, FILE_BYTES_MAX))["machine"]["busy_with_others"]
    except (NoPlainFileError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return float(share) if isinstance(share, int | float) and 0 <= share <= 1 else None


def _setting(campaign_toml: Path) -> dict[str, str]:
    try:
        campaign = tomllib.loads(read_plain(campaign_toml, FILE_BYTES_MAX).decode())
    except (NoPlainFileError, ValueError, RecursionError):
        return {}
    return {
        name: _text(campaign[name]) for name in SETTING if campaign.get(name) not in (None, "", [])
    }


def _text(value: object) -> str:
    try:
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, nested lists
        return "?"
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 1]}…"

"""Reads two run folders and compares what is in them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from reports.comparing.differences import compare
from reports.comparing.measuring import Measured, measure
from reports.comparing.model import Comparison
from reports.view import build_view

SETTING: Final = (
    "target",
    "mutant",
    "nodes",
    "world",
    "workload",
    "faults",
    "rate",
    "concurrency",
    "queues",
    "time_limit",
    "disk",
    "ack",
)
"""Keys of a campaign that make other numbers likely."""
VALUE_CHARS_MAX: Final = 120


def compare_folders(a: Path, b: Path) -> Comparison:
    """Compare run B with run A.

    Raises:
        NotADirectoryError: there is no such folder.
    """
    return compare(measured(a), measured(b))


def measured(folder: Path) -> Measured:
    """Measure a stored run; what is missing of it is missing in the numbers.

    Raises:
        NotADirectoryError: there is no such folder.
    """
    return measure(build_view(folder), _setting(folder / "campaign.toml"))


def _setting(campaign_toml: Path) -> dict[str, str]:
    try:
        campaign = tomllib.loads(campaign_toml.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {
        name: _text(campaign[name]) for name in SETTING if campaign.get(name) not in (None, "", [])
    }


def _text(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 1]}…"

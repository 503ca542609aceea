"""Compare two run folders, and render the comparison: one self-contained HTML page, or JSON."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment

from shaketable.harness.history.run_folder import NoPlainFileError, read_plain
from shaketable.reports import templating
from shaketable.reports.comparing import comparison
from shaketable.reports.comparing.compared_measures import Measured, measure
from shaketable.reports.comparing.comparison import Comparison, compare
from shaketable.reports.run_page.view import build_view

# Two run folders.

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


# The page.

TEMPLATES: Final = Path(__file__).parent.parent / "templates"
FORMAT: Final = 1
"""Version of the JSON; incremented when a reader of older files would misread newer ones."""
COLOURS: Final = {"WORSE": "INVALID", "BETTER": "VALID", "ALIKE": "VALID", "UNKNOWN": "UNKNOWN"}


def result(compared: Comparison) -> str:
    """Return the result of the comparison: WORSE, BETTER, ALIKE or UNKNOWN."""
    if compared.worse:
        return "WORSE"
    if not compared.is_conclusive:
        return "UNKNOWN"
    return "BETTER" if compared.better else "ALIKE"


def render_comparison(compared: Comparison) -> str:
    """Render the page of a comparison."""
    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            compared=compared,
            result=result(compared),
            headline=comparison.headline(compared),
            colours=COLOURS,
            number=comparison.number,
        )
    )


def to_json(compared: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON."""
    return {
        "format": FORMAT,
        "result": result(compared).lower(),
        "headline": comparison.headline(compared),
        "a": _run(compared.a),
        "b": _run(compared.b),
        "differences": [
            {
                name: _finite(value) if isinstance(value, float) else value
                for name, value in asdict(each).items()
            }
            for each in compared.differences
        ],
        "settings": [list(setting) for setting in compared.settings],
        "errors_per_thousand": [{"error": text, "a": a, "b": b} for text, a, b in compared.errors],
        "notes": list(compared.notes),
    }


def _run(run: Measured) -> dict[str, Any]:
    return {
        "folder": run.folder,
        "name": run.name,
        "verdict": run.verdict,
        "operations": run.operations,
        "seconds": {name: len(series) for name, series in run.conditions.items()},
        "recoveries_s": {name: list(of.lengths_s) for name, of in run.recoveries.items()},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@cache
def _environment() -> Environment:
    return templating.environment(TEMPLATES)

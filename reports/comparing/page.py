"""Render a comparison as one self-contained HTML page, and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment

from shaketable.reports import templating
from shaketable.reports.comparing import comparison
from shaketable.reports.comparing.compared_measures import Measured
from shaketable.reports.comparing.comparison import Comparison

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

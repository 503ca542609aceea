"""A scorecard -> ONE self-contained HTML page: each bug's row, and which fault found which bug."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import median
from typing import Final

from jinja2 import Environment

from shaketable.reports import templating
from shaketable.reports.calibration_page.model import Scorecard

TEMPLATES: Final = Path(__file__).parents[1] / "templates"


def render_scorecard(card: Scorecard) -> str:
    """Render the page of a calibration."""
    faults = list(card.matrix)
    hit = [row.bug for row in card.bugs if any(row.bug in of for of in card.matrix.values())]
    return (
        _environment()
        .get_template("calibration.html.j2")
        .render(card=card, faults=faults, hit=hit, total=len(card.bugs))
    )


@cache
def _environment() -> Environment:
    made = templating.environment(TEMPLATES)
    made.filters["median"] = median
    return made

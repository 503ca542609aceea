"""What `list bugs` prints: the planted bugs, by family, each with what it is modelled on."""

from __future__ import annotations

from itertools import groupby

from rich.text import Text

from harness import discovery
from harness.abilities import PlantedBug
from harness.calibration.plan import planted_bugs
from harness.terminal import session
from harness.terminal.grid import show_rows


def list_bugs() -> None:
    """Print all planted bugs of all targets."""
    found = planted_bugs(discovery.find("targets").values())
    width = max((len(bug.name) for bug in found), default=0)
    for family, bugs in groupby(found, key=lambda bug: bug.family):
        session.out.print(Text((family or "Of no family").capitalize(), style="bold"))
        for bug in bugs:
            show_rows(session.out, _rows(bug), label_width=width)
        session.out.print()


def _rows(bug: PlantedBug) -> list[tuple[str, str]]:
    rows = [(bug.name, bug.breaks), ("", f"in {', '.join(bug.targets)}")]
    return rows + ([("", f"after {bug.source}")] if bug.source else [])

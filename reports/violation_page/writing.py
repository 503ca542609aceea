"""Write the violation pages into a run's folder."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment
from markupsafe import Markup

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history.run_folder import write_atomically
from shaketable.reports import templating
from shaketable.reports.check_page.page import BLOCKED_MAX, EVIDENCE_MAX, TEXT_MAX
from shaketable.reports.check_page.pictures import NAMES, role_of
from shaketable.reports.plotting.plots import fault_colours
from shaketable.reports.run_page.html import moment, or_nothing, span
from shaketable.reports.run_page.view import number_text
from shaketable.reports.run_view import RunView
from shaketable.reports.spacetime import describe
from shaketable.reports.violation_page.building import build_pages
from shaketable.reports.violation_page.node_evidence import LEFT, STATES
from shaketable.reports.violation_page.violation_view import (
    FILE,
    FOLDER,
    NAME,
    Entry,
    ViolationPage,
    index_text,
)


def write_pages(folder: Path, view: RunView) -> list[Path]:
    """Write a run's violation pages and delete those of an earlier report; return the paths.

    Raises:
        HarnessError: a file cannot be written, or something else is in the place of the folder.
        OSError: an earlier page cannot be deleted.
    """
    pages = build_pages(view)
    here = folder / FOLDER
    if here.is_symlink() or (here.exists() and not here.is_dir()):
        raise HarnessError(f"{here}: no folder of this run's; take it away, pages go there")
    if here.is_dir():
        for path in here.iterdir():
            is_ours = NAME.fullmatch(path.name) or path.name == FILE
            if is_ours and not path.is_dir():
                path.unlink()
    if not pages:
        return []
    here.mkdir(exist_ok=True)
    written = []
    for page in pages:
        text = render_violation(page, view).encode("utf-8", "replace")  # lone surrogates: "?"
        write_atomically(folder / page.name, text)
        written.append(folder / page.name)
    write_atomically(here / FILE, index_text(pages))
    return written


# Renders a violation's page as one self-contained HTML file that loads nothing from elsewhere.
#
# Its content security policy allows its own styles, and its own script by hash.

TEMPLATES: Final = Path(__file__).parents[1] / "templates"
SCRIPT: Final = "report.js"
CRC_NONE: Final = "-"


def render_violation(page: ViolationPage, view: RunView) -> str:
    """Render one page of a run."""
    script = _script()
    return (
        _environment()
        .get_template("violation.html.j2")
        .render(
            page=page,
            view=view,
            violation=page.violation,
            colours=fault_colours([row.window.name for row in view.faults]),
            script=Markup(script),  # noqa: S704 - our own file
            script_hash=_hash(script),
            states=STATES,
            left=LEFT,
            role_of=role_of,
            names=NAMES,
            cut=_cut,
            cut_state=_cut,
            blocked_max=BLOCKED_MAX,
            evidence_max=EVIDENCE_MAX,
        )
    )


def crc_text(crc: int | None) -> str:
    """Print a CRC-32 as eight hex digits."""
    return CRC_NONE if crc is None else f"{crc & 0xFFFFFFFF:08x}"


def entry_text(entry: Entry) -> str:
    """Return what an entry holds."""
    if entry.key is None:
        return "an entry of the group's own"
    value = "no value" if entry.value is None else f"{entry.value}"
    return f"{entry.key} @{'?' if entry.offset is None else entry.offset}: {value}"


@cache
def _environment() -> Environment:
    environment = templating.environment(TEMPLATES)
    environment.filters.update(
        number=number_text, moment=moment, span=span, or_nothing=or_nothing,
        crc=crc_text, entry=entry_text, describe=describe,
    )  # fmt: skip
    return environment


@cache
def _script() -> str:
    return "\n" + (TEMPLATES / SCRIPT).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Return the hash by which the content security policy allows the script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"

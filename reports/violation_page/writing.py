"""Puts the violations' pages into a run's folder."""

from __future__ import annotations

from pathlib import Path

from shaketable.harness.errors import HarnessError
from shaketable.harness.history.run_folder import write_atomically
from shaketable.reports.model import RunView
from shaketable.reports.violation_page import page_index
from shaketable.reports.violation_page.building import build_pages
from shaketable.reports.violation_page.choosing import FOLDER, NAME
from shaketable.reports.violation_page.rendering import render_violation


def write_pages(folder: Path, view: RunView) -> list[Path]:
    """Write a run's pages; those of an earlier report go. Returns their paths.

    Raises:
        HarnessError: a file cannot be written, or something else stands where the pages go.
        OSError: an earlier page cannot be deleted.
    """
    pages = build_pages(view)
    here = folder / FOLDER
    if here.is_symlink() or (here.exists() and not here.is_dir()):
        raise HarnessError(f"{here}: no folder of this run's; take it away, pages go there")
    if here.is_dir():
        for path in here.iterdir():
            is_ours = NAME.fullmatch(path.name) or path.name == page_index.FILE
            if is_ours and not path.is_dir():
                path.unlink()
    if not pages:
        return []
    here.mkdir(exist_ok=True)
    written = []
    for page in pages:
        text = render_violation(page, view).encode("utf-8", "replace")  # halves of surrogates
        write_atomically(folder / page.name, text)
        written.append(folder / page.name)
    write_atomically(here / page_index.FILE, page_index.told(pages))
    return written

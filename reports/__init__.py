"""Results of a run -> view model -> self-contained HTML and JUnit XML."""

from __future__ import annotations

import os
from pathlib import Path

from reports import html, junit
from reports.view import build_view


def write(folder: Path) -> list[Path]:
    """Write report.html and junit.xml into a run folder; return their paths.

    Raises:
        OSError: the folder cannot be written.
    """
    view = build_view(folder)
    written = []
    for name, text in (("report.html", html.render(view)), ("junit.xml", junit.render(view))):
        path = folder / name
        partial = folder / f".{name}.partial"
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        written.append(path)
    return written

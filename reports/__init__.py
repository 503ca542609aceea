"""Turn a run folder's results into a view model, then into self-contained HTML and JUnit XML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shaketable.harness.history.run_folder import write_atomically

if TYPE_CHECKING:
    from shaketable.reports.run_view import RunView


class Report(NamedTuple):
    """What a report shows, and its files: report.html, junit.xml, the violation pages."""

    view: RunView
    files: list[Path]


def write(folder: Path) -> Report:
    """Write report.html, junit.xml and the violation pages of a run folder.

    Pages of an earlier report are deleted.

    Raises:
        NotADirectoryError: the folder does not exist.
        HarnessError: a file cannot be written.
        OSError: a page of an earlier report cannot be deleted.
    """
    # Importing the plotting library takes half a second; the view and recovery do not need it.
    from shaketable.reports import junit  # noqa: PLC0415 - see above
    from shaketable.reports.run_page import html  # noqa: PLC0415 - see above
    from shaketable.reports.run_page.view import build_view  # noqa: PLC0415 - see above
    from shaketable.reports.violation_page.writing import write_pages  # noqa: PLC0415 - see above

    view = build_view(folder)
    pages = write_pages(folder, view)  # first, because the report links to them
    written = []
    for name, text in (("report.html", html.render(view)), ("junit.xml", junit.render_run(view))):
        write_atomically(folder / name, text.encode("utf-8", "replace"))  # lone surrogates: "?"
        written.append(folder / name)
    return Report(view, written + pages)

"""Turn a run folder's results into a view model, then into self-contained HTML and JUnit XML."""

from __future__ import annotations

from pathlib import Path

from shaketable.harness.history.run_folder import write_atomically


def write(folder: Path) -> list[Path]:
    """Write report.html, junit.xml and the violation pages of a run folder; return their paths.

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
    for name, text in (("report.html", html.render(view)), ("junit.xml", junit.render(view))):
        write_atomically(folder / name, text.encode("utf-8", "replace"))  # lone surrogates: "?"
        written.append(folder / name)
    return written + pages

"""Results of a run -> view model -> self-contained HTML and JUnit XML."""

from __future__ import annotations

from pathlib import Path

from shaketable.harness.history.run_folder import write_atomically


def write(folder: Path) -> list[Path]:
    """Write report.html, junit.xml and the violations' pages of a run folder; return their paths.

    Pages of an earlier report go.

    Raises:
        NotADirectoryError: there is no such folder.
        HarnessError: a file cannot be written.
        OSError: a page of an earlier report cannot be deleted.
    """
    # The plots' library takes half a second to import; the view and recovery need none of it.
    from shaketable.reports import junit  # noqa: PLC0415 - see above
    from shaketable.reports.run_page import html  # noqa: PLC0415 - see above
    from shaketable.reports.run_page.view import build_view  # noqa: PLC0415 - see above
    from shaketable.reports.violation_page.writing import write_pages  # noqa: PLC0415 - see above

    view = build_view(folder)
    pages = write_pages(folder, view)  # first: the report links to them
    written = []
    for name, text in (("report.html", html.render(view)), ("junit.xml", junit.render(view))):
        write_atomically(folder / name, text.encode("utf-8", "replace"))  # halves of surrogates
        written.append(folder / name)
    return written + pages

"""violations/index.json: the subject of each page, for readers that have no view of the run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from shaketable.harness.history.run_folder import NoPlainFileError, read_plain
from shaketable.reports.violation_page.violation_view import ViolationPage

FOLDER: Final = "violations"
NAME: Final = re.compile(r"[0-9]{3}-[a-z0-9-]{1,40}\.html")
"""The name of a page's file: its number and the kind of its violation."""
FILE: Final = "index.json"
FILE_BYTES_MAX: Final = 1 << 20


class IndexedPage(msgspec.Struct, frozen=True):
    """A page: its file in the folder, and its subject."""

    file: str
    checker: str = ""
    kind: str = ""
    key: str | None = None
    offset: int | None = None


class PageIndex(msgspec.Struct, frozen=True):
    """The content of the file."""

    pages: tuple[IndexedPage, ...] = ()


def index_text(pages: Iterable[ViolationPage]) -> str:
    """Return the file's text."""
    rows = [
        {
            "file": page.name.rpartition("/")[2],
            "checker": page.checker,
            "kind": page.violation.kind,
            "key": page.violation.key,
            "offset": page.violation.offset,
            "observed": page.is_observed,
        }
        for page in pages
    ]
    return json.dumps({"pages": rows}, indent=1) + "\n"


def read_index(folder: Path) -> tuple[IndexedPage, ...]:
    """Read the index of a folder of pages; empty if there is no valid one.

    Pages with unexpected names and missing files are skipped.
    """
    try:
        index = msgspec.json.decode(read_plain(folder / FILE, FILE_BYTES_MAX), type=PageIndex)
    except (
        NoPlainFileError,
        ValueError,
        OverflowError,
        RecursionError,
    ):
        return ()
    return tuple(
        page for page in index.pages if NAME.fullmatch(page.file) and (folder / page.file).is_file()
    )

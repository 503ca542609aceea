"""violations/index.json: which page is about what, for those who judge a run without its view."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from shaketable.harness.history.plain_files import NoPlainFileError, read_plain
from shaketable.reports.violation_page.choosing import NAME
from shaketable.reports.violation_page.model import ViolationPage

FILE: Final = "index.json"
FILE_BYTES_MAX: Final = 1 << 20


class IndexedPage(msgspec.Struct, frozen=True):
    """A page: its file in the folder, and what it is about."""

    file: str
    checker: str = ""
    kind: str = ""
    key: str | None = None
    offset: int | None = None


class PageIndex(msgspec.Struct, frozen=True):
    """The file."""

    pages: tuple[IndexedPage, ...] = ()


def told(pages: Iterable[ViolationPage]) -> str:
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


def read(folder: Path) -> tuple[IndexedPage, ...]:
    """Read the file of a run's folder of pages; nothing where there is none that makes sense.

    Files that are not called as pages are, or are not there, are left out.
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

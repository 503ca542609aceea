"""The content of the store's pages for the templates: list, run, folder, trends."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment

from shaketable.harness.serving import trends
from shaketable.harness.serving.index import (
    JUDGED,
    STATES,
    Entry,
    Index,
    Listing,
    filter_entries,
    matrix_of,
)
from shaketable.harness.serving.store_paths import is_allowed_name
from shaketable.harness.serving.trends import Trends
from shaketable.reports import templating

TEMPLATES: Final = Path(__file__).parent / "templates"
REPORT_CSS: Final = Path(__file__).parents[2] / "reports" / "templates" / "report.css"
PAGE_DIGITS_MAX: Final = 9
ENTRIES_A_PAGE: Final = 100
OTHERS_MAX: Final = 50
ROWS_MAX: Final = 2_000
FILTERS: Final = ("state", "name", "target", "workload", "world")


def rendered(template: str, **what: object) -> str:
    """Render a page."""
    return _environment().get_template(template).render(**what)


@cache
def style() -> bytes:
    """Return the CSS of all pages: that of the reports and the store's own."""
    return REPORT_CSS.read_bytes() + (TEMPLATES / "store.css").read_bytes()


@cache
def script() -> bytes:
    """Return the only script."""
    return (TEMPLATES / "store.js").read_bytes()


def listing(listed: Listing, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the list of runs, searched and filtered."""
    entries = listed.entries
    terms = {name: query.get(name, "") for name in ("q", *FILTERS)}
    wanted = {name: terms[name] for name in FILTERS}
    found = filter_entries(list(entries), terms["q"], **wanted)
    page = _page_number(query.get("page", ""), len(found))
    first = (page - 1) * ENTRIES_A_PAGE

    def link(number: int) -> str:
        fields = {name: value for name, value in terms.items() if value}
        return urlencode({**fields, "page": number})

    return {
        "entries": found[first : first + ENTRIES_A_PAGE],
        "shown_of": len(found),
        "total": len(entries),
        "matrices": listed.matrices,
        "left_out": listed.left_out,
        "query": terms,
        "choices": [(name, _values(entries, name)) for name in FILTERS],
        "page": page,
        "before": link(page - 1),
        "after": link(page + 1) if first + ENTRIES_A_PAGE < len(found) else "",
    }


def run(entry: Entry, index: Index, *, has_report: bool) -> dict[str, Any]:
    """Return the page of one run."""
    facts = (
        ("begun (UTC)", when(entry.time)),
        ("target", entry.target),
        ("planted bug", entry.mutant),
        ("workload", entry.workload),
        ("world", entry.world),
        ("faults", entry.faults),
        ("seed", entry.seed),
        ("operations", "" if entry.operations is None else f"{entry.operations:,}"),
        ("folder", entry.id),
    )
    others = [
        other
        for other in filter_entries(index.entries(), name=entry.name)
        if other.id != entry.id and other.state in JUDGED
    ]
    return {
        "entry": entry,
        "facts": facts,
        "has_report": has_report,
        "matrix": matrix_of(entry.id, index.store),
        "others": others[:OTHERS_MAX] if entry.state in JUDGED else [],
    }


def trending(index: Index, measured: Trends, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the trends of the runs of one name, by default that of the newest run."""
    entries = [entry for entry in index.entries() if entry.state in JUDGED]
    names = Counter(entry.name for entry in entries)
    name = query.get("name") or (entries[0].name if entries else "")
    of_name = [entry for entry in entries if entry.name == name]
    judged = of_name[: trends.RUNS_MAX][::-1]
    charts, left = trends.draw_charts(of_name, measured)
    return {
        "name": name,
        "names": sorted(names.items()),
        "judged": judged,
        "charts": charts,
        "left_out": left,
        "width": trends.WIDTH,
        "height": trends.HEIGHT,
        "left": trends.LEFT,
    }


def folder(path: Path, here: Path, *, is_run: bool) -> dict[str, Any]:
    """Return the content of a folder: folders, and regular files with their sizes."""
    rows: list[tuple[str, int | None]] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if not is_allowed_name(entry.name) or entry.is_symlink():
                continue
            if entry.is_dir():
                rows.append((entry.name, None))
            elif entry.is_file():
                rows.append((entry.name, entry.stat().st_size))
    rows.sort(key=lambda row: (row[1] is not None, row[0]))
    return {
        "here": "" if here == Path() else str(here),
        "rows": rows[:ROWS_MAX],
        "cut": max(0, len(rows) - ROWS_MAX),
        "is_run": is_run,
    }


def when(time: str) -> str:
    """Return a run's folder name as a readable time, if it is one."""
    try:
        begun = datetime.strptime(time, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return time
    return f"{begun:%Y-%m-%d %H:%M:%S}"


def quoted(text: object) -> str:
    """Return a path or a name percent-encoded for a URL; it may hold any bytes."""
    return quote(str(text).encode(errors="surrogateescape"))


def safe_name(text: str) -> str:
    """Return a text as a file name that is safe in headers and on every system."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:80].lstrip(".") or "file"


def _values(entries: Sequence[Entry], name: str) -> list[str]:
    there = {getattr(entry, name) for entry in entries} - {""}
    return [state for state in STATES if state in there] if name == "state" else sorted(there)


def _page_number(text: str, found: int) -> int:
    last = max(1, -(-found // ENTRIES_A_PAGE))
    if not (text.isascii() and text.isdigit()):
        return 1
    return min(max(1, int(text)), last) if len(text) <= PAGE_DIGITS_MAX else last


@cache
def _environment() -> Environment:
    environment = templating.environment(TEMPLATES)
    environment.filters["when"] = when
    environment.filters["urlencode"] = quoted
    return environment

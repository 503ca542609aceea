"""The store that is served: its runs and their states, and which of its files a request may see.

A run is read again when its files change.

Paths of requests and files are both untrusted: names come from a browser, and folders of a store
may be unpacked downloads. Refused are "..", hidden names, links that lead out, and everything but
regular files.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from shaketable.harness import run_markers
from shaketable.harness.history.run_folder import (
    NoPlainFileError,
    ResultsFile,
    RunFolder,
    UnreadableError,
    open_plain,
    read_results,
)
from shaketable.harness.matrix.folder import MatrixFolder
from shaketable.reports.finding_texts import merge_totals, summarize
from shaketable.reports.run_page.violations import kind_totals

log = logging.getLogger(__name__)

DEPTH_MAX: Final = 5
"""store/NAME/TIME, and store/MATRIX/TIME/runs/CELL/TIME."""
RUNS_MAX: Final = 5_000
"""Only the newest runs are listed; the page says how many are left out."""
FOLDERS_MAX: Final = 50_000
"""At most this many folders are scanned; the page says so if there are more."""
MATRICES_MAX: Final = 50
COUNT_MAX: Final = 10**15
FACTS_BYTES_MAX: Final = 32 << 20
JUDGED: Final = ("INVALID", "UNKNOWN", "VALID")
STATES: Final = (*JUDGED, "RUNNING", "NOT JUDGED")


@dataclass(frozen=True, slots=True)
class Entry:
    """One run in the list. `id` is its folder's path below the store; texts are untrusted."""

    id: str
    name: str
    time: str
    state: str
    target: str = ""
    workload: str = ""
    world: str = ""
    faults: str = ""
    mutant: str = ""
    seed: str = ""
    operations: int | None = None
    why: str = ""

    @property
    def search_text(self) -> str:
        """The text that a search looks through, in lower case."""
        return " ".join(
            (
                self.id, self.name, self.state, self.target, self.workload, self.world,
                self.faults, self.mutant, self.seed, self.why,
            )
        ).lower()  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a store: runs, newest first, ids of matrices, and what is left out."""

    entries: list[Entry]
    matrices: tuple[str, ...] = ()
    left_out: str = ""


@dataclass(slots=True)
class Index:
    """The index of a store's runs. Thread-safe."""

    store: Path
    _known: dict[str, tuple[tuple[int, ...], Entry]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def listing(self) -> Listing:
        """List the runs, newest first, and the matrices."""
        root = self.store.resolve()
        with self._lock:
            walked = _walk(root)
            newest = sorted(walked.runs, key=lambda path: (path.name, str(path)), reverse=True)
            entries = [self._entry(path) for path in newest[:RUNS_MAX]]
            here = {entry.id for entry in entries}
            self._known = {id_: known for id_, known in self._known.items() if id_ in here}
        entries.sort(key=lambda entry: (entry.time, entry.id), reverse=True)
        matrices = sorted(walked.matrices, key=lambda path: path.name, reverse=True)
        notes = []
        if (more := len(newest) - RUNS_MAX) > 0:
            notes.append(f"{more:,} older runs are not listed")
        if walked.is_cut:
            notes.append(f"only {FOLDERS_MAX:,} folders were looked into")
        ids = tuple(str(path.relative_to(root)) for path in matrices[:MATRICES_MAX])
        return Listing(entries, ids, "; ".join(notes))

    def entries(self) -> list[Entry]:
        """List the runs, newest first."""
        return self.listing().entries

    def entry(self, path: Path) -> Entry:
        """Return the entry of one run, given its real path inside the store.

        Raises:
            NotHereError: it is not a run's folder.
        """
        if not is_run(path):
            raise NotHereError
        with self._lock:
            return self._entry(path)

    def _entry(self, path: Path) -> Entry:
        id_ = str(path.relative_to(self.store.resolve()))
        folder = RunFolder(path)
        stamp = _stamp(folder)
        known = self._known.get(id_)
        if known is not None and known[0] == stamp and known[1].state in JUDGED:
            return known[1]
        try:
            entry = _read(id_, folder)
        except Exception as error:  # a broken run must not hide the others
            log.debug("event=not_read run=%r why=%r", id_, error)
            why = "what it wrote of itself cannot be read"
            entry = Entry(id_, _text(path.parent.name), _text(path.name), "NOT JUDGED", why=why)
        self._known[id_] = (stamp, entry)
        return entry


def is_run(path: Path) -> bool:
    """Return whether a folder is that of a run, with a history."""
    try:
        is_one = path.is_dir() and (path / "campaign.toml").is_file()
        return is_one and stat.S_ISDIR((path / "history").lstat().st_mode)
    except OSError:
        return False


def matrix_of(id_: str, store: Path) -> str:
    """Return the id of the matrix that a run belongs to, if that has a page; else ""."""
    matrix, found, _ = id_.rpartition("/runs/")
    return matrix if found and _has_page(store.resolve() / matrix) else ""


def _has_page(path: Path) -> bool:
    page = MatrixFolder(path).page
    return page.is_file() and not page.is_symlink()


def filter_entries(entries: list[Entry], search: str = "", **wanted: str) -> list[Entry]:
    """Return the entries that match every word of `search` and every value in `wanted`."""
    words = search.lower().split()
    return [
        entry
        for entry in entries
        if all(word in entry.search_text for word in words)
        and all(not value or getattr(entry, name) == value for name, value in wanted.items())
    ]


@dataclass(slots=True)
class _Walked:
    """The result of a walk through a store."""

    runs: list[Path] = field(default_factory=list)
    matrices: list[Path] = field(default_factory=list)
    is_cut: bool = False


def _walk(root: Path) -> _Walked:
    """Walk the store, newest names first; links and hidden folders are not entered."""
    left, seen, walked = [(root, 0)], 0, _Walked()
    while left:
        if seen == FOLDERS_MAX:
            walked.is_cut = True
            break
        folder, depth = left.pop()
        seen += 1
        if depth and is_run(folder):
            walked.runs.append(folder)
            continue
        if depth and _has_page(folder):
            walked.matrices.append(folder)
        if depth == DEPTH_MAX:
            continue
        try:
            with os.scandir(folder) as entries:
                inside = sorted(
                    entry.name
                    for entry in entries
                    if is_allowed_name(entry.name) and entry.is_dir(follow_symlinks=False)
                )
        except OSError:
            continue
        left += [(folder / name, depth + 1) for name in inside]
    return walked


def _stamp(folder: RunFolder) -> tuple[int, ...]:
    stamp: list[int] = []
    for path in (folder.campaign_toml, folder.run_json, folder.results_json):
        try:
            facts = path.stat()
            stamp += [facts.st_mtime_ns, facts.st_size]
        except OSError:
            stamp += [0, 0]
    return tuple(stamp)


def _read(id_: str, folder: RunFolder) -> Entry:
    campaign, run = _facts(folder.campaign_toml), _facts(folder.run_json)
    results = _results(folder)
    counts = run.get("counts")
    numbers = counts.values() if isinstance(counts, dict) else ()
    known = [n for n in numbers if isinstance(n, int) and 0 <= n <= COUNT_MAX]
    return Entry(
        id=id_,
        name=_text(campaign.get("name") or folder.path.parent.name),
        time=_text(folder.path.name),
        state=_state(folder, results),
        target=_text(campaign.get("target")),
        workload=_text(campaign.get("workload")),
        world=_text(campaign.get("world")),
        faults=_text(campaign.get("faults")),
        mutant=_text(campaign.get("mutant")),
        seed=_text(campaign.get("seed")),
        operations=sum(known) if known else None,
        why="" if results is None else _why(results),
    )


def _results(folder: RunFolder) -> ResultsFile | None:
    """Return a run's verdict, without its reasons if these are unreadable; None if it has none."""
    try:
        return read_results(folder, follow_links=False)
    except UnreadableError:
        valid = _facts(folder.results_json).get("valid")
        if valid is True or valid is False or valid == "unknown":
            return ResultsFile(valid=valid)
        return None


def _state(folder: RunFolder, results: ResultsFile | None) -> str:
    """Return a run's state; RUNNING if a harness holds its lock to run or judge it."""
    if results is None:
        return "RUNNING" if _is_occupied(folder) else "NOT JUDGED"
    if results.valid == "unknown":
        return "UNKNOWN"
    return "VALID" if results.valid else "INVALID"


def _is_occupied(folder: RunFolder) -> bool:
    try:
        with run_markers.try_exclusive(folder.path) as is_alone:
            return not is_alone
    except OSError:
        return False


def _why(results: ResultsFile) -> str:
    """Return what the report's headline says: findings in words, else a checker's summary."""
    if results.why:
        return _text(results.why)
    refused = [one for one in results.checkers.values() if one.valid is not True]
    broken = [one for one in refused if one.valid is False]
    totals = merge_totals(kind_totals(msgspec.to_builtins(one)).items() for one in broken)
    return _text(summarize(totals) or next((one.summary for one in broken or refused), ""))


def _facts(path: Path) -> dict[str, Any]:
    """Read a TOML or JSON object; {} if it is missing, damaged or too large."""
    try:
        data = read_bounded(path, FACTS_BYTES_MAX)
        read = tomllib.loads(data.decode()) if path.suffix == ".toml" else json.loads(data)
    except (NotHereError, OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


TEXT_MAX: Final = 300


def _text(value: object) -> str:
    """Return an untrusted value as text: bounded, and encodable as UTF-8."""
    if value is None:
        return ""
    try:
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists
        return "?"
    text = text.encode(errors="replace").decode()
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


# The path of a request, resolved to a file of the store, and never to one outside of it.

PARTS_MAX: Final = 12
NAME_BYTES_MAX: Final = 255


class NotHereError(Exception):
    """There is nothing at that path that may be shown."""


def resolve_path(store: Path, named: str) -> Path:
    """Return the real path of a file or folder that a request names relative to the store.

    Raises:
        NotHereError: it does not exist, or is outside the store or hidden.
    """
    parts = named.split("/") if named else []
    if len(parts) > PARTS_MAX or not all(map(is_allowed_name, parts)):
        raise NotHereError
    root = store.resolve()
    try:
        found = root.joinpath(*parts).resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise NotHereError from error
    if found != root and root not in found.parents:
        raise NotHereError
    if any(part.startswith(".") for part in found.relative_to(root).parts):
        raise NotHereError
    return found


def is_allowed_name(part: str) -> bool:
    """Return whether a path component of a request is allowed."""
    if not part or part.startswith(".") or "\0" in part or "/" in part or "\\" in part:
        return False
    try:
        return len(os.fsencode(part)) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def open_regular(path: Path) -> tuple[BinaryIO, int]:
    """Open a regular file and return it with its size; never blocks, as opening a pipe would.

    Raises:
        NotHereError: it is gone, a link, not a regular file, or not readable.
    """
    try:
        return open_plain(path, follow_links=False)
    except NoPlainFileError as error:
        raise NotHereError from error


def is_self_contained(folder: RunFolder) -> bool:
    """Return whether all files that are measured are the run's own: no links, no pipes."""
    return all(map(_is_own, _measured(folder)))


def _measured(folder: RunFolder) -> Iterator[Path]:
    yield from (folder.campaign_toml, folder.run_json, folder.results_json)
    yield from (folder.status_jsonl, folder.drain_json, folder.history, folder.events_parquet)
    yield from (folder.nodes, folder.operations)
    if _is_own(folder.history) and _is_own(folder.operations):
        yield from folder.operations.glob("*.parquet")


def _is_own(path: Path) -> bool:
    """Return whether it is a regular file, a folder, or missing."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """Read a regular file of at most `bytes_max` bytes.

    Raises:
        NotHereError: it does not exist, or is larger.
    """
    file, size = open_regular(path)
    with file:
        if size > bytes_max:
            raise NotHereError
        return file.read(bytes_max)


def read_tail(path: Path, bytes_max: int) -> bytes:
    """Read the last `bytes_max` bytes of a regular file; empty if it does not exist."""
    try:
        file, size = open_regular(path)
    except NotHereError:
        return b""
    with file:
        file.seek(max(0, size - bytes_max))
        return file.read(bytes_max)

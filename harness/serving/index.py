"""What runs a store holds, and how each stands: read anew where a file of it has changed."""

from __future__ import annotations

import json
import os
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from harness import marks
from harness.history.run_folder import RunFolder
from harness.serving.places import NotHereError, is_fit, read_bounded

DEPTH_MAX: Final = 5
"""store/NAME/TIME, and store/MATRIX/TIME/runs/CELL/TIME."""
RUNS_MAX: Final = 5_000
"""More runs than these are not listed."""
FOLDERS_MAX: Final = 50_000
FACTS_BYTES_MAX: Final = 32 << 20
JUDGED: Final = ("INVALID", "UNKNOWN", "VALID")
STATES: Final = (*JUDGED, "RUNNING", "NOT JUDGED")


@dataclass(frozen=True, slots=True)
class Entry:
    """One run in the list. `id` is its folder's path from the store; texts may be anybody's."""

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
    def words(self) -> str:
        """Everything that a search looks through, in lower case."""
        return " ".join(
            (
                self.id, self.name, self.state, self.target, self.workload, self.world,
                self.faults, self.mutant, self.seed, self.why,
            )
        ).lower()  # fmt: skip


@dataclass(slots=True)
class Index:
    """The runs of a store. Safe to be asked by several threads."""

    store: Path
    _known: dict[str, tuple[tuple[int, ...], Entry]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def entries(self) -> list[Entry]:
        """List the runs, the newest first."""
        with self._lock:
            paths = list(_runs(self.store.resolve()))
            entries = [self._entry(path) for path in paths]
            here = {entry.id for entry in entries}
            self._known = {id_: known for id_, known in self._known.items() if id_ in here}
        return sorted(entries, key=lambda entry: (entry.time, entry.id), reverse=True)

    def entry(self, path: Path) -> Entry:
        """Say how one run stands, given its real path inside the store.

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
        entry = _read(id_, folder)
        self._known[id_] = (stamp, entry)
        return entry


def is_run(path: Path) -> bool:
    """Whether a folder is a run's."""
    return path.is_dir() and (path / "campaign.toml").is_file() and (path / "history").is_dir()


def chosen(entries: list[Entry], search: str = "", **wanted: str) -> list[Entry]:
    """Return the entries that hold every word of `search` and every value in `wanted`."""
    words = search.lower().split()
    return [
        entry
        for entry in entries
        if all(word in entry.words for word in words)
        and all(not value or getattr(entry, name) == value for name, value in wanted.items())
    ]


def _runs(root: Path) -> Iterator[Path]:
    """Walk the store, the newest names first; neither links nor hidden folders are entered."""
    left, seen, found = [(root, 0)], 0, 0
    while left and seen < FOLDERS_MAX and found < RUNS_MAX:
        folder, depth = left.pop()
        seen += 1
        if depth and is_run(folder):
            found += 1
            yield folder
            continue
        if depth == DEPTH_MAX:
            continue
        try:
            with os.scandir(folder) as entries:
                inside = sorted(
                    entry.name
                    for entry in entries
                    if is_fit(entry.name) and entry.is_dir(follow_symlinks=False)
                )
        except OSError:
            continue
        left += [(folder / name, depth + 1) for name in inside]


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
    campaign, run, results = (
        _facts(path) for path in (folder.campaign_toml, folder.run_json, folder.results_json)
    )
    counts = run.get("counts")
    numbers = counts.values() if isinstance(counts, dict) else ()
    return Entry(
        id=id_,
        name=_text(campaign.get("name") or folder.path.parent.name),
        time=folder.path.name,
        state=_state(folder, results),
        target=_text(campaign.get("target")),
        workload=_text(campaign.get("workload")),
        world=_text(campaign.get("world")),
        faults=_text(campaign.get("faults")),
        mutant=_text(campaign.get("mutant")),
        seed=_text(campaign.get("seed")),
        operations=sum(n for n in numbers if isinstance(n, int)) if counts else None,
        why=_why(results),
    )


def _state(folder: RunFolder, results: dict[str, Any]) -> str:
    """A run that somebody works in runs, or is judged again."""
    valid = results.get("valid")
    if valid is True or valid is False:
        return "VALID" if valid else "INVALID"
    if valid == "unknown":
        return "UNKNOWN"
    return "RUNNING" if _is_occupied(folder) else "NOT JUDGED"


def _is_occupied(folder: RunFolder) -> bool:
    try:
        with marks.alone(folder.path) as is_alone:
            return not is_alone
    except OSError:
        return False


def _why(results: dict[str, Any]) -> str:
    """The first thing that a checker which is not content has to say."""
    checkers = results.get("checkers")
    for checker in checkers.values() if isinstance(checkers, dict) else ():
        if isinstance(checker, dict) and checker.get("valid") is not True:
            return _text(checker.get("summary"))
    return ""


def _facts(path: Path) -> dict[str, Any]:
    """Read a file of facts; nothing of one that is missing, damaged or too large."""
    try:
        data = read_bounded(path, FACTS_BYTES_MAX)
        read = tomllib.loads(data.decode()) if path.suffix == ".toml" else json.loads(data)
    except (NotHereError, OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


TEXT_MAX: Final = 300


def _text(value: object) -> str:
    if value is None:
        return ""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"

"""Resolve the path of a request to a file of the store, and never to one outside of it.

Both are untrusted: names come from a browser, and folders of a store may be unpacked downloads.
Refused are "..", hidden names, links that lead out, and everything but regular files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from shaketable.harness.history.run_folder import NoPlainFileError, RunFolder, open_plain

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

"""From the path of a request to a file of the store, and never to one outside of it.

Names come from a browser, and folders of a store from anywhere (an unpacked download): no
"..", no hidden name, no link that leads out, nothing but regular files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from shaketable.harness.history.plain_files import NoPlainFileError, open_plain
from shaketable.harness.history.run_folder import RunFolder

PARTS_MAX: Final = 12
NAME_BYTES_MAX: Final = 255


class NotHereError(Exception):
    """There is nothing at that place that may be shown."""


def resolve_path(store: Path, named: str) -> Path:
    """Return the real path of what a request names: folders and files by "/", from the store.

    Raises:
        NotHereError: there is no such thing, or it is none of the store's.
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
    """Whether a name of a request can be that of something that is shown."""
    if not part or part.startswith(".") or "\0" in part or "/" in part or "\\" in part:
        return False
    try:
        return len(os.fsencode(part)) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def open_regular(path: Path) -> tuple[BinaryIO, int]:
    """Open a regular file and return it with its size; never waits, as a pipe would have it.

    Raises:
        NotHereError: it is gone, a link, no regular file, or not to be read by us.
    """
    try:
        return open_plain(path, follow_links=False)
    except NoPlainFileError as error:
        raise NotHereError from error


def is_self_contained(folder: RunFolder) -> bool:
    """Whether what is measured of a run are files of its own: no link leads out, no pipe waits."""
    return all(map(_is_own, _measured(folder)))


def _measured(folder: RunFolder) -> Iterator[Path]:
    yield from (folder.campaign_toml, folder.run_json, folder.results_json)
    yield from (folder.status_jsonl, folder.drain_json, folder.history, folder.events_parquet)
    yield from (folder.nodes, folder.operations)
    if _is_own(folder.history) and _is_own(folder.operations):
        yield from folder.operations.glob("*.parquet")


def _is_own(path: Path) -> bool:
    """Whether it is a regular file, a folder, or nothing at all."""
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
        NotHereError: there is none, or it is larger.
    """
    file, size = open_regular(path)
    with file:
        if size > bytes_max:
            raise NotHereError
        return file.read(bytes_max)


def read_tail(path: Path, bytes_max: int) -> bytes:
    """Read the last bytes of a regular file; empty if there is none."""
    try:
        file, size = open_regular(path)
    except NotHereError:
        return b""
    with file:
        file.seek(max(0, size - bytes_max))
        return file.read(bytes_max)

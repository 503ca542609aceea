"""A run's folder as a zip, made while it is sent: nothing of it is kept in memory or on disk."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shaketable.harness.serving.places import NotHereError, is_fit, opened

CHUNK_BYTES: Final = 256 << 10
ZIP_BYTES_MAX: Final = 8 << 30
"""Of the files together; what would be more is left out, and a file in the zip says so."""
FILES_MAX: Final = 20_000
LEFT_OUT: Final = "LEFT-OUT.txt"


class _Pipe:
    """A file that cannot be sought: what `zipfile` writes is taken away piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Keep what was written until it is taken."""
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing stands behind this."""

    def take(self) -> bytes:
        """Return what was written since the last call."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


def zipped(folder: Path) -> Iterator[bytes]:
    """Yield the bytes of a zip of all regular files below `folder`, under the folder's name.

    Links are left out: what they lead to may be anybody's.
    """
    pipe = _Pipe()
    left_bytes, left_files = ZIP_BYTES_MAX, FILES_MAX
    left_out: list[str] = []
    names: set[str] = set()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:  # type: ignore[call-overload]
        for path in files_below(folder):
            name = _told(f"{folder.name}/{path.relative_to(folder)}", names)
            try:
                file, size = opened(path)
            except NotHereError:
                left_out.append(f"{name}: cannot be read")
                continue
            with file:
                if size > left_bytes or not left_files:
                    left_out.append(f"{name}: {size:,} bytes, too much for one download")
                    continue
                left_bytes, left_files = left_bytes - size, left_files - 1
                info = zipfile.ZipInfo(name)
                info.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(info, "w", force_zip64=True) as member:
                    while size > 0 and (data := file.read(min(CHUNK_BYTES, size))):
                        size -= len(data)
                        member.write(data)
                        if sent := pipe.take():
                            yield sent
        if left_out:
            archive.writestr(_told(f"{folder.name}/{LEFT_OUT}", names), "\n".join(left_out) + "\n")
    if sent := pipe.take():
        yield sent


def _told(name: str, names: set[str]) -> str:
    """Return a name as a zip can hold it, and no other of it has: names need not be UTF-8."""
    told = name.encode(errors="surrogateescape").decode(errors="replace")
    number = 1
    while told in names:
        number += 1
        told = f"{name.encode(errors='surrogateescape').decode(errors='replace')}~{number}"
    names.add(told)
    return told


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder by name; hidden ones (half written) are none."""
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if is_fit(name))
        for name in sorted(filter(is_fit, names)):
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                yield path

"""Targets that a file describes, with clients that are a few functions: no class to write."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FILE_NAME: Final = "shaketable.toml"


def nearest_file(folder: Path) -> Path | None:
    """Return the `shaketable.toml` in a folder or the nearest one above it; None if none is."""
    places = (each / FILE_NAME for each in (folder, *folder.parents))
    return next((place for place in places if place.is_file()), None)

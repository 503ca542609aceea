"""The Jinja environment of all pages: everything is escaped, and missing values are errors."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket


def environment(templates: Path) -> Environment:
    """Return a Jinja environment for the templates of a folder, with autoescaping.

    A template that uses an undefined value fails (`StrictUndefined`).
    """
    made = Environment(
        loader=FileSystemLoader(templates),
        bytecode_cache=_cache(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(lower_first=lower_first, upper_first=upper_first)
    return made


class _Kept(FileSystemBytecodeCache):
    """Compiled templates in a folder; a disk that is full loses them, not the page."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write one template's code if that is possible."""
        with suppress(OSError):
            super().dump_bytecode(bucket)


def _cache(templates: Path) -> FileSystemBytecodeCache | None:
    """Return where compiled templates are kept, as Python keeps modules; None if nowhere.

    Jinja compares the source of a template with the one that was compiled.
    """
    folder = templates / "__pycache__"
    if sys.dont_write_bytecode:
        return None
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
    return _Kept(str(folder)) if os.access(folder, os.W_OK) else None


def lower_first(text: str) -> str:
    """Print a sentence as it continues after a colon; a leading name loses its capital too."""
    return text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Capitalize the first letter."""
    return text[:1].upper() + text[1:]

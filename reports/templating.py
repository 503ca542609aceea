"""The Jinja environment of all pages: everything is escaped, and missing values are errors."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined


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


def _cache(templates: Path) -> FileSystemBytecodeCache | None:
    """Return where compiled templates are kept, as Python keeps modules; None if nowhere.

    Jinja compares the source of a template with the one that was compiled.
    """
    folder = templates / "__pycache__"
    if sys.dont_write_bytecode:
        return None
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
    return FileSystemBytecodeCache(str(folder)) if os.access(folder, os.W_OK) else None


def lower_first(text: str) -> str:
    """Print a sentence as it continues after a colon; a leading name loses its capital too."""
    return text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Capitalize the first letter."""
    return text[:1].upper() + text[1:]

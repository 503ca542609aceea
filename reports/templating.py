"""The Jinja environment of all pages: everything is escaped, and missing values are errors."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def environment(templates: Path) -> Environment:
    """Return a Jinja environment for the templates of a folder, with autoescaping.

    A template that uses an undefined value fails (`StrictUndefined`).
    """
    made = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(lower_first=lower_first, upper_first=upper_first)
    return made


def lower_first(text: str) -> str:
    """Print a sentence as it continues after a colon; a leading name loses its capital too."""
    return text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Capitalize the first letter."""
    return text[:1].upper() + text[1:]

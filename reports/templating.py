"""How all pages are made of their templates: everything is escaped, and nothing may be missing."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def environment(templates: Path) -> Environment:
    """Return a Jinja environment for the templates of a folder, in which values are escaped.

    A value that a template asks for and nobody gave is an error (`StrictUndefined`), not a gap.
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
    """Print a sentence as it goes on behind a colon; a name at its begin loses its capital too."""
    return text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Print words as a sentence begins."""
    return text[:1].upper() + text[1:]

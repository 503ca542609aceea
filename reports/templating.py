"""How all pages are made of their templates: everything is escaped, and nothing may be missing."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def environment(templates: Path) -> Environment:
    """Return a Jinja environment for the templates of a folder, in which values are escaped.

    A value that a template asks for and nobody gave is an error (`StrictUndefined`), not a gap.
    """
    return Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

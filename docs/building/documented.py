"""What a docstring says of each attribute: Google's section `Attributes:`. Pure."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Final

_SECTION: Final = re.compile(r"^(?:Attributes|Args):$(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_ENTRY: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def attributes(documented: object) -> Mapping[str, str]:
    """Return what the docstring of a class says of its attributes, each on one line."""
    section = _SECTION.search(inspect.getdoc(documented) or "")
    entries = _ENTRY.findall(section[1]) if section else []
    return {name: one_line(text) for name, text in entries}


def summary(documented: object) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return one_line((inspect.getdoc(documented) or "").partition("\n\n")[0])


def one_line(text: str) -> str:
    """Return a text without its line breaks."""
    return " ".join(text.split())

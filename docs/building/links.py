"""Links of pages in the repository, as links of the site. Pure.

A link to a page leads to where the site has it; a link to another file of the repository, which the
site does not have, becomes its text. A page that is only named (`docs/faults.md`) becomes a link.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Final

_FENCE: Final = re.compile(r"^ *(```|~~~)")
_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|!?\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)")
_PICTURE: Final = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_NAMED: Final = re.compile(
    r"(?<!\[)`(docs/[\w/-]+?)(\.md)?`(?!\])|(?<![\w`/(\[])(docs/[\w/-]+\.md)\b"
)


def rewritten(text: str, page: str, places: Mapping[str, str]) -> str:
    """Return a page's text with its links as the site needs them.

    Args:
        text: Markdown.
        page: its path in the repository, which relative links start from.
        places: paths of all pages in the repository -> paths on the site.
    """
    here = places.get(page, page)
    lines = []
    is_code = False
    for line in text.splitlines():
        if _FENCE.match(line):
            is_code = not is_code
        lines.append(
            line if is_code or line.startswith("    ") else _of_line(line, page, here, places)
        )
    return "\n".join(lines) + "\n"


def _of_line(line: str, page: str, here: str, places: Mapping[str, str]) -> str:
    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        path, hash_, anchor = target.partition("#")
        known = places.get(_resolved(page, path))
        return text if known is None else f"[{text}]({_relative(known, here)}{hash_}{anchor})"

    def picture(found: re.Match[str]) -> str:
        text, target = found.groups()
        return f"![{text}]({_relative(_resolved(page, target), here)})"

    def named(found: re.Match[str]) -> str:
        path = found[3] or f"{found[1]}.md"
        known = places.get(path) or _numbered(path, places)
        if known is None or known == here:
            return found[0]
        return f"[{path}]({_relative(known, here)})"

    return _LINK.sub(link, _PICTURE.sub(picture, _NAMED.sub(named, line)))


def _numbered(path: str, places: Mapping[str, str]) -> str | None:
    """Return the place of a decision that is named by its number: docs/adr/0014."""
    start = path.removesuffix(".md") + "-"
    return next((place for name, place in places.items() if name.startswith(start)), None)


def _resolved(page: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))


def _relative(target: str, page: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(page) or ".")

"""Builds the documentation site: `./shaketable docs`, or `python -m docs` in the project's root."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.building.build import SITE, build


def main(arguments: list[str]) -> int:
    """Build the site; return 0, or 1 if a page has a fault, 254 for bad usage."""
    if len(arguments) > 1 or any(word.startswith("-") for word in arguments):
        print("usage: python -m docs [FOLDER]", file=sys.stderr)  # noqa: T201 - the program's own output
        return 254
    folder = Path(arguments[0]) if arguments else SITE
    code = build(folder)
    if code == 0:
        print(folder / "index.html")  # noqa: T201 - as above
    return code


sys.exit(main(sys.argv[1:]))

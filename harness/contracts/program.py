"""What this program is called, for command lines that people are to type."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

VARIABLE: Final = "SHAKETABLE_PROGRAM"
"""The start script of a checkout sets it to what it was called by."""


def _called(variable: str, first_argument: str) -> tuple[str, ...]:
    """Return the words of the command, from the environment's and the interpreter's."""
    if variable:
        return (variable,)
    if Path(first_argument).name == "__main__.py":
        return "python", "-m", "shaketable"
    return ("shaketable",)


PROGRAM_WORDS: Final = _called(os.environ.get(VARIABLE, ""), sys.argv[0] if sys.argv else "")
"""`./shaketable` in a checkout, `shaketable` where pip installed it, or `python -m shaketable`."""
PROGRAM: Final = shlex.join(PROGRAM_WORDS)
IS_CHECKOUT: Final = bool(os.environ.get(VARIABLE))
"""Whether the start script of a checkout has called this, which has commands of its own."""


def version() -> str:
    """Return the installed version; to look it up takes a third of the time that help may take."""
    import importlib.metadata  # noqa: PLC0415 - see above

    return importlib.metadata.version("shaketable")

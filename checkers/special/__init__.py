"""Special cases that need no search: algorithms that decide some histories by sorting them.

Each looks at a problem and either does not apply (None), or decides: it never guesses. A module of
this package is imported when it is first named, for one check needs few of them.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shaketable.checkers.special import (
        counting,
        log_order,
        queues,
        registers,
        sets,
        stacks,
        texts,
        two_ends,
        value_spans,
    )

__all__ = [
    "counting",
    "log_order",
    "queues",
    "registers",
    "sets",
    "stacks",
    "texts",
    "two_ends",
    "value_spans",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

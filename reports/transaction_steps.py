"""The steps of a transaction as text: "r x [1 2], append x 3". Pure.

Source: Elle's short notation of micro-operations (Alvaro & Kingsbury, VLDB 2020).
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeGuard

ELEMENTS_SHOWN_MAX: Final = 8
TEXT_MAX: Final = 240


def are_steps(value: object) -> TypeGuard[list[list[Any]]]:
    """Return whether this is a list of [f, key] or [f, key, value]."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(step, list) and len(step) in (2, 3) and isinstance(step[0], str)
            for step in value
        )
    )


def steps_text(steps: list[list[Any]]) -> str:
    """Return the steps as text, shortened; a list that was read by its first and last elements."""
    text = ", ".join(_step(*step) for step in steps)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _step(f: str, key: Any, value: Any = None) -> str:
    name = key if isinstance(key, str) else json.dumps(key)
    if isinstance(value, list):
        shown = value
        if len(value) > ELEMENTS_SHOWN_MAX:
            half = ELEMENTS_SHOWN_MAX // 2
            shown = [*value[:half], "...", *value[-half:]]
        return f"{f} {name} [{' '.join(map(_plain, shown))}]"
    return f"{f} {name}" if value is None else f"{f} {name} {_plain(value)}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

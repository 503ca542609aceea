"""Read values of untrusted JSON: of the expected type, or empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

ID_MAX: Final = 2**63 - 1


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value of a JSON file is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def whole(value: object) -> int | None:
    """Return a whole number that a column of integers can hold; None for anything else."""
    return value if is_whole(value) and abs(value) <= ID_MAX else None

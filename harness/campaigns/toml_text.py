"""Values as TOML text: the standard library reads TOML, and does not write it."""

from __future__ import annotations

import json
import re
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: Any) -> str:
    """Write a string, number, truth value, list or table as TOML that stands on one line."""
    if isinstance(value, str):  # JSON's escapes are TOML's, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        inside = (f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{{', '.join(inside)}}}"
    if isinstance(value, bool):
        return "true" if value else "false"
    assert isinstance(value, int | float), f"no TOML for {value!r}"
    return repr(value)


def toml_key(key: str) -> str:
    """Write a key as TOML: bare where it can be, else in quotes."""
    return key if _BARE.fullmatch(key) else toml_value(key)

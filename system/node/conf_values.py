"""Reads single values of a broker.conf, and says in one line what is wrong with one.

Source: Java properties, as far as RocketMQ's own files use them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")
Values = Mapping[str, str]

NUMBER_DIGITS_MAX = 19
NAME_LENGTH_MAX = 255
_SHARE = re.compile(r"0(\.[0-9]{1,9})?")
TRUTH = {"true": True, "false": False}


class ConfigError(Exception):
    """The configuration cannot be used: one line that names the file and the key."""


def read_properties(text: str) -> dict[str, str]:
    """Read the lines `key=value` of a broker.conf. Raises ConfigError."""
    values: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ConfigError(f"line {number}: no '=' in {line!r}")
        values[key.strip()] = value.strip()
    return values


def read_name(values: Mapping[str, str], key: str, default: str) -> str:
    """Read a name of bounded length. Raises ConfigError."""
    name = values.get(key) or default
    if len(name) > NAME_LENGTH_MAX:
        raise ConfigError(f"{key} has {len(name)} characters, at most {NAME_LENGTH_MAX}")
    return name


def read_number(values: Mapping[str, str], key: str, default: int, low: int, high: int) -> int:
    """Read a number in bounds. Raises ConfigError."""
    text = values.get(key)
    if text is None:
        return default
    if not is_number(text) or not low <= int(text) <= high:
        raise ConfigError(f"{key} must be a number in {low}..{high}, not {text!r}")
    return int(text)


def read_share(values: Mapping[str, str], key: str, default: float) -> float:
    """Read a share, 0 or more and less than 1, as "0.1". Raises ConfigError."""
    text = values.get(key)
    if text is None:
        return default
    if not _SHARE.fullmatch(text):
        raise ConfigError(f"{key} must be a share in 0.0..0.99, not {text!r}")
    return float(text)


def is_number(text: str) -> bool:
    """Whether it is a number that can be one of ours: `int` refuses other digits, and many."""
    return text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX


def read_units(values: Mapping[str, str], key: str, default: int, unit_bytes: int) -> int:
    """Read the size of a file that holds whole units."""
    size = read_number(values, key, default, unit_bytes * 8, 1 << 40)
    if size % unit_bytes:
        raise ConfigError(f"{key} must be a multiple of {unit_bytes}, not {size}")
    return size


def read_choice(
    values: Mapping[str, str], key: str, choices: Mapping[str, Value], default: str
) -> Value:
    """Read one of several words, and return what it stands for. Raises ConfigError."""
    text = values.get(key, default)
    if text not in choices:
        raise ConfigError(f"{key} must be one of {', '.join(choices)}, not {text}")
    return choices[text]

"""Read a policy file: TOML to a policy, or one clear line about what is invalid."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from shaketable.harness.contracts.errors import UsageError, unknown_name
from shaketable.reports.gating.policy import (
    UNAVAILABLE,
    Allowance,
    Ceilings,
    Detection,
    Floors,
    Policy,
)

ALLOWED_DAYS_MAX: Final = 366
"""The longest allowance: an exception must be reviewed again after this time."""
FILE_BYTES_MAX: Final = 1 << 20

_TABLES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "floors": Floors,
    "ceilings": Ceilings,
    "detection": Detection,
}


def load(path: Path, today_utc: datetime.date) -> Policy:
    """Read a policy file.

    Raises:
        UsageError: it cannot be read, is no TOML, or is invalid.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot read the policy {path}: {why}") from error
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"{path}: more than {FILE_BYTES_MAX >> 20} MiB: no policy")
    return loads(text, str(path), today_utc)


def loads(text: str, where: str, today_utc: datetime.date) -> Policy:
    """Read a policy from TOML text; `where` names the file in errors.

    Raises:
        UsageError: as for `load`.
    """
    try:
        given = tomllib.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: not TOML: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{where}: nested too deeply") from error
    _refuse_unknown_keys(given, where)
    for table in _tables(given.get("allow")):
        for key in ("runs", "checkers", "faults"):
            if isinstance(table.get(key), str):  # one name is a list of one
                table[key] = [table[key]]
    try:
        policy = msgspec.convert(given, Policy)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_error_text(error)}") from error
    for allowance in policy.allow:
        _check_allowance(allowance, where, today_utc)
    return policy


def _tables(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _refuse_unknown_keys(given: Mapping[str, Any], where: str) -> None:
    _refuse(given, Policy, where, "")
    for table, struct in _TABLES.items():
        if isinstance(given.get(table), dict):
            _refuse(given[table], struct, where, f"[{table}]: ")
    for allowance in _tables(given.get("allow")):
        if allowance.get("verdict") == "invalid":
            raise UsageError(f"{where}: [[allow]]: no policy can allow an invalid verdict")
        _refuse(allowance, Allowance, where, "[[allow]]: ")


def _refuse(given: Mapping[str, Any], struct: type[msgspec.Struct], where: str, at: str) -> None:
    known = [field.encode_name for field in msgspec.structs.fields(struct)]
    for key in given:
        if key not in known:
            raise UsageError(f"{where}: {at}{unknown_name('key', key, known)}")


def _check_allowance(allowance: Allowance, where: str, today_utc: datetime.date) -> None:
    if (allowance.verdict == UNAVAILABLE) != bool(allowance.faults):
        raise UsageError(
            f'{where}: [[allow]]: "{UNAVAILABLE}" names the faults that a run may lack'
            ' (faults = ["..."]), and nothing else does'
        )
    days = (allowance.until - today_utc).days
    if days > ALLOWED_DAYS_MAX:
        raise UsageError(
            f"{where}: [[allow]]: until {allowance.until} is {days} days away; "
            f"at most {ALLOWED_DAYS_MAX} may be allowed at once"
        )


def _error_text(error: msgspec.ValidationError) -> str:
    """Return where in the file the error is, and what was expected."""
    match = re.fullmatch(r"(.*?) - at `\$\.?(.*?)`", str(error), re.DOTALL)
    what, place = match.groups() if match else (str(error), "")
    what = what.replace("`", "")
    return f"{place}: {what}" if place else what

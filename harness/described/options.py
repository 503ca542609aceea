"""What the option `--option NAME=VALUE` makes of a target's table, and of its promises. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from shaketable.harness.contracts.errors import UsageError, unknown_name
from shaketable.harness.contracts.promises import FAMILIES, Promises
from shaketable.harness.described.target_file import TargetTable, Weaker


def with_options(table: TargetTable, target: str, given: Mapping[str, str]) -> TargetTable:
    """Return a target's table with these options in place of its own.

    Raises:
        UsageError: it has no such option, or not with that value.
    """
    known = table.option_texts
    options = dict(table.options)
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"--option {name}: {unknown_name(f'option of {target}', name, known)}")
        choices = table.choices.get(name)
        if choices is not None and value not in choices:
            raise UsageError(f"--option {name}: {unknown_name('value', value, choices)}")
        options[name] = value if isinstance(options[name], str) else _number(name, value)
    return msgspec.structs.replace(table, options=options)


def weakened(promises: Promises, table: TargetTable) -> Promises:
    """Return what is left of a target's promises with the options that it has."""
    texts = table.option_texts
    for name, by_value in table.promises_with.items():
        if (weaker := by_value.get(texts.get(name, ""))) is not None:
            promises = _less(promises, weaker)
    return promises


def _less(promises: Promises, weaker: Weaker) -> Promises:
    durable, linearizable = promises.durable_under, promises.linearizable
    if weaker.durable_under is not None:
        named = (FAMILIES.get(name, {name}) for name in weaker.durable_under)
        durable &= frozenset().union(*named)
    if weaker.linearizable is not None:
        linearizable &= weaker.linearizable
    note = " ".join(filter(None, (promises.note, weaker.note)))
    return replace(promises, durable_under=durable, linearizable=linearizable, note=note)


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"--option {name}={value}: expected a whole number") from None

"""The target of a campaign, with the options of its own that the campaign chooses."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable
from typing import cast

from shaketable.harness import discovery
from shaketable.harness.contracts.abilities import TakesOptions
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Target


def parse(given: Iterable[str]) -> dict[str, str]:
    """Return options by name, from texts such as "journal=off"; the last of a name counts.

    Raises:
        UsageError: one is not NAME=VALUE.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.strip()) or "," in text:
            raise UsageError(f"--option {text}: expected NAME=VALUE without commas, as journal=off")
        found[name.strip()] = value.strip()
    return found


def target_with(name: str, options: tuple[str, ...]) -> Target:
    """Return a target with its options; always the same for the same ones, as it has a state.

    Raises:
        UsageError: there is no such target, or it has no such option, or not with that value.
        HarnessError: as `discovery.get`.
    """
    target: Target = discovery.get("targets", name)
    chosen = parse(options)
    if not chosen:
        return target
    return _configured(cast("Hashable", target), name, tuple(sorted(chosen.items())))


@functools.lru_cache(maxsize=64)
def _configured(target: Hashable, name: str, options: tuple[tuple[str, str], ...]) -> Target:
    if not isinstance(target, TakesOptions):
        raise UsageError(f"--option {options[0][0]}: {name} has no options of its own")
    return target.configured(dict(options))

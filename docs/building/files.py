"""The reference of `shaketable.toml` and of campaign files, made of the code."""

from __future__ import annotations

import typing
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from docs.building.documented import attributes, summary
from docs.building.tables import code, prose, table
from shaketable.harness.campaigns.campaign import FILE_ONLY, Campaign
from shaketable.harness.campaigns.scripts import Step
from shaketable.harness.contracts.abilities import Hosts
from shaketable.harness.described.target_file import (
    Commands,
    Leader,
    PromisesTable,
    Ready,
    TargetTable,
)

_TABLES: Final = (
    ("[targets.NAME]", TargetTable),
    ("[targets.NAME.ready]", Ready),
    ("[targets.NAME.leader]", Leader),
    ("[targets.NAME.promises]", PromisesTable),
    ("[targets.NAME.commands]", Commands),
    ("[targets.NAME.hosts]", Hosts),
)


def target_file() -> str:
    """Return the page of all keys of shaketable.toml."""
    parts = [
        "# Keys of shaketable.toml\n",
        "`docs/your-own-system.md` explains the file step by step. A target that `extends` another"
        " has the other's keys where it has none itself.\n",
    ]
    for heading, keys in _TABLES:
        parts += [f"## {code(heading)}\n", f"{prose(summary(keys))}\n", _keys(keys)]
    return "\n".join(parts)


def campaign_file() -> str:
    """Return the page of all keys of a campaign file."""
    return "\n".join(
        [
            "# Keys of a campaign file\n",
            "Each key is an option of `run` of the same name with dashes, except"
            f" {', '.join(map(code, sorted(FILE_ONLY)))}. `docs/campaigns.md` has examples.\n",
            _keys(Campaign),
            "## `[[script]]`\n",
            f"{prose(summary(Step))}\n",
            _keys(Step),
        ]
    )


def _keys(struct: type[msgspec.Struct]) -> str:
    told = attributes(struct)
    hints = get_type_hints(struct)
    rows = [
        (
            code(field.encode_name),
            prose(told[field.name]),
            _kind(hints[field.name]),
            _default(field),
        )
        for field in msgspec.structs.fields(struct)
    ]
    return table(("key", "what", "kind", "default"), rows)


def _kind(hint: Any) -> str:
    """Return what a value of TOML is, in words."""
    hint = get_args(hint)[0] if get_origin(hint) in (Annotated, UnionType, Union) else hint
    made_of = get_args(hint)
    match get_origin(hint) or hint:
        case typing.Literal:
            return " or ".join(code(str(each)) for each in made_of)
        case container if container in (tuple, frozenset):
            return "list of texts" if made_of[0] is str else "list of tables"
        case kind:
            return _KINDS.get(kind, "table")


_KINDS: Final = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default
    if value is msgspec.NODEFAULT or value in (None, "", (), frozenset()):
        return ""
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, tuple | frozenset):
        return code(", ".join(sorted(map(str, value)) if isinstance(value, frozenset) else value))
    return "" if isinstance(value, msgspec.Struct | dict) else code(str(value))

"""The command line that repeats a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

import msgspec

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import (
    DEFAULT,
    FILE_ONLY,
    Campaign,
    default_faults,
    default_workload,
)

OPTIONS_TYPED_MAX: Final = 10
"""A command line with more options than these is not typed again by anyone."""

NO_PART_OF_IT: Final = frozenset({"engine", "spark_master", "spark_remote", "store"})
"""Keys that say where a history is kept and who checks it: no part of what happens in it."""


def repeat_command(campaign: Campaign, folder: Path) -> str:
    """Return the command line that repeats a resolved campaign: its options, or its file.

    The options that differ from the defaults say everything as long as they are few; past
    `OPTIONS_TYPED_MAX` the campaign file in the run's folder is shorter.
    """
    defaults: dict[str, Any] = msgspec.to_builtins(Campaign())
    values: dict[str, Any] = msgspec.to_builtins(campaign)
    words = ["./shaketable", "run"]
    target = discovery.find("targets").get(campaign.target)
    # What a target is shaken by where nobody says otherwise; of one that is not here, nobody knows.
    usual = () if target is None else ((DEFAULT,), default_faults(target))
    if target is not None and campaign.workload == default_workload(target):
        defaults["workload"] = campaign.workload
    defaults["faults"] = values["faults"] if campaign.faults in usual else None
    unlike = [
        (key, value)
        for key, value in values.items()
        if value != defaults[key] and key not in NO_PART_OF_IT
    ]
    if len(unlike) > OPTIONS_TYPED_MAX or FILE_ONLY & {key for key, _ in unlike}:
        return shlex.join([*words, str(folder / "campaign.toml")])
    for key, value in unlike:
        words.append(f"--{key.replace('_', '-')}")
        words += [] if value is True else [_word(value)]
    return shlex.join(words)


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(value) or "none"
    # All digits of it: a number that is rounded here draws another schedule.
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)

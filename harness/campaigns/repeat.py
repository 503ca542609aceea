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
"""A command line with more options than these is replaced by the campaign file."""

NOT_PART_OF_RUN: Final = frozenset({"engine", "spark_master", "spark_remote", "store"})
"""Keys about where a history is stored and what checks it; they do not affect the run."""


def repeat_command(campaign: Campaign, folder: Path) -> str:
    """Return the command line that repeats a resolved campaign: its options, or its file.

    The options that differ from the defaults are enough, as long as they are few; past
    `OPTIONS_TYPED_MAX` the campaign file in the run's folder is shorter.
    """
    defaults: dict[str, Any] = msgspec.to_builtins(Campaign())
    values: dict[str, Any] = msgspec.to_builtins(campaign)
    words = ["./shaketable", "run"]
    target = discovery.find("targets").get(campaign.target)
    # The target's default faults; unknown if the target is not installed.
    usual = () if target is None else ((DEFAULT,), default_faults(target))
    if target is not None and campaign.workload == default_workload(target):
        defaults["workload"] = campaign.workload
    defaults["faults"] = values["faults"] if campaign.faults in usual else None
    unlike = [
        (key, value)
        for key, value in values.items()
        if value != defaults[key] and key not in NOT_PART_OF_RUN
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
    # All digits: a rounded number would generate another schedule.
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)

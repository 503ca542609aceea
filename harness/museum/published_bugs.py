"""The published bugs: what was promised, what happens, where it was published."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from shaketable.harness.campaigns.campaign import Campaign, load
from shaketable.harness.contracts.finding_kinds import FINDING_KINDS

BUGS: Final = Path(__file__).parent / "bugs"
BUG, CAMPAIGN, FIXED = "bug.toml", "campaign.toml", "fixed.toml"
TRIES_MAX: Final = 100
Url = Annotated[str, msgspec.Meta(pattern="^https://")]


class Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a bug.toml says.

    Attributes:
        title: the bug in a sentence, with the system and its version.
        sources: where it was published; the first one is the best to read.
        promised: what the system's documentation promises, or what its users expect.
        happens: what goes wrong, and why.
        seen: the operation in which a client sees it.
        shows: the kinds of findings that show it, any of them.
        tries: how many campaigns may look for it, each with a seed of its own.
        fixed_by: the version or the setting of fixed.toml, in a few words.
    """

    title: str
    sources: Annotated[tuple[Url, ...], msgspec.Meta(min_length=1)]
    promised: str
    happens: str
    seen: str
    shows: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    tries: Annotated[int, msgspec.Meta(ge=1, le=TRIES_MAX)]
    fixed_by: str


class PublishedBug(msgspec.Struct, frozen=True, kw_only=True):
    """A bug, the campaign that shows it, and the campaign of the system without it."""

    name: str
    told: Told
    folder: Path

    @property
    def campaign_file(self) -> Path:
        """The campaign that shows it."""
        return self.folder / CAMPAIGN

    @property
    def fixed_file(self) -> Path:
        """The same campaign, of a system that does not have the bug."""
        return self.folder / FIXED

    def campaigns(self) -> tuple[Campaign, Campaign]:
        """Return both campaigns. Raises UsageError if a file is broken."""
        return load(self.campaign_file), load(self.fixed_file)


def published_bugs(folder: Path | None = None) -> Mapping[str, PublishedBug]:
    """Return the bugs of a folder by name; by default those that are built in.

    Raises:
        OSError, ValueError: a file cannot be read, or is broken: they are a part of this program.
    """
    return {
        file.parent.name: PublishedBug(name=file.parent.name, told=_told(file), folder=file.parent)
        for file in sorted((folder or BUGS).glob(f"*/{BUG}"))
    }


def _told(file: Path) -> Told:
    told = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Told)
    if unknown := [kind for kind in told.shows if kind not in FINDING_KINDS]:
        raise ValueError(f"{file}: there is no kind of finding called {', '.join(unknown)}")
    return told

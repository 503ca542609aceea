"""Render the page of `museum`: what each published bug is, whether it was seen, and its fix."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from jinja2 import Environment

from shaketable.reports import templating

# What is shown in the terminal, as JSON and on the page. Pure data.


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign.

    Attributes:
        seed: repeats it.
        exit_code: of `run`.
        took_s: real seconds, check and report included.
        shows: the kinds of findings that show the bug, as far as it found some.
        says: the first of these findings; else why the run is not VALID.
        page: the first violation's page, or the run's, relative to the folder of this page.
    """

    seed: str
    exit_code: int
    took_s: float
    shows: tuple[str, ...]
    says: str
    page: str

    @property
    def verdict(self) -> str:
        """VALID, INVALID, UNKNOWN, or ERROR if there was no verdict."""
        return {0: "VALID", 1: "INVALID", 2: "UNKNOWN"}.get(self.exit_code, "ERROR")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A published bug, and what its campaigns showed.

    Attributes:
        bug: its name.
        title, sources, promised, happens, seen, fixed_by: as `harness.museum` has them.
        tries: campaigns of the system with the bug; the last one shows it if any did.
        fixed: campaigns of the system without it.
    """

    bug: str
    title: str
    sources: tuple[str, ...]
    promised: str
    happens: str
    seen: str
    fixed_by: str
    tries: tuple[Try, ...]
    fixed: tuple[Try, ...]

    @property
    def is_found(self) -> bool:
        """Whether a campaign showed it."""
        return any(one.shows for one in self.tries)

    @property
    def is_fix_clean(self) -> bool:
        """Whether all campaigns without the bug were VALID, and none showed it."""
        return all(one.verdict == "VALID" and not one.shows for one in self.fixed)

    @property
    def took_s(self) -> float:
        """Real seconds until it was found, or given up."""
        return sum(one.took_s for one in self.tries)


TEMPLATES: Final = Path(__file__).parent / "templates"


def render_museum(shown: tuple[Shown, ...], seed: int) -> str:
    """Render the page."""
    return _environment().get_template("museum.html.j2").render(shown=shown, seed=seed)


@cache
def _environment() -> Environment:
    made = templating.environment(TEMPLATES)
    made.filters["duration"] = duration
    return made


def duration(seconds: float) -> str:
    """Print a time as a person would: 48 s, 3 min 5 s."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

"""The command `museum`: published bugs of real systems, shown again."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from rich.status import Status
from rich.text import Text

from shaketable.harness.campaigns.campaign import target_of
from shaketable.harness.contracts.abilities import NeedsInstallation
from shaketable.harness.contracts.errors import HarnessError, UsageError, unknown_name
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.history.run_folder import utc_name, write_atomically
from shaketable.harness.museum import TRIES_MAX, PublishedBug, published_bugs, show
from shaketable.harness.targets.on_demand import TargetOnDemand
from shaketable.harness.terminal import output
from shaketable.harness.terminal.targets import install
from shaketable.reports.museum_page import Shown, Try, duration, render_museum

PAGE, RESULTS = "museum.html", "museum.json"
FIXED_MAX: Final = 100
SEEDS: Final = 1 << 32


def museum(
    *names: Annotated[str, Parameter(name="NAME")],
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    tries: Annotated[int | None, Parameter(metavar="N", show_default=False)] = None,
    fixed: Annotated[int, Parameter(metavar="N")] = 1,
    seed: Annotated[int | None, Parameter(metavar="N", show_default=False)] = None,
    store: Annotated[Path, Parameter(metavar="FOLDER")] = Path("store"),
) -> int:
    """Reproduce published bugs of real systems, or list them.

    Each bug has a campaign that looks for it, with a new seed each time, until it is found. Then
    the same campaign runs with the version or the setting that fixes the bug. Programs that are
    missing are installed (see ./shaketable install).

    Exit codes: 0 all bugs were found, and the fixed systems were valid; 1 otherwise; 254 bad usage;
    255 the harness failed.

    For example:
    ./shaketable museum
    ./shaketable museum nats-unsynced
    ./shaketable museum --all --fixed 3

    Args:
        names: Which bugs; default: list them.
        all_: All bugs.
        tries: How many campaigns may look for a bug; default: as many as are known to suffice.
        fixed: Number of campaigns with the fix.
        seed: Seed of the first campaign; default: a fresh one, which is printed.
        store: Where the runs and the page are kept.
    """
    there = published_bugs()
    if unknown := [name for name in names if name not in there]:
        raise UsageError(unknown_name("published bug", unknown[0], there))
    if tries is not None and not 1 <= tries <= TRIES_MAX:
        raise UsageError(f"--tries {tries}: expected 1 to {TRIES_MAX}")
    if not 0 <= fixed <= FIXED_MAX:
        raise UsageError(f"--fixed {fixed}: expected 0 to {FIXED_MAX}")
    if seed is not None and not 0 <= seed < SEEDS:
        raise UsageError(f"--seed {seed}: expected 0 to {SEEDS - 1:,}")
    chosen = list(there.values()) if all_ else [there[name] for name in dict.fromkeys(names)]
    if not chosen:
        _list(tuple(there.values()))
        return ExitCode.VALID
    for bug in chosen:
        _install(bug, with_fixed=fixed > 0)
    first_seed = secrets.randbelow(SEEDS) if seed is None else seed
    return _show(chosen, store, first_seed, tries, fixed)


def _list(bugs: Sequence[PublishedBug]) -> None:
    rows = [(bug.name, bug.told.title) for bug in bugs]
    output.show_rows(output.out, rows)
    output.out.print()
    _say(f"For example: {PROGRAM} museum {bugs[0].name}")


def _install(bug: PublishedBug, *, with_fixed: bool) -> None:
    """Install what a bug's campaigns run. Raises HarnessError if that fails."""
    shown, fixed = bug.campaigns()
    for campaign in (shown, fixed) if with_fixed else (shown,):
        target = target_of(campaign)
        if isinstance(target, NeedsInstallation) and target.why_not_installed() is not None:
            assert isinstance(target, TargetOnDemand)
            install(f"{target.name}@{target.version}")


def _show(
    bugs: Sequence[PublishedBug], store: Path, seed: int, tries: int | None, fixed: int
) -> int:
    folder = store / "museum" / utc_name(datetime.now(UTC))
    shown_folder = output.shown(folder)
    count = f"{len(bugs)} published bug{'s' if len(bugs) != 1 else ''}"
    heading = Text("shaketable", style="bold")
    heading.append(f"  museum · {count} · seed {seed}", "not bold default")
    output.out.print(heading, soft_wrap=True)
    output.out.print(Text(shown_folder, style="dim"), soft_wrap=True)
    done: list[Shown] = []
    for bug in bugs:
        output.out.print()
        title = Text(bug.name, style="bold").append(f"  {bug.told.title}", "not bold")
        output.out.print(title, soft_wrap=True)
        with closing(_Campaigns()) as campaigns:
            one = show(bug, folder, seed, tries or bug.told.tries, fixed, campaigns.tell)
        done.append(one)
        _write(folder, tuple(done), seed)
    output.out.print()
    found = sum(one.is_found for one in done)
    _say(f"{found} of {len(done)} found")
    _say(f"{shown_folder}/{PAGE}")
    is_good = found == len(done) and all(one.is_fix_clean for one in done)
    return ExitCode.VALID if is_good else ExitCode.INVALID


class _Campaigns:
    """Says what runs, on a terminal, and what each campaign showed."""

    def __init__(self) -> None:
        self._status: Status | None = None

    def tell(self, label: str, ended: Try | None) -> None:
        """Say that a campaign begins, or what it showed."""
        if ended is None:
            if output.out.is_terminal:
                self._status = output.out.status(f"  {label}: a campaign of a minute or so")
                self._status.start()
            return
        self.close()
        style, word = ("green", "found") if ended.shows else ("", ended.verdict)
        text = Text(f"  {label:<22} ").append(word, style)
        says = f"{', '.join(ended.shows)}: {ended.says}" if ended.shows else ended.says
        text.append(f"  {duration(ended.took_s)}  {says.split('. ')[0]}".rstrip())
        output.out.print(text, soft_wrap=True)

    def close(self) -> None:
        """Remove what is shown of a campaign that runs."""
        if self._status is not None:
            self._status.stop()
        self._status = None


def _write(folder: Path, shown: tuple[Shown, ...], seed: int) -> None:
    """Write the page and its data anew after each bug: an interruption loses nothing."""
    try:
        write_atomically(folder / RESULTS, msgspec.json.encode(shown).decode() + "\n")
        write_atomically(folder / PAGE, render_museum(shown, seed))
    except OSError as error:
        raise HarnessError(f"cannot write {error.filename}: {error.strerror}") from error


def _say(text: str) -> None:
    output.out.print(Text(text), soft_wrap=True)

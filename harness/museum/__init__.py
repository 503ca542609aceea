"""Published bugs of real systems, each with a campaign that shows it and one that does not.

A folder each under `bugs`: `bug.toml` says what it is, what was promised and where it was
published, `campaign.toml` is the campaign that finds it, `fixed.toml` the same with what fixes it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from shaketable.harness import guard
from shaketable.harness.campaigns.campaign import Campaign, load
from shaketable.harness.contracts.finding_kinds import FINDING_KINDS
from shaketable.harness.contracts.isolation import BREAKS
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.history.run_folder import (
    LATEST,
    CheckerFile,
    RunFolder,
    UnreadableError,
    read_results,
)
from shaketable.reports.museum_page import Shown, Try

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
    if unknown := [kind for kind in told.shows if kind not in {**FINDING_KINDS, **BREAKS}]:
        raise ValueError(f"{file}: there is no kind of finding called {', '.join(unknown)}")
    return told


# Run the campaigns of a published bug: until one shows it, then those of the system without it.
#
# Each campaign is `shaketable run` in a child process, as a person or CI would run it.

TERM_EVERY_S: Final = 1.0
"""A run tears down at the second SIGTERM, and abandons its check at the third."""
END_TIMEOUT_S: Final = 90.0
"""After this a run that was asked to end is killed; what it started ends with it."""
OUTPUT: Final = "output.txt"

Tell = Callable[[str, Try | None], None]
"""Is called with a label as a campaign begins, and with the label and the outcome as it ends."""


def show(bug: PublishedBug, folder: Path, seed: int, tries: int, fixed: int, tell: Tell) -> Shown:
    """Run a bug's campaigns; all they leave is under `folder`, and paths are relative to it.

    Campaign n has the seed SEED + n, in hexadecimal digits, with and without the bug.
    """

    def run(campaign: Path, label: str, number: int) -> Try:
        tell(label, None)
        one = _try(bug, campaign, folder, f"{seed + number:x}")
        tell(label, one)
        return one

    done: list[Try] = []
    while len(done) < tries and not any(one.shows for one in done):
        label = f"try {len(done) + 1} of {tries}"
        done.append(run(bug.campaign_file, label, len(done)))
    clean = [run(bug.fixed_file, f"without it, {n + 1} of {fixed}", n) for n in range(fixed)]
    told = bug.told
    return Shown(
        bug=bug.name,
        title=told.title,
        sources=told.sources,
        promised=told.promised,
        happens=told.happens,
        seen=told.seen,
        fixed_by=told.fixed_by,
        tries=tuple(done),
        fixed=tuple(clean),
    )


def _try(bug: PublishedBug, campaign: Path, folder: Path, seed: str) -> Try:
    """Run one campaign and read what it found."""
    store = folder / bug.name / f"{campaign.stem}-{seed}"
    store.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    named = ("--name", bug.name, "--seed", seed, "--store", str(store))
    code, last_line = _run(["run", str(campaign), *named], store / OUTPUT)
    took_s = round(time.monotonic() - start_s, 1)
    run = store / bug.name / LATEST
    checkers = _checkers(run)
    is_judged = code in (ExitCode.VALID, ExitCode.INVALID, ExitCode.UNKNOWN) and bool(checkers)
    found = [one for one in _found(checkers) if one[0] in bug.told.shows] if is_judged else []
    return Try(
        seed=seed,
        exit_code=code,
        took_s=took_s,
        shows=tuple(dict.fromkeys(kind for kind, _ in found)),
        says=found[0][1] if found else _why(checkers, code) if is_judged else last_line,
        page=_page(run, folder) if is_judged else os.path.relpath(store / OUTPUT, folder),
    )


def _run(arguments: list[str], output: Path) -> tuple[int, str]:
    """Run `shaketable` to its end; return its exit code and its last line of output.

    It has a session of its own: after Ctrl-C it is asked to undo its faults, and waited for.
    """
    argv = [sys.executable, "-P", "-m", "shaketable", *arguments]
    with output.open("wb") as file:
        process = subprocess.Popen(
            guard.command(argv, os.getpid()),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    lines = [line for line in output.read_text("utf-8", "replace").splitlines() if line.strip()]
    return code, lines[-1].strip() if lines else f"exit status {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run by SIGTERM; after the timeout by SIGKILL."""
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TERM_EVERY_S)
    process.kill()
    process.wait()


def _checkers(run: Path) -> Mapping[str, CheckerFile]:
    """Return what each checker found; nothing if the run was not judged."""
    try:
        return read_results(RunFolder(run)).checkers
    except UnreadableError:
        return {}


def _found(checkers: Mapping[str, CheckerFile]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the message of each finding, also of what was never promised."""
    for verdict in checkers.values():
        for finding in (*verdict.findings, *verdict.observed):
            yield finding.kind, finding.message


def _why(checkers: Mapping[str, CheckerFile], code: int) -> str:
    """Return the reason of a verdict that is not VALID; "" for VALID."""
    wanted = {ExitCode.INVALID: False, ExitCode.UNKNOWN: "unknown"}.get(ExitCode(code))
    return next((one.summary for one in checkers.values() if one.valid == wanted), "")


def _page(run: Path, folder: Path) -> str:
    """Return the page of the first violation; of the run, if it has none."""
    from shaketable.reports.run_page.view import build_view  # noqa: PLC0415 - half a second, once a campaign

    return os.path.relpath(run.resolve() / (build_view(run).first_page or "report.html"), folder)

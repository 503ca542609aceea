"""The command `completion`, and the names that a shell is offered for options and arguments.

cyclopts writes the scripts. Commands and options are in them; names (of targets, faults, planted
bugs, ...) are asked from the program when Tab is pressed, so that those of `shaketable.toml` are
among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from cyclopts import Parameter

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.terminal.output import out

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

Shell = Literal["bash", "zsh", "fish"]
Names = Iterable[str | tuple[str, str]]
Completer = Callable[["CompletionContext"], Names]

SHELLS: Final = get_args(Shell)
FILES_MAX: Final = 1000
"""Entries of a folder that are looked at."""


def completion(
    shell: Annotated[Shell | None, Parameter(name="SHELL", show_default=False)] = None,
    /,
    *,
    install: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Print or install completion of commands, options and names for your shell.

    For example:
    ./shaketable completion --install
    ./shaketable completion bash

    Tab then completes commands, options, and the names of targets, faults, workloads, campaigns and
    planted bugs. Start a new shell after the installation.

    Args:
        shell: bash, zsh or fish; default: the one that this is called from.
        install: Write it to where this shell looks for it, and have its startup file load it.
    """
    from cyclopts.completion.detect import ShellDetectionError, detect_shell  # noqa: PLC0415 - used here alone

    from shaketable.harness.terminal.commands import app  # noqa: PLC0415 - it names this module

    try:
        chosen = shell or detect_shell()
    except ShellDetectionError as error:
        raise UsageError("cannot tell which shell this is: give bash, zsh or fish") from error
    if chosen not in SHELLS:
        raise UsageError(f"{chosen} has no completion here: give bash, zsh or fish")
    if not install:
        out.print(app.generate_completion(shell=chosen), markup=False, soft_wrap=True)
        return ExitCode.VALID
    try:
        path = app.install_completion(shell=chosen)
    except OSError as error:
        raise HarnessError(f"cannot write {error.filename}: {error.strerror}") from error
    out.print(f"written: {path}; start a new {chosen}, then press Tab", markup=False)
    return ExitCode.VALID


# ---- the names ------------------------------------------------------------------------------


def one_of(*kinds: str, also: Iterable[str] = ()) -> Completer:
    """Return a completer for a name of one of these kinds, as `list` calls them."""
    return lambda _: [*_names(kinds), *also]


def several_of(*kinds: str, also: Iterable[str] = ()) -> Completer:
    """Return a completer for names that are separated by commas."""

    def complete(context: CompletionContext) -> Names:
        before, comma, _ = context.incomplete.rpartition(",")
        given = before.split(",")
        names = [*_names(kinds), *((name, "") for name in also if not comma)]
        return [(f"{before}{comma}{name}", told) for name, told in names if name not in given]

    return complete


def one_of_or_file(kind: str) -> Completer:
    """Return a completer for a name of that kind, or a file of TOML."""

    def complete(context: CompletionContext) -> Names:
        folder, slash, _ = context.incomplete.rpartition("/")
        here = sorted(Path(folder + slash or ".").glob("*"))[:FILES_MAX]
        files = [
            f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}"
            for path in here
            if path.suffix == ".toml" or (path.is_dir() and not path.name.startswith("."))
        ]
        return [*_names([kind]), *files]

    return complete


def planted_bug(context: CompletionContext) -> Names:
    """Return the planted bugs of the target that the command line names."""
    from shaketable.harness import discovery  # noqa: PLC0415 - as below

    target = context.get("--target")
    name = (target.raw if target is not None else None) or "dledger"
    return dict(discovery.get("targets", name).mutants)


def _names(kinds: Iterable[str]) -> list[tuple[str, str]]:
    return [pair for kind in kinds for pair in (_SOURCES.get(kind) or _plugins_of(kind))()]


def _plugins_of(kind: str) -> Callable[[], list[tuple[str, str]]]:
    from shaketable.harness import discovery  # noqa: PLC0415 - a shell waits: only where it is asked for

    return lambda: [(name, discovery.summary(each)) for name, each in discovery.find(kind).items()]


def _scenarios() -> list[tuple[str, str]]:
    from shaketable.harness.campaigns.scenarios import SCENARIOS  # noqa: PLC0415 - as above

    return [(name, scenario.summary) for name, scenario in SCENARIOS.items()]


def _planted_bugs() -> list[tuple[str, str]]:
    from shaketable.harness import discovery  # noqa: PLC0415 - as above
    from shaketable.harness.contracts.abilities import planted_bugs  # noqa: PLC0415 - as above

    found = planted_bugs(discovery.find("targets").values())
    return [(bug.name, bug.breaks) for bug in found]


def _files(folder: str) -> Callable[[], list[tuple[str, str]]]:
    def found() -> list[tuple[str, str]]:
        from shaketable.harness.campaigns import built_in  # noqa: PLC0415 - as above

        there: Path = getattr(built_in, folder)
        return [(name, built_in.summary(name, there)) for name in built_in.names(there)]

    return found


_SOURCES: Final[Mapping[str, Callable[[], list[tuple[str, str]]]]] = {
    "scenarios": _scenarios,
    "campaigns": _files("CAMPAIGNS"),
    "matrices": _files("MATRICES"),
    "mutants": _planted_bugs,
}
"""Where the names of kinds come from that are no plug-ins."""

OF_CAMPAIGN_KEYS: Final[Mapping[str, Completer]] = {
    "target": one_of("targets"),
    "promise": one_of("targets"),
    "mutant": planted_bug,
    "workload": one_of("workloads", also=("default",)),
    "faults": several_of("faults", also=("all", "none", "default")),
    "scenarios": several_of("scenarios", also=("all", "none")),
    "victims": several_of(also=("leader", "followers", "one", "minority", "majority", "all")),
}
"""Completers for options that are keys of a campaign file."""


def of_campaign_key(key: str, choices: Iterable[Any] = ()) -> Completer | None:
    """Return the completer for an option of `run`; None where there is nothing to choose from."""
    known = tuple(map(str, choices))
    return OF_CAMPAIGN_KEYS.get(key) or (one_of(also=known) if known else None)

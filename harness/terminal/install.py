"""The command `install`: puts a target's program into a cache of our own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from shaketable.harness import discovery
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.installing.cache import cache_folder, folder_of, is_installed
from shaketable.harness.installing.installers import install as install_into
from shaketable.harness.installing.pins import chosen, pinned
from shaketable.harness.terminal.output import out, show_rows


def install(
    *targets: Annotated[str, Parameter(name="TARGET[@VERSION]")],
    cache: Annotated[Path | None, Parameter(metavar="FOLDER", show_default=False)] = None,
) -> int:
    """Install targets that are not ours into a cache, or list them.

    A program comes from its registry (PyPI, Debian, Go modules) and has to have the checksum that
    is pinned for its version. Nothing is installed into the system, and what is interrupted leaves
    nothing. What is there is not installed again. `run` looks for it in SHAKETABLE_CACHE.

    Exit code 0: it is installed; 254: there is no such target or version; 255: a tool is missing,
    a checksum is wrong, or a download failed.

    For example:
    ./shaketable install
    ./shaketable install pysyncobj
    ./shaketable install pysyncobj@0.3.16 --cache /var/tmp/targets

    Args:
        targets: What to install, in its first version or another. Default: list what there is.
        cache: Where to, if not into SHAKETABLE_CACHE, or shaketable in the user's cache.
    """
    folder = cache_folder() if cache is None else cache.absolute()
    if not targets:
        _list(folder)
        return ExitCode.VALID
    pins = pinned()
    for target, version in [chosen(wanted, pins) for wanted in targets]:
        what = f"{target} {version}"
        if is_installed(folder, target, version):
            _say(f"{what} is installed: {folder_of(folder, target, version)}")
            continue
        _say(f"{what} into {folder}")
        begin_s = time.monotonic()
        install_into(folder, target, version, pins[target][version], lambda line: _say(f"  {line}"))
        _say(f"{what} is installed, in {time.monotonic() - begin_s:.0f} s")
    return ExitCode.VALID


def _list(folder: Path) -> None:
    """Print what can be installed, and which of it is."""
    for target, versions in pinned().items():
        out.print(Text(target, style="bold"))
        out.print(Text(discovery.summary(discovery.get("targets", target))), soft_wrap=True)
        there = [(each, is_installed(folder, target, each)) for each in versions]
        show_rows(out, [(each, "installed" if is_in else "") for each, is_in in there])
        out.print()
    _say(f"Cache: {folder}")
    _say(f"For example: {PROGRAM} install {next(iter(pinned()))}")


def _say(text: str) -> None:
    out.print(Text(text), soft_wrap=True)

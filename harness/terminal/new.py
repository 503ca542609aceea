"""The command `new`: writes what one's own target begins with."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.described import FILE_NAME, scaffold
from shaketable.harness.described.target_file import NAME, read
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
    workload = operations or _asked(
        f"What clients do ({', '.join(scaffold.OPERATIONS)})", "register"
    )
    if workload not in scaffold.OPERATIONS:
        raise UsageError(f"clients do one of {', '.join(scaffold.OPERATIONS)}, not {workload!r}")
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

"""The commands `new` and `install`: targets of one's own, and programs of others."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Parameter
from rich.text import Text

from shaketable.harness import discovery
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.described import FILE_NAME, WORKLOADS
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
    operations: str | None = None,
    leader: str | None = None,
) -> int:
    """Create the files of a target of your own: a table in shaketable.toml, a client, a test.

    Example: ./shaketable new target kvs --operations register

    In a terminal it asks for what is missing.

    Args:
        kind: "target".
        name: Its name: lower-case letters, digits and hyphens.
        start: Command that starts one node in the foreground, with placeholders such as {id},
            {client}, {peer}, {members} and {data} (docs/your-own-system.md).
        operations: What clients do: register, read-write-register, log, set, counter, work-queue,
            list-append, rw-register or bank. [register]
        leader: URL at which a node reports the leader as JSON, if there is one.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid target name: use lower-case letters, digits and hyphens"
        )
    folder = Path.cwd()
    file = folder / FILE_NAME
    if file.exists() and name in read(file):
        raise UsageError(f"{FILE_NAME} already describes {name!r}")
    command = start or _asked("Command that starts one node", START_EXAMPLE)
    workload = operations or _asked(f"What clients do ({', '.join(WORKLOADS)})", "register")
    if workload not in WORKLOADS:
        raise UsageError(f"clients do one of {', '.join(WORKLOADS)}, not {workload!r}")
    url = leader if leader is not None else _asked("URL that says who leads, if any", "")
    texts = {
        folder / _client_file(name): _client(workload),
        folder / _test_file(name): _test(name),
    }
    for path in texts:
        if path.exists():
            raise UsageError(f"{path.name} is there already; nothing was written")
    try:
        before = file.read_text(encoding="utf-8").rstrip() + "\n\n" if file.exists() else ""
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        table = _table(name, [_from_here(word) for word in shlex.split(command)], url)
        file.write_text(before + table, encoding="utf-8")
    except OSError as error:
        raise HarnessError(f"cannot write into {folder}: {error.strerror}") from error
    rows = [
        (FILE_NAME, f"[targets.{name}]: how its nodes are started"),
        (_client_file(name), "what clients do: fill it in"),
        (_test_file(name), "a test for pytest"),
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
    """Install third-party targets into a cache, or list them.

    Programs come from their registries (PyPI, Debian, Go modules) and must match the checksum that
    is pinned for their version. Nothing is installed into the system, an interrupted installation
    leaves nothing behind, and what is already there is kept. `run` looks in SHAKETABLE_CACHE.

    Exit code 0: it is installed; 254: there is no such target or version; 255: a tool is missing,
    a checksum is wrong, or a download failed.

    For example:
    ./shaketable install
    ./shaketable install pysyncobj
    ./shaketable install pysyncobj@0.3.16 --cache /var/tmp/targets

    Args:
        targets: What to install; without a version, the target's default one. Without a target:
            list them.
        cache: Where to install; default: SHAKETABLE_CACHE, else shaketable in the user's cache.
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


# The files with which a new target begins: a table, a client, a test.

START_EXAMPLE: Final = "./server --id {id} --listen {client} --peers {members} --data {data}"

_BODIES: Final = {
    "read": ("session, key", "Return the value of a key, a whole number; None if it has none."),
    "write": ("session, key, value", "Set the value of a key."),
    "cas": (
        "session, key, expected, value",
        "Set the value if the key has the expected one (None: none); return whether it had.",
    ),
    "append": ("session, key, value", "Append to the log of that key; return the offset."),
    "read_at": ("session, key, offset", "Return the value at an offset; None at the end."),
    "end": ("session, key", "Return the offset of the next append."),
    "add": ("session, key, value", "Add a whole number to the set of that key."),
    "elements": ("session, key", "Return all elements of the set, as they are now."),
    "increment": ("session, key, amount", "Add an amount to the counter of that key."),
    "count": ("session, key", "Return the value of the counter."),
    "enqueue": ("session, key, value", "Put a whole number into the queue of that key."),
    "dequeue": ("session, key", "Take a number out of the queue; None if it is empty."),
    "transact": (
        "session, steps",
        "Do the steps (docs/workloads.md) in one transaction; return them with what was read.",
    ),
    "transact_registers": (
        "session, steps",
        "Do the steps (docs/workloads.md) in one transaction; return them with what was read.",
    ),
    "transfer": (
        "session, source, destination, amount, opening",
        "Move an amount between accounts, which hold `opening` at first; False if one has less.",
    ),
    "balances": (
        "session, accounts, opening",
        "Return the balances of all these accounts, read in one transaction.",
    ),
}


def _from_here(word: str) -> str:
    """Return a word of a command; a file of this folder so that nodes find it from theirs."""
    is_path = not word.startswith(("-", "/", "./", "{"))
    return f"{{here}}/{word}" if is_path and Path(word).is_file() else word


def _table(name: str, start: list[str], leader: str) -> str:
    """Return the target's table for `shaketable.toml`."""
    words = ", ".join(json.dumps(word) for word in start)
    asked = (
        f'\n[targets.{name}.leader]\nhttp = {json.dumps(leader)}\nleader = "leader"'
        "  # where it is in the JSON of the answer\n"
        if leader
        else ""
    )
    return f"""\
[targets.{name}]
summary = "Nodes of {name}."
start = [{words}]
client = "{_client_file(name)}"
{asked}
[targets.{name}.promises]
durable_under = ["process", "network"]  # families of faults, or faults (list faults)
"""


def _client(workload: str) -> str:
    """Return a client with the functions of a workload, to be filled in."""
    head = '''\
"""What clients do. Each function may be plain (def), or a coroutine of asyncio or trio.

An error means that it is unknown whether the operation happened, except in functions that only
read. List in DEFINITE the exceptions after which it certainly did not happen.
"""

DEFINITE = (ConnectionRefusedError,)


def open(node):
    """Return a session with a node: it has name, host, port and timeout_s."""
    raise NotImplementedError


def close(session):
    """Close a session; after an error it is not used any more."""
'''
    functions = (_body(name) for name in WORKLOADS[workload])
    return "\n\n".join((head, *functions))


def _test(name: str) -> str:
    """Return a test for pytest that shakes the target for twenty seconds."""
    function = f"test_{name}_keeps_its_promises".replace("-", "_")
    return f'''\
"""Shakes {name} for twenty seconds: no acknowledged write may be lost, no read be stale."""


def {function}(shake):
    shake(target="{name}", time_limit="20s")
'''


def _client_file(name: str) -> str:
    """Return the name of a target's client file."""
    return f"{name.replace('-', '_')}_client.py"


def _test_file(name: str) -> str:
    """Return the name of a target's test."""
    return f"test_{name.replace('-', '_')}.py"


def _body(name: str) -> str:
    arguments, what = _BODIES[name]
    return f'def {name}({arguments}):\n    """{what}"""\n    raise NotImplementedError\n'

"""Find all faults in a process of its own, since a plug-in may do anything on import.

`python -m shaketable.harness.doctoring.survey PARENT_PID [ENTRY_POINT...]` prints JSON lines: each
built-in fault; then, for each entry point except the named ones, its source before the import and
the result after it. A plug-in that cannot be imported is one such result and ends nothing.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import trio

from shaketable.harness import discovery, guard
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.error_output import one_line
from shaketable.harness.runtime.processes import children

START_TIMEOUT_S: Final = 60.0
IMPORT_TIMEOUT_S: Final = 20.0
HANGING_MAX: Final = 5
"""How many plug-ins may hang or end Python on import before the survey gives up."""


@dataclass(frozen=True, slots=True)
class Survey:
    """All known faults.

    Attributes:
        names: of the faults that can be tried.
        broken: why others cannot be tried, by displayed name.
        without: the entry points of these, for `harness.discovery.exclude_entry_points`.
    """

    names: tuple[str, ...]
    broken: dict[str, str]
    without: tuple[str, ...]

    @property
    def rows(self) -> int:
        """The number of findings for each world."""
        return len(self.names) + len(self.broken)


class Known(msgspec.Struct, frozen=True):
    """A fault, or why it cannot be tried; `source` is its entry point, "" if built in."""

    name: str
    source: str = ""
    why: str = ""


def find_faults(scratch: Path) -> Survey:
    """Find all faults. Must be called in the main thread.

    Raises:
        HarnessError: a built-in fault cannot be imported.
    """
    broken: dict[str, Known] = {}
    for _ in range(HANGING_MAX + 1):
        found, culprit = trio.run(_import_once, scratch / "survey.log", tuple(broken))
        if culprit is None:
            break
        broken[culprit.source] = culprit  # the next round imports all but this one
    else:
        raise HarnessError(f"more than {HANGING_MAX} plug-ins hang or end Python when imported")
    broken |= {each.source: each for each in found if each.why}
    names = tuple(sorted(each.name for each in found if not each.why))
    return Survey(names, _rows(names, broken.values()), tuple(broken))


def _rows(names: Sequence[str], broken: Collection[Known]) -> dict[str, str]:
    """Return why each is broken, by name, or by entry point if the name is not unique."""
    shared = Counter([*names, *(each.name for each in broken)])
    return {each.name if shared[each.name] == 1 else each.source: each.why for each in broken}


async def _import_once(log: Path, without: Sequence[str]) -> tuple[list[Known], Known | None]:
    """Import all but these; return the faults, and the one whose import hung or ended Python."""
    found: list[Known] = []
    trying = ""

    def take(line: bytes) -> float:
        nonlocal trying
        message = msgspec.json.decode(line, type=Known | str)
        trying = message if isinstance(message, str) else ""
        if isinstance(message, Known):
            found.append(message)
        return IMPORT_TIMEOUT_S

    program = [
        sys.executable,
        "-P",
        "-m",
        "shaketable.harness.doctoring.survey",
        str(os.getpid()),
        *without,
    ]
    ended = await children.run(guard.command(program, os.getpid()), log, take, START_TIMEOUT_S)
    if not ended.is_late and not ended.status:
        return found, None
    hung = f"it hangs: longer than {IMPORT_TIMEOUT_S:g} s" if ended.is_late else ""
    why = hung or f"it ends Python (exit status {ended.status})"
    if not trying:
        raise HarnessError(f"cannot find out which faults there are: {children.last_line(log)}")
    return found, Known(trying.partition(" = ")[0], trying, f"cannot be imported: {why}")


def main(arguments: Sequence[str]) -> int:
    """Import all faults except those of the entry points in the arguments."""
    parent_pid, *without = arguments
    with children.begin(parent_pid) as out:

        def emit(what: Known | str) -> None:
            out.write(f"{msgspec.json.encode(what).decode()}\n")

        discovery.exclude_entry_points(without)
        try:
            names = set(discovery.built_ins("faults"))
        except HarnessError as error:
            sys.stderr.write(f"{one_line(error)}\n")
            return 1
        for name in sorted(names):
            emit(Known(name))
        for point in discovery.external_entry_points("faults"):
            source = discovery.source_of(point)
            emit(source)
            try:
                name = discovery.load("faults", point).name
            except HarnessError as error:
                why = str(error).removeprefix(f"cannot load the plug-in {source}: ")
                is_import = len(why) < len(str(error))
                message = f"cannot be imported: {why}" if is_import else why
                emit(Known(point.name, source, one_line(message)))
                continue
            if name in names:
                emit(Known(point.name, source, f"another fault is named {name}, too"))
            else:
                names.add(name)
                emit(Known(name, source))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

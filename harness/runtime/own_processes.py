"""The processes of a run, found and ended when their harness was killed.

A process is a run's if it carries the run's mark in its environment (`harness.marks`), or if the
ledger names it, by pid and start time, or if it is in the session of one that the ledger names and
works in the run's folder. It is never ourselves, nor who started us.

Source: proc(5), pidfd_send_signal(2).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from shaketable.harness import marks
from shaketable.harness.marks import Who
from shaketable.harness.runtime.ledger import Account

ROUNDS_MAX: Final = 20
"""What is ended may have just started another: it is looked again, but not for ever."""
END_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.01


def by_folder() -> dict[Path, dict[int, marks.Mark]]:
    """Return the marks of all processes that have one, by the run's folder and the pid."""
    found: dict[Path, dict[int, marks.Mark]] = {}
    own = _own_line()
    for pid in marks.pids():
        mark = None if pid in own else marks.mark_of(pid)
        if mark is not None:
            found.setdefault(mark.folder, {})[pid] = mark
    return found


def end(path: Path, account: Account | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """End a run's processes by SIGKILL, which a stopped one obeys, too.

    Returns a line for each that was ended, and one for whatever is left.
    """
    ended: dict[Who, str] = {}
    spaces: set[str] = set()
    for _ in range(ROUNDS_MAX):
        alive = [each for each in _find(path, account) if each.is_alive]
        if not alive:
            break
        for each in alive:
            ended.setdefault(each, _called(each.pid))
            spaces |= {space for space in [_space(each.pid)] if space}
            _kill(each)
        _await_end(alive)
    left = [each for each in _find(path, account) if each.is_alive]
    did = [f"ended process {who.pid} ({name})" for who, name in ended.items() if who not in left]
    stays = [f"process {who.pid} ({_called(who.pid)}) does not end" for who in left]
    return tuple(did), (*stays, *_still_in(spaces - {_space(os.getpid())}))


def _find(path: Path, account: Account | None) -> Iterator[Who]:
    """The processes that are this run's (see the module's docstring), none of them ourselves."""
    own = _own_line()
    named = set() if account is None or account.boot != marks.boot() else {
        each for _, each in account.processes
    }  # fmt: skip
    sessions = {each.pid for each in named if marks.who(each.pid) in (None, each)}
    for pid in marks.pids():
        found = None if pid in own else marks.who(pid)
        if found is None:
            continue
        mark = marks.mark_of(pid)
        is_marked = mark is not None and mark.folder == path
        if found in named or is_marked or (_session(pid) in sessions and _works_in(pid, path)):
            yield found


def _own_line() -> set[int]:
    """This process and all that stand above it: whoever started a heal is not healed away."""
    line, pid = set(), os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        fields = marks.stat(pid)
        pid = int(fields[1]) if fields is not None else 0
    return line


def _session(pid: int) -> int:
    fields = marks.stat(pid)
    return int(fields[3]) if fields is not None else -1


def _works_in(pid: int, path: Path) -> bool:
    """Whether a process stands in the run's folder, or writes into it."""
    inside = f"{path}/"
    links = [Path(f"/proc/{pid}/cwd")]
    with suppress(OSError):
        links += [Path(f"/proc/{pid}/fd/{number}") for number in (1, 2)]
    for link in links:
        with suppress(OSError):
            if f"{link.readlink()}/".startswith(inside):
                return True
    return False


def _kill(each: Who) -> None:
    """Send SIGKILL to that process and to no other that may get its pid."""
    with suppress(OSError):
        handle = os.pidfd_open(each.pid)
        try:
            if each.is_alive:  # the handle is of this very process, then
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _await_end(processes: list[Who]) -> None:
    end_s = time.monotonic() + END_TIMEOUT_S
    while any(each.is_alive for each in processes) and time.monotonic() < end_s:
        time.sleep(POLL_S)


def _called(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


def _space(pid: int) -> str:
    """The network namespace of a process; "" if it cannot be known."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def _still_in(spaces: set[str]) -> list[str]:
    """Who is still in a namespace of the run, though not the run's."""
    return [
        f"process {pid} ({_called(pid)}), which is not the run's, holds its namespace {space}"
        for pid in marks.pids()
        if spaces and (space := _space(pid)) in spaces and marks.who(pid) is not None
    ]

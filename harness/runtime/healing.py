"""Cleans up after a run whose harness was killed: its processes, its faults, its files elsewhere.

These die with the harness: nodes, client workers and the switch (by the kernel's parent-death
signal, also if stopped), and with them proxies, namespaces, limits and clocks; Spark's JVM (a shell
waits for the end of its input). These do not: other processes that a target's program started,
processes that lost their watcher, scratch folders of killed processes, and effects of third-party
faults elsewhere. The run's marker and its ledger identify all of them.

Only processes of the run are touched (see below), and no run whose harness is alive. Idempotent.

Source: DESIGN.md decision 12; jepsen.nemesis (`teardown!` heals what a crashed test left).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio

from shaketable.harness import discovery, run_markers
from shaketable.harness.campaigns.campaign import EXISTING, Campaign, load, node_names, target_of
from shaketable.harness.contracts.abilities import RunsAlready, SteersNodes
from shaketable.harness.contracts.capabilities import needs_of
from shaketable.harness.contracts.errors import HarnessError, UsageError, clearest
from shaketable.harness.contracts.plugins import Address, Fault, Json, NodeLayout
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.described import FILE_NAME
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.run_markers import ProcessIdentity
from shaketable.harness.runtime import ledger
from shaketable.harness.runtime.ended_world import EndedWorld, undo_apart
from shaketable.harness.runtime.ledger import Account, Lines, OpenFault
from shaketable.harness.runtime.processes import faketime
from shaketable.harness.untrusted_text import error_text

UNDO_TIMEOUT_S: Final = 15.0
PLAN_CHARS_MAX: Final = 400
TAIL_BYTES: Final = 4096
_NOWHERE: Final = Address("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class Healed:
    """What was done about one run.

    Attributes:
        folder: the run's folder.
        did: what was undone, a line each; () if nothing was left.
        left: what could not be undone, a line each.
        is_alive: its harness is alive, so nothing was touched.
    """

    folder: Path
    did: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    is_alive: bool = False


def heal_store(store: Path, depth: int = 2) -> list[Healed]:
    """Heal every run of a store that needs it, the oldest first, and remove lost scratch folders.

    Runs are in STORE/NAME/TIME: `depth` folders below the store, or fewer. Returns what was done:
    runs that ended by themselves are not in it, live ones are. A ledger that cannot be read or
    written is reported in `left`.
    """
    store = store.resolve()
    found = processes_by_folder()
    lost = run_markers.abandoned_scratch(Path(tempfile.gettempdir()))
    runs = {path for path in found if any(map(path.is_relative_to, (store, *lost)))}
    for below in range(1, depth + 1):
        ledgers = store.glob("/".join(["*"] * below + ["faults.jsonl"]))
        runs |= {path.parent.resolve() for path in ledgers if not _is_over(path)}
    healed = [_heal_or_tell(run, found.get(run, {})) for run in sorted(runs)]
    scratch = remove_scratch()
    if scratch:
        healed.append(Healed(Path(tempfile.gettempdir()), scratch))
    return healed


def heal_run(folder: Path, forget: Collection[int] = ()) -> Healed:
    """Heal one run, by its folder. `forget`: open faults that a user repaired by hand.

    Raises:
        UsageError: its harness is alive, or a fault to forget is not open.
        HarnessError: its ledger cannot be read or written.
    """
    folder = folder.resolve()
    healed = _heal(folder, processes_by_folder().get(folder, {}), forget)
    if healed.is_alive:
        raise UsageError(f"{folder}: its harness is at work; end that first (Ctrl-C)")
    return healed


def remove_scratch() -> tuple[str, ...]:
    """Remove the scratch folders of killed processes; return which."""
    removed = []
    for path in run_markers.abandoned_scratch(Path(tempfile.gettempdir())):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            removed.append(f"removed {path}, whose process is gone")
    return tuple(removed)


def _heal_or_tell(path: Path, marked: Mapping[int, run_markers.RunMarker]) -> Healed:
    """Heal a run; an error is reported in the result, so that other runs are healed too."""
    try:
        return _heal(path, marked)
    except HarnessError as error:
        return Healed(path, left=(str(error),))


# ---- one run -------------------------------------------------------------------------------


def _heal(
    path: Path, marked: Mapping[int, run_markers.RunMarker], forget: Collection[int] = ()
) -> Healed:
    folder = RunFolder(path)
    if not path.is_dir():  # it was deleted: only processes are left
        if any(mark.harness.is_alive for mark in marked.values()):
            return Healed(path, is_alive=True)
        return Healed(path, *end_processes(path, None))
    with run_markers.try_exclusive(path) as is_alone:
        try:
            account = ledger.read(folder.faults_jsonl)
        except HarnessError as error:  # its processes are known by their markers
            if not is_alone or any(mark.harness.is_alive for mark in marked.values()):
                return Healed(path, is_alive=True)
            did, left = end_processes(path, None)
            return Healed(path, did, (*left, str(error)))
        if not is_alone or _is_alive(account, marked):
            return Healed(path, is_alive=True)
        if strange := sorted(set(forget) - {fault.fault for fault in account.open}):
            raise UsageError(f"{path}: no fault {strange[0]} of this run is open")
        did, left = end_processes(path, account)
        cleaned, still_there = _clean_hosts(folder)
        # As long as a host is not clean, what faults did there may last.
        undone, stuck = ((), ()) if still_there else _undo_faults(folder, account, forget)
        did, left = did + cleaned, left + still_there
        did += _forget_clocks(account) + _take_orders_back(folder, account) + undone
        left += stuck
        if account.harness is not None and (did or not (account.is_ended or account.is_healed)):
            _note(folder, account, did)
    return Healed(path, did, left)


def _clean_hosts(folder: RunFolder) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """End what the run has left on other machines; return what, and what could not be ended."""
    if not folder.hosts_json.exists():
        return (), ()
    from shaketable.harness.runtime.hosts.world import clean_up_after  # noqa: PLC0415 - few runs need it

    try:
        return trio.run(clean_up_after, folder)
    except HarnessError as error:
        return (), (str(error),)


def _is_alive(account: Account, marked: Mapping[int, run_markers.RunMarker]) -> bool:
    """True if the process that wrote this run's ledger, or marked its processes, still runs."""
    is_open = not account.is_ended and account.boot == run_markers.boot_id()
    if account.harness is not None and is_open and account.harness.is_alive:
        return True
    return any(mark.harness.is_alive for mark in marked.values())


def _undo_faults(
    folder: RunFolder, account: Account, forget: Collection[int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Undo the open faults, the newest first; return which, and which could not be undone."""
    if not account.open:
        return (), ()
    world = EndedWorld(_nodes(folder))
    goes_on = _goes_on(folder)
    lines = _opened(folder)
    did, left = [], []
    try:
        for fault in account.open:
            what = f"fault {fault.fault} ({fault.name})"
            error = _undo(fault, world)
            if error is None and goes_on:  # else the effects ended with the group
                error = _recover(fault, folder, world.nodes)
            if error is None:
                lines.append({"event": "undone", "fault": fault.fault, "by": "heal"})
                did.append(f"{_how(fault, goes_on)} {what}")
            elif fault.fault in forget:
                lines.append({"event": "forgotten", "fault": fault.fault, "by": "heal"})
                did.append(f"forgot {what}, as requested: {_plan(fault)}")
            else:
                lines.append({"event": "stuck", "fault": fault.fault, "error": error, "by": "heal"})
                left.append(
                    f"{what} is not undone: {error}. When it was looked after by hand: "
                    f"{PROGRAM} heal {folder.path} --forget {fault.fault}"
                )
    finally:
        lines.close()
    return tuple(did), tuple(left)


def _undo(opened: OpenFault, world: EndedWorld) -> str | None:
    """Undo one fault; return why that failed, None if it did not.

    A fault without an undo was not fully applied. Built-in faults act only through their world, so
    their effects are over. Only its author can know what a third-party fault did by then; and its
    undo runs in its own process.
    """

    async def main(fault: Fault, undo: Json) -> bool:
        with trio.move_on_after(UNDO_TIMEOUT_S) as scope:
            await fault.undo(undo, world)
        return scope.cancelled_caught

    ours: Fault | None = discovery.built_in("faults", opened.name)
    if opened.undo is None:
        return None if ours is not None else _not_known(opened)
    if ours is None:
        return undo_apart(opened.name, opened.undo, world.nodes)
    try:
        is_late = trio.run(main, ours, opened.undo)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"not within {UNDO_TIMEOUT_S:g} s" if is_late else None


def _goes_on(folder: RunFolder) -> bool:
    """Return whether the run was on a group that runs already: its faults outlive the run."""
    campaign = _campaign(folder)
    return campaign is not None and campaign.world == EXISTING


def _running_group(folder: RunFolder) -> RunsAlready:
    """Return the target of a run on a group that runs already.

    Raises:
        HarnessError: there is no such target here, or it is another group of that name.
    """
    campaign = load(folder.campaign_toml)
    where = f"heal it where the run's {FILE_NAME} is"
    try:
        target = target_of(campaign)
    except UsageError as error:
        raise HarnessError(f"{where}: {error}") from error
    there = folder.facts().get("group", {}).get("nodes", [])
    if not isinstance(target, RunsAlready) or [str(at) for at in target.addresses] != there:
        nodes = ", ".join(there)
        raise HarnessError(f"{where}: {target.name} is another group here; its nodes were {nodes}")
    return target


def _recover(opened: OpenFault, folder: RunFolder, nodes: Sequence[str]) -> str | None:
    """Put a running group back after one fault; return why that failed, None if it did not."""
    from shaketable.harness.runtime.existing_world import recover  # noqa: PLC0415 - few runs need it

    try:
        needs = needs_of(discovery.get("faults", opened.name))
        trio.run(recover, _running_group(folder), needs, nodes)
    except Exception as error:
        return error_text(clearest(error))
    return None


def _not_known(opened: OpenFault) -> str:
    return (
        "the harness was killed while it was applied, or that failed; it gave no undo ahead, and "
        f"so it is not known what it did; {_plan(opened)}"
    )


def _plan(opened: OpenFault) -> str:
    text = json.dumps(opened.plan)
    short = text if len(text) <= PLAN_CHARS_MAX else f"{text[:PLAN_CHARS_MAX]}..."
    return f"its plan: {short}"


def _how(opened: OpenFault, goes_on: bool) -> str:
    if opened.undo is None and goes_on:
        return "undid, whatever it did:"
    if opened.undo is None:
        return "ended with the group, while it was applied:"
    return "undid" if opened.is_applied else "undid, by what it gave ahead,"


def _forget_clocks(account: Account) -> tuple[str, ...]:
    """Delete what programs with a faked clock left in shared memory."""
    if account.boot != run_markers.boot_id():
        return ()
    did = []
    for node, each in account.processes:
        shared = faketime.SHARED_MEMORY / f"faketime_shm_{each.pid}"
        if run_markers.proc_stat(each.pid) is None and shared.exists():
            faketime.forget(each.pid)
            did.append(f"removed what the faked clock of {node} (process {each.pid}) left")
    return tuple(did)


def _take_orders_back(folder: RunFolder, account: Account) -> tuple[str, ...]:
    """Withdraw the nodes' clock and disk orders, so that a node started by hand is unaffected."""
    campaign = _campaign(folder)
    if campaign is None or not account.open:
        return ()
    try:
        target = target_of(campaign)
    except (HarnessError, UsageError):
        return ()
    if not isinstance(target, SteersNodes):
        return ()
    did = []
    for node in node_names(campaign):
        layout = NodeLayout(node, folder.node(node), _NOWHERE, _NOWHERE, {})
        steering = target.steering(layout)
        if steering.effects():  # it followed orders
            steering.order()
            did.append(f"took the orders to {node} back")
    return tuple(did)


# ---- the ledger ----------------------------------------------------------------------------


def _note(folder: RunFolder, account: Account, did: tuple[str, ...]) -> None:
    lines = _opened(folder)
    try:
        lines.append(
            {
                "event": "healed",
                "did": list(did),
                "utc": datetime.now(UTC).isoformat("T", "seconds"),
            }
        )
    finally:
        lines.close()


def _opened(folder: RunFolder) -> Lines:
    """Open the ledger for appending after its last whole line.

    Raises:
        HarnessError: it cannot be written.
    """
    path = folder.faults_jsonl
    try:
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):  # torn by the harness's death
            os.truncate(path, data.rfind(b"\n") + 1)
    except OSError as error:
        raise HarnessError(f"cannot write {path}: {error.strerror}") from error
    return Lines(path)


def _is_over(path: Path) -> bool:
    """True if the ledger's run ended by itself or was healed, and left nothing open."""
    if RunFolder(path.parent).hosts_json.exists():
        return False
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
    except OSError:
        return True
    is_noted = last.startswith((b'{"event":"ended"', b'{"event":"healed"'))
    if is_noted and b'"event":"stuck"' not in path.read_bytes():
        return True
    try:
        account = ledger.read(path)
    except HarnessError:
        return False
    is_old = account.harness is None  # from a version that did not record its end
    return not account.open and (is_old or account.is_ended or account.is_healed)


def _campaign(folder: RunFolder) -> Campaign | None:
    try:
        return load(folder.campaign_toml)
    except UsageError:
        return None


def _nodes(folder: RunFolder) -> tuple[str, ...]:
    campaign = _campaign(folder)
    if campaign is not None:
        return node_names(campaign)
    with suppress(OSError):
        return tuple(sorted(path.name for path in folder.nodes.iterdir()))
    return ()


# The processes of a run, found and killed after their harness was killed.
#
# A process belongs to a run if it has the run's marker in its environment (`harness.run_markers`),
# or if the ledger names it, by pid and start time, or if it is in the session of one that the
# ledger names and works in the run's folder. It is never this process, nor one of its ancestors.
#
# Source: proc(5), pidfd_send_signal(2).

ROUNDS_MAX: Final = 20
"""A killed process may have just started another: look again, but not forever."""
END_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.01


def processes_by_folder() -> dict[Path, dict[int, run_markers.RunMarker]]:
    """Return the markers of all processes that have one, by the run's folder and the pid."""
    found: dict[Path, dict[int, run_markers.RunMarker]] = {}
    own = _own_line()
    for pid in run_markers.pids():
        mark = None if pid in own else run_markers.marker_of(pid)
        if mark is not None:
            found.setdefault(mark.folder, {})[pid] = mark
    return found


def end_processes(path: Path, account: Account | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Kill a run's processes with SIGKILL, which works on stopped ones too.

    Returns a line for each that was killed, and one for whatever is left.
    """
    ended: dict[ProcessIdentity, str] = {}
    spaces: set[str] = set()
    for _ in range(ROUNDS_MAX):
        alive = [each for each in _find(path, account) if each.is_alive]
        if not alive:
            break
        for each in alive:
            ended.setdefault(each, _called(each.pid))
            spaces |= {space for space in [_space(each.pid)] if space}
            run_markers.kill(each)
        _await_end(alive)
    left = [each for each in _find(path, account) if each.is_alive]
    did = [f"ended process {who.pid} ({name})" for who, name in ended.items() if who not in left]
    stays = [f"process {who.pid} ({_called(who.pid)}) does not end" for who in left]
    return tuple(did), (*stays, *_still_in(spaces - {_space(os.getpid())}))


def _find(path: Path, account: Account | None) -> Iterator[ProcessIdentity]:
    """Yield the processes of this run (see above), except this one and its ancestors."""
    own = _own_line()
    named = set() if account is None or account.boot != run_markers.boot_id() else {
        each for _, each in account.processes
    }  # fmt: skip
    sessions = {each.pid for each in named if run_markers.identify(each.pid) in (None, each)}
    for pid in run_markers.pids():
        found = None if pid in own else run_markers.identify(pid)
        if found is None:
            continue
        mark = run_markers.marker_of(pid)
        is_marked = mark is not None and mark.folder == path
        if (
            found in named
            or is_marked
            or (run_markers.session_of(pid) in sessions and _works_in(pid, path))
        ):
            yield found


def _own_line() -> set[int]:
    """Return this process and its ancestors: a heal must not kill its caller."""
    line, pid = set(), os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        fields = run_markers.proc_stat(pid)
        pid = int(fields[1]) if fields is not None else 0
    return line


def _works_in(pid: int, path: Path) -> bool:
    """True if a process has its working directory in the run's folder, or writes into it."""
    inside = f"{path}/"
    links = [Path(f"/proc/{pid}/cwd")]
    with suppress(OSError):
        links += [Path(f"/proc/{pid}/fd/{number}") for number in (1, 2)]
    for link in links:
        with suppress(OSError):
            if f"{link.readlink()}/".startswith(inside):
                return True
    return False


def _await_end(processes: list[ProcessIdentity]) -> None:
    end_s = time.monotonic() + END_TIMEOUT_S
    while any(each.is_alive for each in processes) and time.monotonic() < end_s:
        time.sleep(POLL_S)


def _called(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


def _space(pid: int) -> str:
    """Return the network namespace of a process; "" if it cannot be known."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def _still_in(spaces: set[str]) -> list[str]:
    """Return processes of others that are still in a namespace of the run."""
    return [
        f"process {pid} ({_called(pid)}), which is not the run's, holds its namespace {space}"
        for pid in run_markers.pids()
        if spaces and (space := _space(pid)) in spaces and run_markers.identify(pid) is not None
    ]

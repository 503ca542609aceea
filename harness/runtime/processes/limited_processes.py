"""Limits of CPU time, memory and descriptors on nodes' processes, and their removal.

CPU time is limited by stopping the process (SIGSTOP) for a part of each slice; memory and
descriptors by lowering the soft limits of that process (prlimit), and raising them again. All of
these end with the process, so nothing can be left behind. If a process logs that it was refused the
resource, and ends with that message, the fault ended it; any other end is the node's own. What a
process uses is read from /proc, where None means that it is gone.

The fault is harness.faults.resource_limits.

Source: cpulimit; prlimit(2); proc(5); DESIGN.md decisions 10 to 12.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Protocol

import trio

from shaketable.harness.contracts.capabilities import Resources
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.runtime.processes import crash_message
from shaketable.harness.runtime.processes.disks import Member

BEFORE_S = 0.25
"""How long a process is measured before its CPU time is limited."""
LOOK_INTERVAL_S = 0.05
REVIVED_TIMEOUT_S = 3.0
"""A process whose memory limit was lifted answers within this time, or never."""
DYING_TIMEOUT_S = 1.0
"""A process that ends because of a refusal has ended after this much running time: it may still
shut down (sync, close, log why) after the limit was lifted.
"""
PAUSED_TIMEOUT_S = 8.0
"""An undo waits this long for a process that another fault has paused; then a task waits."""
CALLERS_S = 0.5
"""All callers connect within this time."""
LOG_BYTES_MAX = 1 << 20
REFUSALS: Mapping[int, re.Pattern[bytes]] = {
    resource.RLIMIT_AS: re.compile(
        rb"MemoryError|[Cc]annot allocate memory|[Oo]ut ?[Oo]f ?[Mm]emory|bad_alloc"
        rb"|can't start new thread|insufficient memory"
    ),
    resource.RLIMIT_NOFILE: re.compile(rb"Too many open files"),
}
"""The log lines of a process that is refused memory, or a descriptor."""
LIMITED: Mapping[int, str] = {
    resource.RLIMIT_AS: "memory",
    resource.RLIMIT_NOFILE: "descriptors",
}
"""What each limit limits, in messages."""


class Starter(Protocol):
    """Starts and ends nodes."""

    async def kill(self, node: str) -> Json:
        """Kill the node's process; see `World.kill`."""
        ...

    async def restart(self, node: str, incarnation: int) -> None:
        """Start the node again if that is its last incarnation, and dead (idempotent)."""
        ...


@dataclass(slots=True, eq=False)
class _Taken:
    """The limits of one incarnation, and their effects so far."""

    node: str
    incarnation: int
    pid: int
    resources: Resources
    began: float
    cpu_ns: int
    log_bytes: int
    nursery: trio.Nursery
    limits: dict[int, int] = field(default_factory=dict)  # the lowered limits
    seen: Json = field(default_factory=dict)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_released: bool = False
    is_refused: bool = False  # it was refused something, and ran when the limit was lifted
    is_lost: bool = False  # it ended because of it, or hangs: it has to be started again
    is_given_back: bool = False


class ResourceLimits:
    """The resource limits of nodes in a world of processes.

    Args:
        members: the nodes.
        starter: restarts nodes that ended because of a limit.
        answers: returns whether a node answers now.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        starter: Starter,
        answers: Callable[[str], bool],
    ) -> None:
        self._members = members
        self._starter = starter
        self._answers = answers
        self._taken: dict[str, _Taken] = {}
        self._limits: dict[tuple[str, int, int], tuple[int, int]] = {}  # the originals
        self._numbers = count()

    async def limit_resources(self, node: str, resources: Resources, nursery: trio.Nursery) -> str:
        """Limit the process, watched in `nursery`; see `LimitsResources.limit_resources`."""
        process = self._members[node].process
        pid = process.pid
        if pid is None:
            return ""
        taken = _Taken(
            node, process.incarnation, pid, resources, 0.0, 0,
            crash_message.size_bytes(process.log), nursery,
        )  # fmt: skip
        if resources.cpu_share < 1:
            taken.seen["cpu_share_before"] = await _cpu_share(pid)
        if process.pid != pid:  # it ended meanwhile
            return ""
        taken.began = trio.current_time()
        taken.cpu_ns = cpu_ns(pid) or 0
        name = f"taken-{next(self._numbers)}"
        self._taken[name] = taken
        self._lower_limits(taken)
        if taken.limits:  # a process that is only stopped for slices does not end of that
            process.excuse(taken, partial(self._caused_by, taken))
        nursery.start_soon(self._hold, taken)
        return name

    async def lift_limits(self, name: str) -> None:
        """Lift exactly these limits, and start the node if it ended because of them (idempotent).

        A process whose allocation failed may have lost a part of itself and hang forever; it is
        restarted, as an operator would do.
        """
        taken = self._taken.get(name)
        if taken is None or taken.is_given_back:
            return
        process = self._members[taken.node].process
        self._release(taken)
        taken.is_lost = taken.is_lost or await self._is_lost(taken)
        if taken.is_lost:
            if process.incarnation == taken.incarnation:
                await self._starter.kill(taken.node)
            await self._starter.restart(taken.node, taken.incarnation)
        if taken.is_refused and process.is_paused and self._runs(taken):
            taken.nursery.start_soon(self._wait_out_pause, taken)  # it may end when it resumes
        else:
            process.withdraw_excuse(taken)
        taken.is_given_back = True  # only now: a failed step above is retried

    def _release(self, taken: _Taken) -> None:
        """Lift the limits (idempotent), and keep their effects."""
        if taken.is_released:
            return
        taken.seen = self._measured(taken)
        taken.scope.cancel()
        process = self._members[taken.node].process
        taken.is_refused = bool(taken.limits and self._refusals(taken)) and self._runs(taken)
        taken.is_released = True
        if process.incarnation == taken.incarnation and process.pid == taken.pid:
            for limit in taken.limits:
                self._set_limit(taken, limit)

    async def _is_lost(self, taken: _Taken) -> bool:
        """True if the process ended because of the limit, or hangs."""
        is_silent = resource.RLIMIT_AS in taken.limits and not await self._revived(taken)
        if taken.is_refused:
            await self._await_exit(taken)
        return is_silent or self._ended_by_fault(taken)

    async def _await_exit(self, taken: _Taken) -> None:
        """Wait until it has ended, or has run long enough to rule out an end by the limit."""
        with trio.move_on_after(DYING_TIMEOUT_S + PAUSED_TIMEOUT_S):
            await self._members[taken.node].process.run_for(taken.incarnation, DYING_TIMEOUT_S)

    async def _wait_out_pause(self, taken: _Taken) -> None:
        """Wait out the pause, start the node if it ended by the limit, withdraw the excuse."""
        process = self._members[taken.node].process
        await process.run_for(taken.incarnation, DYING_TIMEOUT_S)
        ended_by_fault = self._ended_by_fault(taken)
        process.withdraw_excuse(taken)
        if ended_by_fault:
            with suppress(HarnessError):  # `restore` starts it and reports it
                await self._starter.restart(taken.node, taken.incarnation)

    def _runs(self, taken: _Taken) -> bool:
        process = self._members[taken.node].process
        return process.incarnation == taken.incarnation and process.is_running

    def _ended_by_fault(self, taken: _Taken) -> bool:
        process = self._members[taken.node].process
        is_down = process.incarnation == taken.incarnation and process.ended_by_fault
        return is_down and self._caused_by(taken, taken.incarnation)

    def _caused_by(self, taken: _Taken, incarnation: int) -> bool:
        """True if the incarnation's crash message is a refusal of the resource.

        Earlier output does not count: the process may have recovered, and ended for its own
        reasons.
        """
        if incarnation != taken.incarnation:
            return False
        output = crash_message.in_log(self._members[taken.node].process.log, taken.log_bytes)
        return any(REFUSALS[limit].search(output) for limit in taken.limits)

    def _refusals(self, taken: _Taken) -> list[bytes]:
        output = _read_from(self._members[taken.node].process.log, taken.log_bytes)
        return [line for limit in taken.limits for line in REFUSALS[limit].findall(output)]

    def refused(self, node: str, incarnation: int) -> str:
        """Return a phrase if this incarnation was, or may have been, refused a limited resource.

        Then what it reports may be wrong: any line of its code may have failed. "" if it was not.
        """
        for taken in self._taken.values():
            is_its = (taken.node, taken.incarnation) == (node, incarnation)
            if is_its and taken.limits and (taken.is_refused or not taken.is_released):
                names = " or ".join(LIMITED[limit] for limit in sorted(taken.limits))
                return f"it had been refused {names}"
        return ""

    def limit_effects(self, name: str) -> Json:
        """Return what the limits did so far; see `LimitsResources.limit_effects`."""
        taken = self._taken.get(name)
        if taken is None:
            return {"node": None, "ended": None}
        return dict(taken.seen) if taken.is_released else self._measured(taken)

    def give_up(self) -> list[str]:
        """Lift all limits, without starting anything; return what these were."""
        left = [taken for taken in self._taken.values() if not taken.is_given_back]
        for taken in left:
            self._release(taken)
            self._members[taken.node].process.withdraw_excuse(taken)
            taken.is_given_back = True
        return [f"resources of {taken.node} were not given back" for taken in left]

    async def _revived(self, taken: _Taken) -> bool:
        """True if a process without its memory limit answers, or is another incarnation by now."""
        process = self._members[taken.node].process
        with trio.move_on_after(REVIVED_TIMEOUT_S):
            while self._is_unresponsive(taken):  # noqa: ASYNC110 - polled: no event
                await trio.sleep(LOOK_INTERVAL_S)
            return True
        return process.is_paused or not self._is_unresponsive(taken)

    def _is_unresponsive(self, taken: _Taken) -> bool:
        return self._runs(taken) and not self._answers(taken.node)

    def _lower_limits(self, taken: _Taken) -> None:
        asked = taken.resources
        if asked.memory_spare_bytes is not None:
            had = memory_bytes(taken.pid) or 0
            limit = self._lower(taken, resource.RLIMIT_AS, had + asked.memory_spare_bytes)
            taken.seen |= {"had_bytes": had, "limit_bytes": limit}
        if asked.descriptors_spare is not None:
            free = first_free_descriptor(taken.pid) or 0
            limit = self._lower(taken, resource.RLIMIT_NOFILE, free + asked.descriptors_spare)
            taken.seen |= {"limit": limit, "open": free, "unaccepted": 0}

    def _lower(self, taken: _Taken, limit: int, soft: int) -> int:
        """Lower a soft limit of the process; return the one in force."""
        key = taken.node, taken.incarnation, limit
        was, _ = self._limits.setdefault(key, resource.prlimit(taken.pid, limit))
        if was not in (resource.RLIM_INFINITY, -1) and was <= soft:
            return was
        taken.limits[limit] = soft
        return self._set_limit(taken, limit)

    def _set_limit(self, taken: _Taken, limit: int) -> int:
        """Set a limit to the lowest one in force, or to the original; return it."""
        was, hard = self._limits[taken.node, taken.incarnation, limit]
        lowered = [
            each.limits[limit]
            for each in self._taken.values()
            if each.pid == taken.pid and not each.is_released and limit in each.limits
        ]
        soft = min(lowered, default=was)
        resource.prlimit(taken.pid, limit, (soft, hard))
        return soft

    async def _hold(self, taken: _Taken) -> None:
        """Apply the limits over time, and record their effects, until cancelled."""
        with taken.scope:
            async with trio.open_nursery() as nursery:
                if taken.resources.cpu_share < 1:
                    nursery.start_soon(self._slice, taken)
                if taken.resources.callers:
                    nursery.start_soon(self._open_connections, taken)
                if taken.resources.descriptors_spare is not None:
                    nursery.start_soon(self._watch_descriptors, taken)

    async def _slice(self, taken: _Taken) -> None:
        """Let the process run only for its share of each slice."""
        process, share = self._members[taken.node].process, taken.resources.cpu_share
        slice_s = taken.resources.slice_ms / 1e3
        taken.seen |= {"stops": 0, "stopped_ms": 0.0}
        while process.incarnation == taken.incarnation:
            stopped_s = await process.nap(slice_s * (1 - share))
            taken.seen["stops"] += stopped_s > 0
            taken.seen["stopped_ms"] += stopped_s * 1e3
            await trio.sleep(slice_s * share)

    async def _open_connections(self, taken: _Taken) -> None:
        """Open connections, as many new clients would; those not accepted are counted."""
        address = self._members[taken.node].layout.client_address
        async with trio.open_nursery() as nursery:
            for _ in range(taken.resources.callers):
                nursery.start_soon(_hold_connection, address.host, address.port)
                await trio.sleep(CALLERS_S / taken.resources.callers)

    async def _watch_descriptors(self, taken: _Taken) -> None:
        port = self._members[taken.node].layout.client_address.port
        while True:
            seen, full = taken.seen, first_free_descriptor(taken.pid)
            seen["open"] = max(seen["open"], full or 0)
            is_full = full is not None and full >= seen["limit"]
            waiting = callers_waiting(taken.pid, port) if is_full else None
            seen["unaccepted"] = max(seen["unaccepted"], waiting or 0)
            await trio.sleep(LOOK_INTERVAL_S)

    def _measured(self, taken: _Taken) -> Json:
        process = self._members[taken.node].process
        refusals = self._refusals(taken)
        ended = refusals[-1].decode() if self._ended_by_fault(taken) else None
        seen: Json = {**taken.seen, "node": taken.node, "ended": ended}
        if taken.resources.cpu_share < 1:
            used = cpu_ns(taken.pid) if process.pid == taken.pid else None
            seen["wall_ms"] = round((trio.current_time() - taken.began) * 1e3, 1)
            seen["cpu_ms"] = None if used is None else round((used - taken.cpu_ns) / 1e6, 1)
        if taken.limits:
            seen["refused"] = len(refusals)
            seen["silent"] = not process.is_paused and self._is_unresponsive(taken)
        return seen


async def _cpu_share(pid: int) -> float:
    began, before = trio.current_time(), cpu_ns(pid)
    await trio.sleep(BEFORE_S)
    after = cpu_ns(pid)
    if before is None or after is None:
        return 0.0
    return round((after - before) / 1e9 / (trio.current_time() - began), 3)


async def _hold_connection(host: str, port: int) -> None:
    """Hold a connection open without sending, until cancelled."""
    try:
        async with await trio.open_tcp_stream(host, port):
            await trio.sleep_forever()
    except OSError:  # nothing listens: the process is gone
        return


def _read_from(path: Path, start: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(LOG_BYTES_MAX)
    except OSError:
        return b""


# A process in /proc; None if it is gone.

LISTENING = "0A"
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
DESCRIPTORS_MAX = 1 << 20


def cpu_ns(pid: int) -> int | None:
    """Return the CPU time of the process and all its threads."""
    stat = _read(f"/proc/{pid}/stat")
    if stat is None:
        return None
    fields = stat.rpartition(")")[2].split()  # from field 3 on; utime is 14, stime 15
    return (int(fields[11]) + int(fields[12])) * TICK_NS


def memory_bytes(pid: int) -> int | None:
    """Return the size of its address space, which RLIMIT_AS limits."""
    statm = _read(f"/proc/{pid}/statm")
    return None if statm is None else int(statm.split()[0]) * os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int | None:
    """Return its resident set size."""
    statm = _read(f"/proc/{pid}/statm")
    return None if statm is None else int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def first_free_descriptor(pid: int) -> int | None:
    """Return the number that its next descriptor would get, which RLIMIT_NOFILE limits."""
    try:
        used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return None
    return next(number for number in range(DESCRIPTORS_MAX) if number not in used)


def callers_waiting(pid: int, port: int) -> int | None:
    """Return the number of connections to its listening port that it has not accepted."""
    waiting = None
    for name in ("tcp", "tcp6"):
        table = _read(f"/proc/{pid}/net/{name}")
        for line in (table or "").splitlines()[1:]:
            _, local, _, state, queues = line.split()[:5]
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                waiting = (waiting or 0) + int(queues.partition(":")[2], 16)
    return waiting


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None

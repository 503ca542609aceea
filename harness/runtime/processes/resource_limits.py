"""Takes processor time, memory and descriptors from nodes' processes, and gives them back.

Processor time is taken by stopping the process for a slice of time again and again; memory and
descriptors by lowering the soft limits of that very process (prlimit), which are raised again. All
of it ends with the process, so nothing can be left behind. A process that was refused what was
taken, wrote that down and ended, ended by the fault; any other end is its own.

Source: cpulimit; prlimit(2); DESIGN.md decisions 10 to 12.
"""

from __future__ import annotations

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

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.resources import Resources
from shaketable.harness.runtime.processes import crash_message, process_files
from shaketable.harness.runtime.processes.disks import Member

BEFORE_S = 0.25
"""For so long a process is watched before processor time is taken from it."""
LOOK_INTERVAL_S = 0.05
REVIVED_TIMEOUT_S = 3.0
"""A process that has its memory again answers within this time, or never."""
DYING_TIMEOUT_S = 1.0
"""A process that was refused something, and ends of it, has ended within this time that it can run:
it may take leave (sync, close, say why) after it got back what it lacked."""
PAUSED_TIMEOUT_S = 8.0
"""So long an undo waits for a process that another fault pauses; from then on a task does."""
CALLERS_S = 0.5
"""Within this time all callers are there."""
LOG_BYTES_MAX = 1 << 20
REFUSALS: Mapping[int, re.Pattern[bytes]] = {
    resource.RLIMIT_AS: re.compile(
        rb"MemoryError|[Cc]annot allocate memory|[Oo]ut ?[Oo]f ?[Mm]emory|bad_alloc"
        rb"|can't start new thread|insufficient memory"
    ),
    resource.RLIMIT_NOFILE: re.compile(rb"Too many open files"),
}
"""What a process that is refused memory, or a descriptor, writes into its log."""


class Starter(Protocol):
    """What starts and ends nodes."""

    async def kill(self, node: str) -> Json:
        """End the node's process; see `World.kill`."""
        ...

    async def restart(self, node: str, incarnation: int) -> None:
        """Start the node again if its dead incarnation is still that one (idempotent)."""
        ...


@dataclass(slots=True, eq=False)
class _Taken:
    """What was taken from one incarnation, and what that did so far."""

    node: str
    incarnation: int
    pid: int
    resources: Resources
    began: float
    cpu_ns: int
    log_bytes: int
    nursery: trio.Nursery
    limits: dict[int, int] = field(default_factory=dict)  # to what it lowers them
    seen: Json = field(default_factory=dict)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_released: bool = False
    is_refused: bool = False  # it was refused something, and ran when it got that back
    is_lost: bool = False  # it ended of it, or stands still of it: it has to be started
    is_given_back: bool = False


class ResourceLimits:
    """What was taken from the nodes of a world of processes.

    Args:
        members: the nodes.
        starter: starts those that ended for want of what was taken.
        answers: whether a node answers, as far as is known now.
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
        self._limits: dict[tuple[str, int, int], tuple[int, int]] = {}  # as incarnations had them
        self._numbers = count()

    async def take(self, node: str, resources: Resources, nursery: trio.Nursery) -> str:
        """Take that from a node's process; see `TakesResources.take`. Watches it in `nursery`."""
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
        if process.pid != pid:  # it ended meanwhile: there is nothing to take
            return ""
        taken.began = trio.current_time()
        taken.cpu_ns = process_files.cpu_ns(pid) or 0
        name = f"taken-{next(self._numbers)}"
        self._taken[name] = taken
        self._lower_limits(taken)
        if taken.limits:  # who is only stopped for slices of time does not end of that
            process.excuse(taken, partial(self._ended_of_it, taken))
        nursery.start_soon(self._hold, taken)
        return name

    async def give_back(self, name: str) -> None:
        """Give exactly that back, and start what ended for want of it (idempotent).

        A process that was refused memory may have lost a part of itself, and stand still for ever;
        it is started again, as by its operator.
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
            taken.nursery.start_soon(self._outlive_pause, taken)  # it may end of it when it goes on
        else:
            process.excuse_no_more(taken)
        taken.is_given_back = True  # only now: what failed on the way is done again

    def _release(self, taken: _Taken) -> None:
        """Give back (idempotent), and keep what it did."""
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
        """Whether it ended for want of it, now or while it got it back, or stands still of it."""
        is_silent = resource.RLIMIT_AS in taken.limits and not await self._revived(taken)
        if taken.is_refused:
            await self._dying(taken)
        return is_silent or self._has_fallen(taken)

    async def _dying(self, taken: _Taken) -> None:
        """Wait until it has ended, or has run for so long that it will not end of this."""
        with trio.move_on_after(DYING_TIMEOUT_S + PAUSED_TIMEOUT_S):
            await self._members[taken.node].process.run_for(taken.incarnation, DYING_TIMEOUT_S)

    async def _outlive_pause(self, taken: _Taken) -> None:
        """Wait for as long as it is paused; start it if it ends of it, then excuse it no more."""
        process = self._members[taken.node].process
        await process.run_for(taken.incarnation, DYING_TIMEOUT_S)
        has_fallen = self._has_fallen(taken)
        process.excuse_no_more(taken)
        if has_fallen:
            with suppress(HarnessError):  # whoever puts right what is left starts it, and tells
                await self._starter.restart(taken.node, taken.incarnation)

    def _runs(self, taken: _Taken) -> bool:
        process = self._members[taken.node].process
        return process.incarnation == taken.incarnation and process.is_running

    def _has_fallen(self, taken: _Taken) -> bool:
        process = self._members[taken.node].process
        is_down = process.incarnation == taken.incarnation and process.has_fallen
        return is_down and self._ended_of_it(taken, taken.incarnation)

    def _ended_of_it(self, taken: _Taken, incarnation: int) -> bool:
        """Whether that incarnation said with its last words that it was refused what was taken.

        What it said before does not count: it may have got over that, and have ended of its own.
        """
        if incarnation != taken.incarnation:
            return False
        said = crash_message.in_log(self._members[taken.node].process.log, taken.log_bytes)
        return any(REFUSALS[limit].search(said) for limit in taken.limits)

    def _refusals(self, taken: _Taken) -> list[bytes]:
        said = _read_from(self._members[taken.node].process.log, taken.log_bytes)
        return [line for limit in taken.limits for line in REFUSALS[limit].findall(said)]

    def refused(self, node: str, incarnation: int) -> str:
        """Say that this incarnation was, or may just have been, refused memory or descriptors.

        Then what it says of itself need not be so: any line of its code may have failed. "" for
        one that had all that it asked for.
        """
        for taken in self._taken.values():
            is_its = (taken.node, taken.incarnation) == (node, incarnation)
            if is_its and taken.limits and (taken.is_refused or not taken.is_released):
                return "it had been refused memory or descriptors"
        return ""

    def taken(self, name: str) -> Json:
        """What that did so far; see `TakesResources.taken`."""
        taken = self._taken.get(name)
        if taken is None:
            return {"node": None, "ended": None}
        return dict(taken.seen) if taken.is_released else self._measured(taken)

    def give_up(self) -> list[str]:
        """Give everything back that was not, without starting anything; say what that was."""
        left = [taken for taken in self._taken.values() if not taken.is_given_back]
        for taken in left:
            self._release(taken)
            self._members[taken.node].process.excuse_no_more(taken)
            taken.is_given_back = True
        return [f"resources of {taken.node} were not given back" for taken in left]

    async def _revived(self, taken: _Taken) -> bool:
        """Whether a process that has its memory again answers; True if it is another's by now."""
        process = self._members[taken.node].process
        with trio.move_on_after(REVIVED_TIMEOUT_S):
            while self._is_silent(taken):  # noqa: ASYNC110 - a question, no event
                await trio.sleep(LOOK_INTERVAL_S)
            return True
        return process.is_paused or not self._is_silent(taken)

    def _is_silent(self, taken: _Taken) -> bool:
        return self._runs(taken) and not self._answers(taken.node)

    def _lower_limits(self, taken: _Taken) -> None:
        asked = taken.resources
        if asked.memory_spare_bytes is not None:
            had = process_files.memory_bytes(taken.pid) or 0
            limit = self._lower(taken, resource.RLIMIT_AS, had + asked.memory_spare_bytes)
            taken.seen |= {"had_bytes": had, "limit_bytes": limit}
        if asked.descriptors_spare is not None:
            free = process_files.first_free_descriptor(taken.pid) or 0
            limit = self._lower(taken, resource.RLIMIT_NOFILE, free + asked.descriptors_spare)
            taken.seen |= {"limit": limit, "open": free, "unaccepted": 0}

    def _lower(self, taken: _Taken, limit: int, soft: int) -> int:
        """Lower a soft limit of the process. Returns the one in force."""
        key = taken.node, taken.incarnation, limit
        was, _ = self._limits.setdefault(key, resource.prlimit(taken.pid, limit))
        if was not in (resource.RLIM_INFINITY, -1) and was <= soft:
            return was
        taken.limits[limit] = soft
        return self._set_limit(taken, limit)

    def _set_limit(self, taken: _Taken, limit: int) -> int:
        """Set it to the lowest of what is in force, or as it was; return that."""
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
        """Do what has to be done for as long as it holds, and look at what it does."""
        with taken.scope:
            async with trio.open_nursery() as nursery:
                if taken.resources.cpu_share < 1:
                    nursery.start_soon(self._slice, taken)
                if taken.resources.callers:
                    nursery.start_soon(self._knock, taken)
                if taken.resources.descriptors_spare is not None:
                    nursery.start_soon(self._look, taken)

    async def _slice(self, taken: _Taken) -> None:
        """Let the process run for its share of each slice alone."""
        process, share = self._members[taken.node].process, taken.resources.cpu_share
        slice_s = taken.resources.slice_ms / 1e3
        taken.seen |= {"stops": 0, "stopped_ms": 0.0}
        while process.incarnation == taken.incarnation:
            stopped_s = await process.nap(slice_s * (1 - share))
            taken.seen["stops"] += stopped_s > 0
            taken.seen["stopped_ms"] += stopped_s * 1e3
            await trio.sleep(slice_s * share)

    async def _knock(self, taken: _Taken) -> None:
        """Ask for connections, as a crowd of new clients would: those that wait are counted."""
        address = self._members[taken.node].layout.client_address
        async with trio.open_nursery() as nursery:
            for _ in range(taken.resources.callers):
                nursery.start_soon(_stand_at, address.host, address.port)
                await trio.sleep(CALLERS_S / taken.resources.callers)

    async def _look(self, taken: _Taken) -> None:
        port = self._members[taken.node].layout.client_address.port
        while True:
            seen, full = taken.seen, process_files.first_free_descriptor(taken.pid)
            seen["open"] = max(seen["open"], full or 0)
            is_full = full is not None and full >= seen["limit"]
            waiting = process_files.callers_waiting(taken.pid, port) if is_full else None
            seen["unaccepted"] = max(seen["unaccepted"], waiting or 0)
            await trio.sleep(LOOK_INTERVAL_S)

    def _measured(self, taken: _Taken) -> Json:
        process = self._members[taken.node].process
        refusals = self._refusals(taken)
        ended = refusals[-1].decode() if self._has_fallen(taken) else None
        seen: Json = {**taken.seen, "node": taken.node, "ended": ended}
        if taken.resources.cpu_share < 1:
            used = process_files.cpu_ns(taken.pid) if process.pid == taken.pid else None
            seen["wall_ms"] = round((trio.current_time() - taken.began) * 1e3, 1)
            seen["cpu_ms"] = None if used is None else round((used - taken.cpu_ns) / 1e6, 1)
        if taken.limits:
            seen["refused"] = len(refusals)
            seen["silent"] = not process.is_paused and self._is_silent(taken)
        return seen


async def _cpu_share(pid: int) -> float:
    began, before = trio.current_time(), process_files.cpu_ns(pid)
    await trio.sleep(BEFORE_S)
    after = process_files.cpu_ns(pid)
    if before is None or after is None:
        return 0.0
    return round((after - before) / 1e9 / (trio.current_time() - began), 3)


async def _stand_at(host: str, port: int) -> None:
    """Hold a connection open, and say nothing, until cancelled."""
    try:
        async with await trio.open_tcp_stream(host, port):
            await trio.sleep_forever()
    except OSError:  # nobody listens there: the process is gone
        return


def _read_from(path: Path, start: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(LOG_BYTES_MAX)
    except OSError:
        return b""

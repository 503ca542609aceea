"""Which calls of a disk fail, wait or are a node's last: disk faults and trips in force. Pure.

Source: charybdefs; `strace -e inject`; docs/faults.md.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

READ: Final = "read"
WRITE: Final = "write"
SYNC: Final = "sync"
NAME: Final = "name"
"""What calls do to a disk. NAME: they change a folder."""
THE_CALLER: Final = -1
"""Stands for a process that is not known: the one that calls."""
FAULTS_KEPT_MAX: Final = 256
"""Counts of so many disk faults are kept, also of those that are over."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call to the disk.

    Attributes:
        kind: READ, WRITE, SYNC or NAME.
        name: the system call, as "rename"; fsync of a folder is "fsync-dir".
        needs_space: it has to find room on the disk.
        may_wait: a thread of the node waits for it, and no page cache.
    """

    kind: str
    needs_space: bool = False
    may_wait: bool = True
    name: str = ""


@dataclass(slots=True)
class _Fault:
    """A disk fault (`contracts.capabilities.DiskFaultSpec`), and how many calls it was shown."""

    number: int
    op: str
    error: int
    nth: int
    times: int
    delay_s: float
    is_stall: bool
    shown: int = 0

    def takes(self, call: Call) -> bool:
        """Count a call; return whether this fault has an effect on it."""
        if self.error == errno.ENOSPC:
            is_meant = call.needs_space and self.op in (WRITE, "any")
        else:
            is_meant = self.op in (call.kind, "any")
        if not is_meant or (not self.error and not call.may_wait):
            return False
        self.shown += 1
        first = max(1, self.nth)
        return self.shown >= first and not (self.times and self.shown >= first + self.times)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a call.

    Attributes:
        error: the errno that it fails with; 0: none.
        delay_s: how long it waits first.
        stalled_by: the numbers of the faults whose end it waits for.
        faults: the numbers of all faults with an effect on it.
        kills: the process that ends at this call, which never returns; 0: none; THE_CALLER.
    """

    error: int = 0
    delay_s: float = 0.0
    stalled_by: frozenset[int] = frozenset()
    faults: tuple[int, ...] = ()
    kills: int = 0


PASSES: Final = Verdict()


@dataclass(slots=True)
class Orders:
    """The orders in force, and what they did.

    Attributes:
        counts: calls by kind; "errors", "slowed", "waited_us".
        calls: calls by name.
        by_fault: the same by the number of each disk fault, with its "calls".
    """

    counts: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    by_fault: dict[int, Counter[str]] = field(default_factory=dict)
    _faults: dict[int, _Fault] = field(default_factory=dict)
    _trips: dict[int, dict[str, Any]] = field(default_factory=dict)

    def replace(
        self, disk_faults: Sequence[Mapping[str, Any]], trips: Sequence[Mapping[str, Any]]
    ) -> None:
        """Replace all orders; those that were in force already keep their counts.

        A trip is {"number", "nth", "pid"}, with "on", the kind of the call, or "call", its name.
        Without a pid it ends the process that calls; a later order may say which that is.
        """
        faults = {each["number"]: _fault(each) for each in disk_faults}
        self._faults = {number: self._faults.get(number, each) for number, each in faults.items()}
        for number in self._faults:
            self.by_fault.setdefault(number, Counter())
        for number in list(self.by_fault)[:-FAULTS_KEPT_MAX]:
            del self.by_fault[number]
        known = self._trips
        self._trips = {
            each["number"]: {**each, "nth": known.get(each["number"], each)["nth"]}
            for each in trips
        }

    def in_force(self, number: int) -> bool:
        """True if that disk fault is in force."""
        return number in self._faults

    @property
    def is_full(self) -> bool:
        """True if there is no room on the disk."""
        return any(each.error == errno.ENOSPC for each in self._faults.values())

    @property
    def strikes_reads(self) -> bool:
        """True if calls that read are concerned: then the kernel must not answer from its cache."""
        return any(each.op in (READ, "any") for each in self._faults.values())

    def judge(self, call: Call) -> Verdict:
        """Count a call, and decide what becomes of it."""
        self.counts[call.kind] += 1
        self.calls[call.name] += 1
        for trip in self._trips.values():
            is_meant = trip["call"] == call.name if "call" in trip else trip["on"] == call.kind
            if is_meant and trip["nth"] > 0:
                trip["nth"] -= 1
                if not trip["nth"]:
                    return Verdict(kills=trip.get("pid") or THE_CALLER)
        struck = [each for each in self._faults.values() if each.takes(call)]
        if not struck:
            return PASSES
        error = next((each.error for each in struck if each.error), 0)
        for each in struck:
            self._count(each.number, calls=1, errors=int(bool(each.error)))
        self.counts["errors"] += bool(error)
        return Verdict(
            error,
            sum(each.delay_s for each in struck),
            frozenset(each.number for each in struck if each.is_stall),
            tuple(each.number for each in struck),
        )

    def begins_to_wait(self, verdict: Verdict) -> None:
        """Count a call that waits."""
        self.counts["slowed"] += 1
        for number in verdict.faults:
            self._count(number, slowed=1)

    def waited(self, verdict: Verdict, seconds: float) -> None:
        """Count for how long a call has waited."""
        self.counts["waited_us"] += int(seconds * 1e6)
        for number in verdict.faults:
            self._count(number, waited_us=int(seconds * 1e6))

    def _count(self, number: int, **more: int) -> None:
        if number in self.by_fault:
            self.by_fault[number].update(more)


def _fault(order: Mapping[str, Any]) -> _Fault:
    error = getattr(errno, order["error"]) if order["error"] else 0
    return _Fault(
        order["number"],
        order["op"],
        error,
        order["nth"],
        order["times"],
        order["delay_ms"] / 1000,
        order["stall"],
    )

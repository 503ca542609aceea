"""What a checker implements, and what it is told of the run: the contracts of judging.

`harness.plugins` hands all of it on, beside the protocols of the other plug-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from shaketable.harness.promises import stands

if TYPE_CHECKING:  # client workers import this module, and start far faster without pyarrow
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from shaketable.harness.plugins import Promises
    from shaketable.harness.verdict import Verdict


UNMEASURED: Final = ("could not be applied", "probe ", "not undone")
"""How the evidence of a fault begins of which nobody knows whether it bit."""


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """One fault as it was done: from when it was applied to when it was undone (ns).

    `began_ns` is just before it was applied (the SIGKILL sent, the leader asked); None where
    the history does not say. `start_ns` is when that was done.
    """

    fault: int
    name: str
    description: str
    start_ns: int
    stop_ns: int
    bit: bool
    evidence: str
    began_ns: int | None = None

    @property
    def from_ns(self) -> int:
        """When the fault began to be applied, as early as is known."""
        return self.start_ns if self.began_ns is None else self.began_ns

    @property
    def may_have_bitten(self) -> bool:
        """It bit, or was begun and never measured: what it took away may have been taken."""
        return self.bit or self.evidence.startswith(UNMEASURED)


SEARCH_BYTES = 512 << 20
"""What a search may hold unless it is told otherwise: the whole process stays below 1 GB then."""


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """What the search of one partition may spend, and when the whole check has to end.

    `time_s` and `memory_bytes` are for each partition. `deadline_unix_s` is one moment for
    all of them, in seconds of Unix time, since executors share no other clock. Past any of
    these what is open is undecided: a checker says so and never guesses.
    """

    time_s: float = 60.0
    memory_bytes: int = SEARCH_BYTES
    deadline_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What every partition of a check needs to know; small, sent to every executor.

    `committed` maps each node that answered while draining to its committed index; a
    node that did not answer is absent. `incomplete` says, in words, why the history is
    known to lack events, if it is: then no verdict may be VALID or rest on absence.
    `families` maps faults to their families (`harness.words.FAMILIES`), as far as is known.
    `unread` are nodes whose logs could not be read: what they hold nobody knows. `logs_declared`:
    the target says that its logs can be read, so that an empty one is a log without entries.
    `final_from_ns` is when the clients' final operations began, after the heal; None if nobody
    knows. `elections_ns` are when a later term was first seen; `stalls` when (from, to, in ns) the
    clients' own processes came to nothing. `topics` are those that a checker judges alone (of keys
    "topic/queue"); who is not named there judges all. `search` is what a search may spend.
    `clock_unix_s` is the only clock of a checker, put in by the engine (importable, so that it can
    be sent to executors); without one, as in a test of one checker, time never runs out.
    """

    nodes: tuple[str, ...]
    committed: Mapping[str, int]
    promises: Promises
    windows: tuple[FaultWindow, ...] = ()
    faults_asked: tuple[str, ...] = ()
    incomplete: str | None = None
    search: SearchBudget = SearchBudget()
    clock_unix_s: Callable[[], float] | None = None
    families: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    logs_declared: bool = True
    final_from_ns: int | None = None
    elections_ns: tuple[int, ...] = ()
    stalls: tuple[tuple[int, int], ...] = ()
    topics: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def judges(self, checker: str, key: str | None) -> bool:
        """Whether the checker of that name judges that key."""
        topics = self.topics.get(checker)
        return topics is None or key is None or key.partition("/")[0] in topics

    def beyond(self, stood: frozenset[str]) -> str:
        """Name the faults done that nobody promised to stand who promises to stand `stood`."""
        names = sorted({window.name for window in self.windows if window.may_have_bitten})
        family = self.families.get
        return ", ".join(name for name in names if not stands(stood, name, family(name, "")))

    def begin_search(self) -> Callable[[], bool]:
        """Start the time of one partition's search; the answer says, when asked, if it is over."""
        clock, deadline = self.clock_unix_s, self.search.deadline_unix_s
        if clock is None:
            return lambda: False
        end = clock() + self.search.time_s
        until = end if deadline is None else min(end, deadline)
        return lambda: clock() >= until


class Checker(Protocol):
    """A pure function of Arrow tables, applied to each partition, then a conclusion.

    `tables` names what it reads: "operations" and/or "entries". `partition` is the
    column expression by which both are split: "key" (the queue), "bucket" (entries
    by ranges of their log index, see checkers.engine), or "history" (all in one part).
    """

    name: str
    tables: tuple[str, ...]
    partition: str

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Check one partition; return rows of FINDINGS (kind "checked" rows carry counts)."""
        ...

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the findings of all partitions into a verdict."""
        ...


@runtime_checkable
class KeysChecker(Protocol):
    """What a checker of operations by key may offer beside `check`: many small keys in one call.

    A partition of its own costs a call some hundred microseconds before anything is judged,
    more than a kernel needs for a thousand operations. Engines call `check_keys` for whole
    files of keys, and `check` key by key where that raised, so that a crash costs one key.
    """

    def check_keys(
        self, operations: pa.Table, bounds: npt.NDArray[np.int64], context: CheckContext
    ) -> pa.Table:
        """Check all keys of `operations`; return the findings of all.

        Conclusions must not depend on which keys came together: the rows are those that
        `check` gives for each key, but "checked" rows may be added up into one.

        Args:
            operations: rows of schema.OPERATIONS_CODED, sorted by key and then by call_ns, each
                column in one chunk. Key n has the rows bounds[n] to bounds[n + 1].
            bounds: one element more than there are keys; rises strictly.
            context: as for `check`.
        """
        ...

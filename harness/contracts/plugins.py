"""The protocols that plug-ins implement, and how plug-ins are found.

A target, fault, workload or checker is one file. Built-ins are found by a scan of
their package (module attribute `PLUGIN`), external ones by the entry-point groups
shaketable.targets, .faults, .workloads and .checkers.

Source: jepsen.db, jepsen.nemesis, jepsen.generator, jepsen.checker; DESIGN.md
sections 1 and 2 (decisions 5, 10, 11, 13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from shaketable.harness.contracts.promises import Promises, stands

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from shaketable.harness.contracts.verdict import Verdict


# What a checker implements, and what it is told of the run: the contracts of judging.
#
# `contracts.plugins` hands all of it on, beside the protocols of the other plug-ins.

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
    `families` maps faults to their families (`contracts.words.FAMILIES`), as far as is known.
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


__all__ = [
    "UNTOUCHED",
    "Address",
    "Answer",
    "CheckContext",
    "Checker",
    "Evidence",
    "Fault",
    "FaultWindow",
    "Json",
    "KeysChecker",
    "Launch",
    "NodeLayout",
    "NodeStatus",
    "Operation",
    "Promises",
    "SearchBudget",
    "Target",
    "TargetClient",
    "Workload",
    "World",
]

Json = dict[str, Any]
"""A JSON object: what plans, undos and options are made of."""


# ---- targets -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """A loopback endpoint."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Where one node lives: its id, its folder, where it listens, where it finds its peers.

    `peers` maps every *other* node to the address under which this node must reach it
    (a proxy, so that the link can be cut); `peer_address` is where this node listens
    for them; `client_address` is where clients and status requests reach it. With
    `name_servers` (contracts.abilities.NamesBrokers) it registers there. `advertised_address` is
    where all peers reach it, of a target that asks for one address for all of them
    (contracts.abilities.AdvertisesAddresses): then `peers` holds theirs.
    """

    node: str
    directory: Path
    client_address: Address
    peer_address: Address
    peers: Mapping[str, Address]
    options: Json = field(default_factory=dict)  # mutant, seed, disk, file sizes ...
    name_servers: tuple[Address, ...] = ()
    advertised_address: Address | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a node process.

    `files` are texts by the names that they get in the node's folder, whenever it is started: its
    configuration. So a world that has no such folder can read it, too.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def write_files(self, directory: Path) -> None:
        """Write the files into the node's folder.

        Raises:
            OSError: one cannot be written.
        """
        for name, text in self.files.items():
            (directory / name).write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node says of itself. `role` is leader, follower or candidate.

    `group`: nodes of one name replicate one log; each such group has a leader of its own.
    `wall_ms` and `monotonic_ms`: what its clocks showed when it said so, of nodes that tell it;
    the latter counts from where CLOCK_MONOTONIC of the machine does.
    """

    node: str
    role: str
    term: int
    leader: str | None
    committed_index: int
    end_index: int
    group: str = ""
    wall_ms: int | None = None
    monotonic_ms: int | None = None


class TargetClient(Protocol):
    """A client of the target inside a worker process (trio). One operation at a time.

    Methods raise `DefiniteError` or `IndefiniteError`.
    """

    @property
    def node(self) -> str | None:
        """Who answered last."""
        ...

    async def append(self, key: str, value: int) -> int:
        """Append `value` to queue `key`; return its offset."""
        ...

    async def read(self, key: str, offset: int) -> int | None:
        """Return the value at `offset`, or None where the queue ends at or before it."""
        ...

    async def end(self, key: str) -> int:
        """Return the queue's end offset: the offset that the next append would get."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


class Target(Protocol):
    """A system under test."""

    name: str
    promises: Promises
    mutants: Mapping[str, str]  # name -> what it breaks

    def prepare(self, layout: NodeLayout) -> Launch:
        """Write the node's configuration into its folder; say how to start it."""
        ...

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        """Ask a node for its status; None if it does not answer in time."""
        ...

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> TargetClient:
        """Return a client that finds the leader among `addresses` by itself.

        Beside the nodes there are the name servers, if there are any, as "ns0", ...
        """
        ...

    def read_log(self, directory: Path, node: str) -> Iterator[pa.RecordBatch]:
        """Decode a stopped node's files into batches of ENTRIES, sharing no code with the node.

        Raises:
            OSError: the files cannot be read.
        """
        ...


# ---- faults ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """Whether a fault bit, and what shows it."""

    bit: bool
    what: str
    measures: dict[str, int | float] = field(default_factory=dict)


UNTOUCHED = -1
"""The incarnation that `World.kill` and `pause` answer with when they could do nothing."""


class World(Protocol):
    """The small vocabulary that each world implements for faults (stop, cut, ...)."""

    nodes: tuple[str, ...]

    async def leader(self, order: Sequence[str] = ()) -> str | None:
        """The node that most recently said it leads the highest term, if any answers.

        Where several groups have leaders, the first of these in `order`.
        """
        ...

    async def kill(self, node: str) -> Json:
        """End the node's process by SIGKILL; return {"incarnation": n} for `restart`.

        n is `UNTOUCHED` for a node that did not run: it is another fault's to restart.
        """
        ...

    async def restart(self, node: str, incarnation: int) -> None:
        """Start the node again if its dead incarnation is still `incarnation` (idempotent)."""
        ...

    async def pause(self, node: str) -> Json:
        """Stop the node's process by SIGSTOP; return {"incarnation": n}.

        n is `UNTOUCHED` for a node that did not run, or was paused by another fault.
        """
        ...

    async def resume(self, node: str, incarnation: int) -> None:
        """Let that incarnation go on (SIGCONT); nothing if it is gone (idempotent)."""
        ...

    def is_paused(self, node: str) -> bool:
        """True if the kernel reports the node's process as stopped."""
        ...

    def is_alive(self, node: str, incarnation: int) -> bool:
        """True if that incarnation of the node still runs (or is paused)."""
        ...

    async def cut(self, links: Sequence[tuple[str, str]]) -> str:
        """Hold all bytes that flow from a to b, for each (a, b); return a cut id.

        Cuts are counted: a link is open when every cut that names it is mended.
        """
        ...

    async def mend(self, cut: str, how: str) -> None:
        """Mend that cut (idempotent). `how`: "deliver" what was held, or "reset" connections."""
        ...

    def held(self, cut: str) -> Json:
        """What that cut has held so far: {"bytes": n, "connections": n}."""
        ...

    def why_not_wiped(self, node: str) -> str | None:
        """Say why the node's disk must not be lost now, None if it may."""
        ...

    async def wipe(self, node: str) -> Json:
        """End the node's process by SIGKILL, and delete all that it stored.

        Returns {"incarnation", "files", "bytes", "messages"}: what died and what was lost; for a
        node that did not run the incarnation is `UNTOUCHED`, and nothing is lost.
        """
        ...

    async def replace(self, node: str, incarnation: int) -> None:
        """Start a wiped node with an empty disk, and wait until it is whole again (idempotent)."""
        ...

    async def transfer(self, to: str) -> Json:
        """Ask whoever leads to hand leadership to `to`; wait a while until `to` leads.

        Returns {"from": who led, None if nobody, "took_ms": from asking until `to` was seen
        to lead, None if it was not, "error": what the leader answered, None if it agreed}.
        """
        ...


class Fault(Protocol):
    """A fault is data with an undo (DESIGN.md decision 10).

    `plan` draws everything that can be drawn before the run; `aim` replaces symbolic
    targets ("leader") by nodes as they are now; `apply` returns the undo as JSON; `undo`
    is idempotent and undoes exactly this fault; `probe`, called just before `undo`,
    says whether the fault bit.
    """

    name: str

    def configured(self, options: Json) -> Fault:
        """Return this fault under the campaign's options ({"victims": ["leader"]}).

        Raises:
            UsageError: an option has a value that this fault cannot take.
        """
        ...

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Say in a few words why this fault cannot be done to that group; None if it can."""
        ...

    def plan(self, rng: Random, nodes: Sequence[str], turn: int) -> Json:
        """Draw the `turn`-th instance of this fault in a campaign (turn counts from 0)."""
        ...

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Return the plan with nodes in place of roles. Pure."""
        ...

    def describe(self, plan: Json) -> str:
        """Say in a few words what an aimed plan does: "isolate leader n1"."""
        ...

    async def apply(self, plan: Json, world: World) -> Json:
        """Do it; return the undo."""
        ...

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Say whether it bit."""
        ...

    async def undo(self, undo: Json, world: World) -> None:
        """Undo exactly this fault."""
        ...


# ---- workloads ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation to invoke. `aim` in [0, 1) is where a read looks (see the workload).

    `offset` is where, if that is known already; `expected` what a cas compares with.
    """

    f: str
    key: str
    value: int | None = None
    aim: float | None = None
    offset: int | None = None
    expected: int | None = None


class Answer(NamedTuple):
    """What an operation was answered, as the OPERATIONS table holds it.

    `messages`: (offset, value) in the order of delivery, of an operation that may bring several.
    `elements`: the values that a read of a whole set returned, none perhaps.
    `attempts`: of each message how often it had come before, where it may have come again.
    """

    output: int | None = None
    offset: int | None = None
    messages: Sequence[tuple[int, int]] | None = None
    elements: Sequence[int] | None = None
    attempts: Sequence[int] | None = None


class Workload(Protocol):
    """What clients do, and which checkers judge it."""

    name: str

    @property
    def checkers(self) -> tuple[str, ...]:
        """The names of those who judge it."""
        ...

    def configured(self, options: Json) -> Workload:
        """Return this workload under the campaign's options ({"queues": 4}).

        Raises:
            UsageError: an option has a value that this workload cannot take.
        """
        ...

    def operations(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Draw the endless operations of one client: the same for the same seed."""
        ...

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """The operations of one client after the heal (final reads)."""
        ...

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Do it; return what came of it."""
        ...

    def choose_offset(self, operation: Operation, end_seen: int) -> int | None:
        """Turn `aim` into an offset, given the highest end of the queue that this worker saw."""
        ...

    def end_shown(self, operation: Operation, output: int | None, offset: int | None) -> int:
        """The least end of the queue that this answer proves; 0 where it proves nothing."""
        ...

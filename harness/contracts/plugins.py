"""The protocols that plug-ins implement, and how plug-ins are found.

A target, fault, workload or checker is one file. Built-ins are found by scanning their package
(module attribute `PLUGIN`), external ones by the entry-point groups shaketable.targets, .faults,
.workloads and .checkers.

Source: jepsen.db, jepsen.nemesis, jepsen.generator, jepsen.checker; DESIGN.md sections 1 and 2
(decisions 5, 10, 11, 13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from shaketable.harness.contracts.promises import Promises, is_promised

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from shaketable.harness.contracts.verdict import Verdict


# ---- checkers ----------------------------------------------------------------------------

UNMEASURED: Final = ("could not be applied", "probe ", "not undone")
"""Prefixes of a fault's evidence when it is unknown whether the fault took effect."""


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """One fault as it was injected, from when it was applied to when it was undone.

    Attributes:
        fault: its number in the campaign.
        name: the fault's name.
        description: what it did ("isolate leader n1").
        start_ns: when it had been applied, in ns since the start of the run.
        stop_ns: when it had been undone, in ns since the start of the run.
        took_effect: whether it took effect.
        evidence: what shows that.
        began_ns: just before it was applied (the SIGKILL sent, the leader asked), in ns; None if
            the history does not record it.
        victims: the nodes that it was aimed at, as far as recorded.
    """

    fault: int
    name: str
    description: str
    start_ns: int
    stop_ns: int
    took_effect: bool
    evidence: str
    began_ns: int | None = None
    victims: tuple[str, ...] = ()

    @property
    def from_ns(self) -> int:
        """The earliest known time at which the fault may have acted, in ns."""
        return self.start_ns if self.began_ns is None else self.began_ns

    @property
    def may_have_taken_effect(self) -> bool:
        """Whether the fault took effect, or was applied and never measured and so may have."""
        return self.took_effect or self.evidence.startswith(UNMEASURED)


SEARCH_BYTES = 512 << 20
"""Default memory limit of a search, in bytes. It keeps the whole process below 1 GB."""


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """Limits on the search of one partition, and the deadline of the whole check.

    `time_s` and `memory_bytes` apply to each partition. `deadline_unix_s` is one moment for all of
    them, in Unix time, the only clock that executors share. What is open when a limit is reached is
    undecided: a checker reports UNKNOWN and never guesses.
    """

    time_s: float = 60.0
    memory_bytes: int = SEARCH_BYTES
    deadline_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What a checker needs to know about the run; small, sent to every executor.

    Attributes:
        nodes: the ids of the group's nodes.
        committed: the committed index of each node that answered after the heal; a node that did
            not answer is absent.
        promises: what the target promises.
        windows: the faults that were injected.
        faults_asked: names of the faults that the campaign requested.
        incomplete: why the history is known to lack events, or None. If set, no verdict may be
            VALID or rest on the absence of an event.
        search: limits of a search.
        clock_unix_s: a checker's only clock, set by the engine (importable, so that it can be sent
            to executors). None, as in a test of one checker: there are no time limits.
        families: the families of faults (`contracts.capabilities.FAMILIES`), as far as known.
        unread: nodes whose logs could not be read, so their contents are unknown.
        logs_declared: the target declares that its logs can be read, so an empty one has no
            entries.
        final_from_ns: when the clients' final operations began, after the heal; None if unknown.
        elections_ns: when a later term was first seen.
        stalls: (from, to) in ns, when the clients' own processes did not run.
        patience_ns: how long a client waits for one operation's answer at most.
        topics: the topics that a checker judges (of keys "topic/queue"); one not listed judges all.
        initial: the first state that a user or the history's format gives, as --initial takes it.
        is_timed: False if the history has no times: then they count its events, and no checker
            may state a duration.
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
    patience_ns: int = 10_000_000_000
    topics: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_timed: bool = True
    initial: str | None = None

    def judges(self, checker: str, key: str | None) -> bool:
        """Return whether that checker judges that key."""
        topics = self.topics.get(checker)
        return topics is None or key is None or key.partition("/")[0] in topics

    def unpromised_faults(self, promised: frozenset[str]) -> str:
        """Return the names of the injected faults that `promised` does not cover, as one text."""
        names = sorted({window.name for window in self.windows if window.may_have_taken_effect})
        family = self.families.get
        return ", ".join(
            name for name in names if not is_promised(promised, name, family(name, ""))
        )

    def begin_search(self) -> Callable[[], bool]:
        """Start the clock of one partition's search; return a function that tells if it is over."""
        clock, deadline = self.clock_unix_s, self.search.deadline_unix_s
        if clock is None:
            return lambda: False
        end = clock() + self.search.time_s
        until = end if deadline is None else min(end, deadline)
        return lambda: clock() >= until


class Checker(Protocol):
    """A pure function of Arrow tables, applied to each partition, and a final merge.

    Attributes:
        name: the checker's name.
        tables: what it reads: "operations", "entries" or both.
        partition: the column by which both are split: "key" (the queue), "bucket" (entries by
            ranges of their log index, see checkers.engine), or "history" (one partition).

    It may have two more: `judges_prefixes` is True if what it finds in a history with a cut end is
    real; `needs_run` if it takes an answer for late, or early, unless the context says what
    disturbed the run.
    """

    name: str
    tables: tuple[str, ...]
    partition: str

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Check one partition; return rows of FINDINGS (rows of kind "checked" carry counts)."""
        ...

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Merge the findings of all partitions into a verdict."""
        ...


@runtime_checkable
class KeysChecker(Protocol):
    """Optional, for a checker that is partitioned by key: check many small keys in one call.

    A call for each partition costs some hundred microseconds before anything is checked, more than
    a kernel needs for a thousand operations. Engines call `check_keys` for whole files of keys. If
    that raises, they call `check` key by key, so that a crash costs one key.
    """

    def check_keys(
        self, operations: pa.Table, bounds: npt.NDArray[np.int64], context: CheckContext
    ) -> pa.Table:
        """Check all keys of `operations`; return the findings of all.

        The result must not depend on which keys are in one call: the rows are those that `check`
        returns for each key, but "checked" rows may be summed into one.

        Args:
            operations: rows of schema.OPERATIONS_CODED, sorted by key and then by call_ns, each
                column in one chunk. Key n has the rows bounds[n] to bounds[n + 1].
            bounds: one element more than there are keys; strictly increasing.
            context: as for `check`.
        """
        ...


__all__ = [
    "NO_ROLE",
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
"""A JSON object: the type of plans, undos and options."""


# ---- targets -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """An endpoint."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class FurtherPort:
    """A further address at which each node listens.

    Attributes:
        own: where this node listens.
        reached: the one address at which all nodes reach each node's, its own included.
    """

    own: Address
    reached: Mapping[str, Address]


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Where a node's files are, where it listens, and how it reaches its peers.

    Attributes:
        node: the node's id.
        directory: its folder.
        client_address: where clients and status requests reach it.
        peer_address: where it listens for its peers.
        peers: for every *other* node, the address under which this node must reach it (a proxy, so
            that the link can be cut).
        options: planted bug, seed, disk, file sizes, ...
        name_servers: where it registers (contracts.abilities.NamesBrokers); may be empty.
        advertised_address: the one address for all peers, for a target that needs one
            (contracts.abilities.AdvertisesAddresses); then `peers` holds theirs.
        further: where it listens besides, for a target whose nodes do
            (contracts.abilities.ListensFurther), by the port's name.
    """

    node: str
    directory: Path
    client_address: Address
    peer_address: Address
    peers: Mapping[str, Address]
    options: Json = field(default_factory=dict)  # mutant, seed, disk, file sizes ...
    name_servers: tuple[Address, ...] = ()
    advertised_address: Address | None = None
    further: Mapping[str, FurtherPort] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a node's process.

    `files` are the configuration: texts by file name, written to the node's folder before each
    start. They are data so that a world without such a folder can read them too.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def write_files(self, directory: Path) -> None:
        """Write the files into the node's folder.

        Raises:
            OSError: a file cannot be written.
        """
        for name, text in self.files.items():
            (directory / name).write_text(text, encoding="utf-8")


NO_ROLE = "up"
"""The role of a node that answers and does not say who leads."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's status as it reports it.

    Attributes:
        node: its id.
        role: leader, follower or candidate; `NO_ROLE` if the target shows none.
        term: its current term.
        leader: the leader that it knows; None for none.
        committed_index: its commit index; -1 if it has none, or does not show it.
        end_index: the last index of its log; -1 likewise.
        group: nodes of the same group replicate one log; each group has a leader of its own.
        wall_ms: its wall clock when it answered; None if it does not report it.
        monotonic_ms: its monotonic clock, from the same origin as the machine's CLOCK_MONOTONIC.
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
    """A client of the target, in a worker process (trio). One operation at a time.

    Methods raise `DefiniteError` or `IndefiniteError`.
    """

    @property
    def node(self) -> str | None:
        """The node that answered last."""
        ...

    async def append(self, key: str, value: int) -> int:
        """Append `value` to queue `key`; return its offset."""
        ...

    async def read(self, key: str, offset: int) -> int | None:
        """Return the value at `offset`; None if the queue ends at or before it."""
        ...

    async def end(self, key: str) -> int:
        """Return the queue's end offset: the offset of the next append."""
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
        """Write the node's configuration into its folder; return how to start it."""
        ...

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        """Ask a node for its status; return None if it does not answer in time."""
        ...

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> TargetClient:
        """Return a client that finds the leader among `addresses` by itself.

        `addresses` also holds the name servers, if there are any, as "ns0", ...
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
    """Whether a fault took effect, and the evidence for it."""

    took_effect: bool
    what: str
    measures: dict[str, int | float] = field(default_factory=dict)


UNTOUCHED = -1
"""The incarnation that `World.kill` and `World.pause` return if they did nothing."""


class World(Protocol):
    """What every world can do to nodes, for faults to use (kill, pause, cut, ...)."""

    nodes: tuple[str, ...]

    async def leader(self, order: Sequence[str] = ()) -> str | None:
        """Return the node that most recently claimed to lead the highest term, if any answers.

        If several groups have leaders: the first of them in `order`.
        """
        ...

    async def kill(self, node: str) -> Json:
        """SIGKILL the node's process; return {"incarnation": n} for `restart`.

        n is `UNTOUCHED` if the node was not running: then another fault has to restart it.
        """
        ...

    async def restart(self, node: str, incarnation: int) -> None:
        """Start the node again if `incarnation` is still its latest and dead (idempotent)."""
        ...

    async def pause(self, node: str) -> Json:
        """SIGSTOP the node's process; return {"incarnation": n} for `resume`.

        n is `UNTOUCHED` if the node was not running, or was paused by another fault.
        """
        ...

    async def resume(self, node: str, incarnation: int) -> None:
        """SIGCONT that incarnation; do nothing if it is gone (idempotent)."""
        ...

    def is_paused(self, node: str) -> bool:
        """Return whether the kernel reports the node's process as stopped."""
        ...

    def is_alive(self, node: str, incarnation: int) -> bool:
        """Return whether that incarnation of the node is still running (or paused)."""
        ...

    async def cut(self, links: Sequence[tuple[str, str]]) -> str:
        """Hold all bytes that flow from a to b, for each (a, b); return a cut id.

        Cuts are counted: a link is open once every cut that names it is healed.
        """
        ...

    async def heal(self, cut: str, how: str) -> None:
        """Heal that cut (idempotent).

        `how`: "deliver" what was held, or "reset" the connections.
        """
        ...

    def held(self, cut: str) -> Json:
        """Return what that cut has held so far: {"bytes": n, "connections": n}."""
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
        """Ask the leader to transfer leadership to `to`; wait a while until `to` leads.

        Returns {"from": the old leader, None if there was none, "took_ms": from the request until
        `to` was seen to lead, None if it was not, "error": the leader's answer, None if it agreed}.
        """
        ...


class Fault(Protocol):
    """A fault is data with an undo (DESIGN.md decision 10).

    `plan` makes all random choices before the run; `aim` replaces roles ("leader") by the nodes
    that have them now; `apply` returns the undo as JSON; `undo` is idempotent and undoes exactly
    this fault; `probe`, called just before `undo`, measures whether it took effect.
    """

    name: str

    def configured(self, options: Json) -> Fault:
        """Return this fault with the campaign's options applied ({"victims": ["leader"]}).

        Raises:
            UsageError: an option has a value that this fault does not accept.
        """
        ...

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Return a short reason why this fault cannot be injected into that group, or None."""
        ...

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Choose the `index`-th instance of this fault in a campaign (`index` counts from 0)."""
        ...

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Return the plan with roles replaced by nodes. Pure."""
        ...

    def describe(self, plan: Json) -> str:
        """Return a few words on what an aimed plan does: "isolate leader n1"."""
        ...

    async def apply(self, plan: Json, world: World) -> Json:
        """Inject the fault; return its undo."""
        ...

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Measure whether the fault took effect."""
        ...

    async def undo(self, undo: Json, world: World) -> None:
        """Undo exactly this fault."""
        ...


# ---- workloads ---------------------------------------------------------------------------


Step = tuple[str, str, Any]
"""A micro-operation of a transaction: (f, key, value), as Elle has them.

("append", key, value) appends to the list of a key, ("w", key, value) writes a register, and
("r", key, None) reads either; a read that was answered has what it found in place of None.
"""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation to invoke.

    Attributes:
        f: what to do ("append", "read", ...).
        key: the queue or register.
        value: what to write.
        aim: in [0, 1), where in the queue a read reads (see the workload).
        offset: the exact offset, if it is already known.
        expected: the value that a cas compares with.
        request: what is requested, in words, if `value` only numbers it.
        steps: the micro-operations of a transaction.
    """

    f: str
    key: str
    value: int | None = None
    aim: float | None = None
    offset: int | None = None
    expected: int | None = None
    request: str | None = None
    steps: tuple[Step, ...] | None = None


class Answer(NamedTuple):
    """The result of an operation, as stored in the OPERATIONS table.

    Attributes:
        output: the value that was read or returned.
        offset: the offset that it is at.
        messages: (offset, value) in the order of delivery, if the operation can return several.
        elements: the values that a read of a whole set returned; may be empty.
        attempts: for each message, how often it was delivered before, if it can be redelivered.
        steps: those of a transaction, with what its reads found.
    """

    output: int | None = None
    offset: int | None = None
    messages: Sequence[tuple[int, int]] | None = None
    elements: Sequence[int] | None = None
    attempts: Sequence[int] | None = None
    steps: Sequence[Step] | None = None


class Workload(Protocol):
    """What clients do, and which checkers judge it."""

    name: str

    @property
    def checkers(self) -> tuple[str, ...]:
        """The names of the checkers that judge it."""
        ...

    def configured(self, options: Json) -> Workload:
        """Return this workload with the campaign's options applied ({"queues": 4}).

        Raises:
            UsageError: an option has a value that this workload does not accept.
        """
        ...

    def operations(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Generate the endless operations of one client; the same for the same seed."""
        ...

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Generate the operations of one client after the heal (final reads)."""
        ...

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run the operation; return its result."""
        ...

    def choose_offset(self, operation: Operation, end_seen: int) -> int | None:
        """Turn `aim` into an offset, given the highest end of the queue seen by this worker."""
        ...

    def end_shown(self, operation: Operation, output: int | None, offset: int | None) -> int:
        """Return the lowest end of the queue that this answer proves; 0 if it proves none."""
        ...

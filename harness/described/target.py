"""A target that a file describes: starts nodes by a command, asks them by a URL or a command.

The option `--option NAME=VALUE` changes its table, and its promises.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from shaketable.harness.contracts.abilities import DurableRange
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.errors import IndefiniteError, UsageError, unknown_name
from shaketable.harness.contracts.isolation import STRONGEST, weaker_of
from shaketable.harness.contracts.plugins import (
    NO_ROLE,
    Address,
    Launch,
    NodeLayout,
    NodeStatus,
)
from shaketable.harness.contracts.promises import FAMILIES, Promises
from shaketable.harness.described import TRANSACTIONAL, WORKLOADS
from shaketable.harness.described.client import FunctionClient, client_type, load
from shaketable.harness.described.target_file import (
    Leader,
    TargetTable,
    Weaker,
    filled,
    level_of,
)

if TYPE_CHECKING:
    import pyarrow as pa


NODE_LOG: Final = "node.log"
"""The file with a node's output, in its folder."""
DATA: Final = "data"
"""The folder for a node's data, in its folder."""
STARTS: Final = re.compile(rb"^--- shaketable: .* starts\b.*$", re.MULTILINE)
"""The line before the output of an incarnation."""
ASKED_AGAIN_AFTER_S: Final = 0.5
"""A command is run so often at most: each is a process."""
REQUEST_STATUS_S: Final = 0.3
COMMAND_STATUS_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 1 << 20
USUAL_FAULTS: Final = {
    "kill": Capability.KILL,
    "pause": Capability.PAUSE,
    "partition": Capability.CUT,
}
"""What targets are shaken with if a campaign names no fault, and what each needs."""
NO_IDS: Final[Mapping[str, str]] = {}
FIRST: Final = "n0"
"""The node that is the primary, if the target has one that never changes."""
LINEARIZABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "register": ("read", "write", "cas"),
    "read-write-register": ("read", "write"),
    "log": ("append", "read", "end"),
    "set": ("add", "read"),
    "counter": ("add", "read"),
    "work-queue": ("enqueue", "dequeue"),
} | dict.fromkeys(TRANSACTIONAL, ())
"""The operations of each workload, which are promised to be linearizable by default."""


class DescribedTarget:
    """A target of `shaketable.toml`.

    Attributes:
        file: the file that describes it.
    """

    mutants: Mapping[str, str] = {}
    logs_readable = False

    def __init__(self, name: str, table: TargetTable, file: Path) -> None:
        self.name = name
        self.file = file
        self.summary = table.summary or f"Described in {file.name}."
        self.advertises_addresses = table.one_address
        self.listens_once = table.one_port
        self.tells_own_addresses = table.own_addresses
        self.further_ports = table.further_ports
        self._table = table
        self._last: dict[str, tuple[float, NodeStatus | None]] = {}
        self._leads: dict[str, int] = {}  # those that say they lead, and their terms
        self._node_of: dict[str, str] = {}  # by the ids that the group gave to its nodes
        self._outputs: dict[tuple[str, str], _Output] = {}  # by node and what is looked for

    @cached_property
    def client_type(self) -> type[FunctionClient]:
        """The type of its clients. Raises UsageError if their file cannot be used."""
        return client_type(load(self.file.parent / self._table.client), self._table.options)

    @property
    def group_size(self) -> int | None:
        """How many nodes its group has; None: as many as a campaign says."""
        return self._table.size or None

    @property
    def default_faults(self) -> tuple[str, ...]:
        """Return kill, pause and partition; the last only if there are links."""
        without = ("partition",) if self.group_size == 1 else ()
        return tuple(fault for fault in USUAL_FAULTS if fault not in without)

    @cached_property
    def default_workload(self) -> str:
        """The workload that it is shaken with if none is named."""
        return self._table.workload or next(iter(self._served()), next(iter(WORKLOADS)))

    def _served(self) -> list[str]:
        """Return the workloads for which its client has the functions."""
        return [name for name, functions in WORKLOADS.items() if self._serves(functions)]

    @cached_property
    def promises(self) -> Promises:
        """What it promises: by default that its operations are linearizable for each key."""
        given = self._table.promises
        linearizable = given.linearizable
        if linearizable is None:
            linearizable = frozenset(chain(*(LINEARIZABLE[name] for name in self._served())))
        has_transactions = any(self._serves(WORKLOADS[name]) for name in TRANSACTIONAL)
        level = STRONGEST if has_transactions else ""
        promises = Promises(
            durable_under=given.faults,
            linearizable=linearizable,
            excludes=given.excludes,
            note=given.note,
            documented=given.documented,
            isolation=level_of(given.isolation or level),
            fails_over=self._table.leader is not None and bool(self._table.leader.term),
        )
        return weakened(promises, self._table)

    @property
    def usual_campaign(self) -> Mapping[str, float]:
        """The values of campaigns that give none (`contracts.abilities.UsuallyPaced`)."""
        return self._table.campaign

    @property
    def options(self) -> Mapping[str, str]:
        """Its options, which campaigns can choose (`contracts.abilities.TakesOptions`)."""
        return self._table.option_texts

    def configured(self, options: Mapping[str, str]) -> DescribedTarget:
        """Return the same target with these options.

        Raises:
            UsageError: it has no such option, or not with that value.
        """
        table = with_options(self._table, self.name, options)
        return type(self)(self.name, table, self.file)

    def prepare(self, layout: NodeLayout) -> Launch:
        """Say how to start a node; it gets a folder for its data."""
        self.data(layout).mkdir(parents=True, exist_ok=True)
        return self._launch(layout)

    def data(self, layout: NodeLayout) -> Path:
        """Return the folder for a node's data."""
        return layout.directory / DATA

    def set_up(self, setup: Sequence[str], layout: NodeLayout) -> str:
        """Return a shell command that fills a node's folder.

        What a set-up that was interrupted has left is deleted first.
        """
        folder = shlex.quote(str(self.data(layout)))
        return f"rm -rf {folder} && mkdir {folder} && {shlex.join(setup)}"

    def _launch(self, layout: NodeLayout) -> Launch:
        values = self._values(layout)
        further = () if layout.node == FIRST else self._table.others
        argv = self._command((*self._table.start, *self._table.arguments, *further), values)
        if self._table.setup:
            setup = self._command(self._table.setup, values)
            done = shlex.quote(str(is_set_up(layout)))
            first = f"{self.set_up(setup, layout)} && touch {done}"
            script = f"[ -e {done} ] || {{ {first}; }} || exit; exec {shlex.join(argv)}"
            argv = ("/bin/sh", "-c", script)
        env = {name: filled(text, values) for name, text in self._table.env.items()}
        return Launch(argv, env)

    @property
    def status_timeout_s(self) -> float:
        """How long a status may take: a command has to start first."""
        ready, leader = self._table.ready, self._table.leader
        runs = (ready is not None and ready.command) or (leader is not None and leader.command)
        return COMMAND_STATUS_S if runs else REQUEST_STATUS_S

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        """Ask a node; None if it is not ready. Without a way to ask, it has no role."""
        with trio.move_on_after(timeout_s):
            if not await self._is_ready(layout, timeout_s):
                self._leads.pop(layout.node, None)
                return None
            leader = self._table.leader
            if leader is None:
                return NodeStatus(layout.node, NO_ROLE, 0, None, -1, -1)
            if leader.command:
                return await self._rarely(layout, leader, timeout_s)
            return await self._asked(layout, leader, timeout_s)
        return None

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> FunctionClient:
        """Return a client."""
        return self.client_type(addresses, timeout_s)

    @staticmethod  # executors get it, and nothing of the target
    def read_log(directory: Path, node: str) -> Iterator[pa.RecordBatch]:
        """Read nothing: what the nodes' files hold is not described."""
        return iter(())

    def _serves(self, functions: tuple[str, ...]) -> bool:
        return all(map(self.client_type.functions.has, functions))

    def _command(self, words: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
        program, *arguments = (filled(word, values) for word in words)
        if "/" in program:  # a node runs in its own folder; a path is from that of the file
            program = str(self.file.parent / program)
        return (program, *arguments)

    def _values(self, layout: NodeLayout) -> dict[str, str]:
        """Return the placeholders of a node's texts."""
        own = layout.peer_address
        if self._table.one_address and layout.advertised_address is not None:
            own = layout.advertised_address
        first = layout.peers.get(FIRST, own)
        members = dict(sorted({**layout.peers, layout.node: own}.items()))
        listed = {name: self._peer(name, at) for name, at in members.items()}
        separator = self._table.peer_separator
        return {
            "id": layout.node,
            "number": _number(layout.node),
            **_address("client", layout.client_address),
            **_address("peer", layout.peer_address),
            **_address("advertised", own),
            **_address("first", first),
            **self._further(layout),
            "members": separator.join(listed.values()),
            "peers": separator.join(text for name, text in listed.items() if name != layout.node),
            "data": str(self.data(layout)),
            "folder": str(layout.directory),
            "here": str(self.file.parent),
            **self._table.option_texts,
            **self.further_values(),
        }

    def further_values(self) -> Mapping[str, str]:
        """Return the values of `TargetTable.further_placeholders`."""
        return {}

    def _further(self, layout: NodeLayout) -> dict[str, str]:
        """Return the placeholders of where nodes listen besides (`OF_A_FURTHER_PORT`)."""
        values: dict[str, str] = {}
        for name, port in layout.further.items():
            members = (self._peer(node, at) for node, at in sorted(port.reached.items()))
            values |= _address(name, port.own)
            values[f"{name}_advertised"] = str(port.reached[layout.node])
            values[f"{name}_members"] = self._table.peer_separator.join(members)
        return values

    def _peer(self, name: str, at: Address) -> str:
        values = {"id": name, "number": _number(name), "address": str(at)}
        return filled(self._table.peer_format, {**values, "host": at.host, "port": str(at.port)})

    async def _is_ready(self, layout: NodeLayout, timeout_s: float) -> bool:
        ready, at = self._table.ready, layout.client_address
        if ready is None:
            return await _accepts(at)
        if ready.log:
            said = await self._printed(layout, ready.log)
            return said is not None and said.get("ready", "") is not None
        values, here = self._values(layout), self.file.parent
        if ready.http:
            return await _fetched(filled(ready.http, values), timeout_s) is not None
        return await _output([filled(word, values) for word in ready.command], here) is not None

    async def _printed(self, layout: NodeLayout, pattern: str) -> Mapping[str, Any] | None:
        """Return the groups of the last line that a node has printed and that matches."""
        file = layout.directory / NODE_LOG
        output = self._outputs.get((layout.node, pattern))
        if output is None or output.file != file:  # of this run
            output = self._outputs[layout.node, pattern] = _Output(file, pattern)
        return await trio.to_thread.run_sync(output.last)

    async def _rarely(
        self, layout: NodeLayout, leader: Leader, timeout_s: float
    ) -> NodeStatus | None:
        """Ask by a command, unless that was done a moment ago."""
        at_s, last = self._last.get(layout.node, (-ASKED_AGAIN_AFTER_S, None))
        now_s = trio.current_time()
        if now_s - at_s < ASKED_AGAIN_AFTER_S:
            return last
        status = await self._asked(layout, leader, timeout_s)
        self._last[layout.node] = (now_s, status)
        return status

    async def _asked(
        self, layout: NodeLayout, leader: Leader, timeout_s: float
    ) -> NodeStatus | None:
        answer = await self._answer(layout, leader, timeout_s)
        self._leads.pop(layout.node, None)
        if answer is None:
            return None
        if leader.leads and _is_true(at_path(answer, leader.leads)):
            self._leads[layout.node] = _term(leader, answer)
        if leader.id:
            self._node_of[str(at_path(answer, leader.id))] = layout.node
        return status_of(layout, leader, answer, _newest(self._leads), self._node_of)

    async def _answer(self, layout: NodeLayout, leader: Leader, timeout_s: float) -> Any:
        """Return what a node says of who leads; None if it says nothing."""
        if leader.log:
            return await self._printed(layout, leader.log)
        values, here = self._values(layout), self.file.parent
        if leader.http:
            body = filled(leader.body, values)
            text = await _fetched(filled(leader.http, values), timeout_s, body)
        else:
            text = await _output([filled(word, values) for word in leader.command], here)
        return None if text is None else json.loads(text)


def is_set_up(layout: NodeLayout) -> Path:
    """Return the file that is there once a node's folder is set up: it is done once."""
    return layout.directory / f"{DATA}.is-set-up"


def status_of(
    layout: NodeLayout,
    leader: Leader,
    answer: object,
    leading: str | None = None,
    node_of: Mapping[str, str] = NO_IDS,
) -> NodeStatus:
    """Return what a node's answer says.

    `leading` is the node that says it leads, for answers that do not name the leader, and `node_of`
    has the nodes by the ids that the group gave to them. A line of the output without the group of
    `leads` says that the node has no role. Raises ValueError if a path leads nowhere.
    """
    if leader.log and leader.leads and at_path(answer, leader.leads) is None:
        return NodeStatus(layout.node, NO_ROLE, 0, None, -1, -1)
    ids = {**node_of, layout.node: layout.node}
    for name, at in (
        *layout.peers.items(),
        (layout.node, layout.client_address),
        (layout.node, layout.peer_address),
    ):
        ids[name] = ids[str(at)] = name
    if layout.advertised_address is not None:
        ids[str(layout.advertised_address)] = layout.node
    # The gateways of gRPC leave out what is zero or empty. An answer with the node's id is one.
    found = _at_path_or_none if leader.id else at_path
    led = ids.get(str(found(answer, leader.leader))) if leader.leader else leading
    role = "leader" if led == layout.node else "follower" if led else "candidate"
    term = _term(leader, answer)
    indexes = (leader.committed, leader.end)
    committed, end = (int(str(found(answer, path) or 0)) if path else -1 for path in indexes)
    return NodeStatus(layout.node, role, term, led, committed, max(end, committed))


def at_path(answer: object, path: str) -> Any:
    """Return what is at a path such as "raft.leader" or "members.0.id" of a JSON value.

    Raises:
        ValueError: there is nothing there.
    """
    at: Any = answer
    for step in path.split("."):
        if isinstance(at, dict) and step in at:
            at = at[step]
        elif isinstance(at, list) and step.isdecimal() and int(step) < len(at):
            at = at[int(step)]
        else:
            raise ValueError(f"the answer has no {path!r}: {json.dumps(answer)[:200]}")
    return at


def _term(leader: Leader, answer: object) -> int:
    found = _at_path_or_none if leader.id else at_path  # see `status_of`
    return int(str(found(answer, leader.term) or 0)) if leader.term else 0


def _newest(leads: Mapping[str, int]) -> str | None:
    """Return the node that leads the highest term; None if two do: the older one is not known."""
    highest = max(leads.values(), default=0)
    newest = [node for node, term in leads.items() if term == highest]
    return newest[0] if len(newest) == 1 else None


def _at_path_or_none(answer: object, path: str) -> Any:
    try:
        return at_path(answer, path)
    except ValueError:
        return None


def _address(name: str, at: Address) -> dict[str, str]:
    return {name: str(at), f"{name}_host": at.host, f"{name}_port": str(at.port)}


def _is_true(value: object) -> bool:
    """Return whether a value of an answer means yes: true, 1, "leader", ..."""
    return str(value).lower() in ("true", "1", "yes", "leader", "master", "primary")


def _number(node: str) -> str:
    return re.sub(r"\D", "", node) or "0"


async def _accepts(at: Address) -> bool:
    """Return whether a node accepts a connection."""
    try:
        stream = await trio.open_tcp_stream(at.host, at.port)
    except OSError:
        return False
    await trio.aclose_forcefully(stream)
    return True


class _Output:
    """A node's output, read on from where it was read last: it may be long, and is asked often."""

    def __init__(self, file: Path, pattern: str) -> None:
        self.file = file
        self._pattern = re.compile(pattern, re.MULTILINE)
        self._position = 0
        self._last: Mapping[str, Any] | None = None

    def last(self) -> Mapping[str, Any] | None:
        """Return the groups of the last line that matches since the node was started last."""
        try:
            with self.file.open("rb") as output:
                output.seek(self._position)
                read = output.read()
        except OSError:
            return None
        whole = read[: read.rfind(b"\n") + 1]
        self._position += len(whole)
        begins = [found.end() for found in STARTS.finditer(whole)]
        if begins:
            self._last, whole = None, whole[begins[-1] :]
        for found in self._pattern.finditer(whole.decode(errors="replace")):
            self._last = found.groupdict()
        return self._last


async def _fetched(url: str, timeout_s: float, body: str = "") -> str | None:
    """Return the text of a 2xx answer to a GET, or to a POST of JSON, else None."""
    data = body.encode() or None
    request = urllib.request.Request(  # noqa: S310 - the user's own file has the URL
        url, data, {"Content-Type": "application/json"} if data else {}
    )

    def fetch() -> str | None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_s) as response:
                return str(response.read(ANSWER_BYTES_MAX).decode(errors="replace"))
        except (OSError, http.client.HTTPException):
            return None

    return await trio.to_thread.run_sync(fetch, abandon_on_cancel=True)


async def _output(argv: list[str], folder: Path) -> str | None:
    """Return what a command prints if it exits with 0, else None."""
    try:
        done = await trio.run_process(
            argv, capture_stdout=True, capture_stderr=True, check=False, cwd=folder,
            start_new_session=True,  # Ctrl-C is for the harness: it is no answer that is missed
        )  # fmt: skip
    except OSError:
        return None
    return done.stdout[:ANSWER_BYTES_MAX].decode(errors="replace") if not done.returncode else None


# Options of a target: its table, and its promises.


def with_options(table: TargetTable, target: str, given: Mapping[str, str]) -> TargetTable:
    """Return a target's table with these options in place of its own.

    Raises:
        UsageError: it has no such option, or not with that value.
    """
    known = table.option_texts
    options = dict(table.options)
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"--option {name}: {unknown_name(f'option of {target}', name, known)}")
        choices = table.choices.get(name)
        if choices is not None and value not in choices:
            raise UsageError(f"--option {name}: {unknown_name('value', value, choices)}")
        options[name] = value if isinstance(options[name], str) else _option_number(name, value)
    return msgspec.structs.replace(table, options=options)


def weakened(promises: Promises, table: TargetTable) -> Promises:
    """Return what is left of a target's promises with the options that it has."""
    texts = table.option_texts
    for name, by_value in table.promises_with.items():
        if (weaker := by_value.get(texts.get(name, ""))) is not None:
            promises = _less(promises, weaker)
    return promises


def _less(promises: Promises, weaker: Weaker) -> Promises:
    durable, linearizable = promises.durable_under, promises.linearizable
    if weaker.durable_under is not None:
        named = (FAMILIES.get(name, {name}) for name in weaker.durable_under)
        durable &= frozenset().union(*named)
    if weaker.linearizable is not None:
        linearizable &= weaker.linearizable
    isolation = promises.isolation
    if weaker.isolation:
        isolation = weaker_of(isolation, level_of(weaker.isolation))
    note = " ".join(filter(None, (promises.note, weaker.note)))
    return replace(
        promises, durable_under=durable, linearizable=linearizable, isolation=isolation, note=note
    )


def _option_number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"--option {name}={value}: expected a whole number") from None


# A target whose nodes keep their data on a disk that loses what was not synced.

DISK: Final = "disk"
"""The folder of a node's disk, in its folder; its data is in a folder on it."""
ANSWER_POLL_S: Final = 0.1
CHUNK_BYTES: Final = 1 << 20


class TargetOnVolatileDisk(DescribedTarget):
    """A target of `shaketable.toml` with `disk = "volatile"`.

    See `contracts.abilities`: HasVolatileDisk, LosesDisks and StoresFiles.
    """

    def disk(self, layout: NodeLayout) -> Path:
        """Return the folder that is mounted."""
        return layout.directory / DISK

    def data(self, layout: NodeLayout) -> Path:
        """Return the folder for a node's data."""
        return self.disk(layout) / DATA

    def set_up(self, setup: Sequence[str], layout: NodeLayout) -> str:
        """Return a shell command that fills a node's folder, and syncs it: that was long ago."""
        data, disk = (shlex.quote(str(path)) for path in (self.data(layout), self.disk(layout)))
        return f"{super().set_up(setup, layout)} && find {data} -exec sync {{}} + && sync {disk}"

    # ---- the loss of a disk -----------------------------------------------------------------

    def why_no_disk_may_go(self, nodes: Sequence[str]) -> str | None:
        """Return None: what a group makes of it is seen by its clients."""
        return None

    def why_not_now(self, node: str, missing: Sequence[str]) -> str | None:
        """Return why not: another node is missing."""
        return f"{', '.join(missing)} is not back" if missing else None

    def store(self, layout: NodeLayout) -> Path:
        """Return the folder that is lost with the node's disk."""
        return self.data(layout)

    async def renew(
        self, layouts: Mapping[str, NodeLayout], node: str, lost: Mapping[str, int]
    ) -> Mapping[str, Launch]:
        """Let the node start as at first, with an empty folder; it is set up again."""
        await trio.lowlevel.checkpoint()
        is_set_up(layouts[node]).unlink(missing_ok=True)
        return {node: self.prepare(layouts[node])}

    async def readmit(
        self,
        layouts: Mapping[str, NodeLayout],
        node: str,
        lost: Mapping[str, int],
        timeout_s: float,
    ) -> None:
        """Wait until the node is ready: it is not known whether it has caught up.

        Raises:
            IndefiniteError: it is not, in time.
        """
        with trio.move_on_after(timeout_s):
            while await self.status(layouts[node], self.status_timeout_s) is None:  # noqa: ASYNC110 - no event
                await trio.sleep(ANSWER_POLL_S)
            return
        raise IndefiniteError(f"{node} was not ready {timeout_s:g} s after it got an empty disk")

    def stored_ranges(self, layout: NodeLayout) -> Sequence[DurableRange]:
        """Return all files up to their last byte that is not zero: nothing says what matters."""
        files = (path for path in sorted(self.data(layout).rglob("*")) if path.is_file())
        ranges = (DurableRange(path, 0, _used_bytes(path)) for path in files)
        return [each for each in ranges if each.end and not each.path.is_symlink()]


def _used_bytes(path: Path) -> int:
    """Return where the zeros at a file's end begin: they may never have been written."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - CHUNK_BYTES)
            file.seek(start)
            used = len(file.read(end - start).rstrip(b"\0"))
            if used:
                return start + used
            end = start
    return 0

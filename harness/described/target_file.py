"""The file `shaketable.toml`: groups of processes, described by how to start and ask them. Pure.

    [targets.kvs]
    start = ["{here}/server", "--id={id}", "--listen={client}", "--peers={peers}", "--data={data}"]
    client = "client.py"

A group that runs already has `nodes` in place of `start`, one on other machines `hosts` beside it.
A target that `extends` another has the other's keys where it has none itself.

Source: docs/your-own-system.md.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, overload

import msgspec

from shaketable.harness.contracts.abilities import PORT_MAX, Hosts
from shaketable.harness.contracts.errors import UsageError, unknown_name
from shaketable.harness.contracts.isolation import LEVELS
from shaketable.harness.contracts.promises import BUILT_IN_FAULTS, FAMILIES
from shaketable.harness.untrusted_text import printable

OF_A_NODE: Final = (
    "id", "number", "client", "client_host", "client_port", "peer", "peer_host", "peer_port",
    "advertised", "advertised_host", "advertised_port", "first", "first_host", "first_port",
    "peers", "members", "data", "folder", "here",
)  # fmt: skip
"""Placeholders of commands, environment variables and addresses."""
OF_A_RUNNING_NODE: Final = ("id", "number", "client", "client_host", "client_port", "here")
"""Placeholders of the commands and addresses of a group that runs already."""
OF_A_NODE_ELSEWHERE: Final = tuple(name for name in OF_A_NODE if name != "here")
"""Placeholders of how nodes are started on other machines: this file is not there."""
OF_A_FURTHER_PORT: Final = ("{}", "{}_host", "{}_port", "{}_advertised", "{}_members")
"""Placeholders of where a node listens besides; {} is the name of that."""
OF_A_LINK: Final = ("from", "from_host", "to", "to_host", "here")
"""Placeholders of commands for what one node sends to another."""
OF_A_PEER: Final = ("id", "number", "address", "host", "port")
"""Placeholders of `peer_format`."""
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
NAME: Final = re.compile(r"[a-z][a-z0-9-]*")
ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]/]+)):([0-9]{1,5})")
"""host:port, or [IPv6 address]:port."""
SIZE_MAX: Final = 9
"""The largest group that a campaign starts."""
EXTENDS: Final = "extends"
"""The key of a target that is another one with differences."""
OF_STARTED: Final = (
    "setup", "arguments", "others", "env", "one_address", "one_port", "own_addresses",
    "further_ports", "size", "disk",
)  # fmt: skip
"""Keys for nodes that a run starts."""
RUN_THERE: Final = ("start", "setup", "arguments", "others", "env")
"""Keys with what is run on the node's host, if nodes are on other machines."""
PACE: Final = (
    "nemesis_interval", "fault_duration_min", "fault_duration_max", "time_limit", "steady",
    "op_timeout",
)  # fmt: skip
"""The keys of a campaign that a target can have values of its own for, all in seconds."""
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {"disk": ("volatile",)}
"""The keys that take one of a few names."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a node is ready; one of these. Without any: when it accepts connections.

    Attributes:
        http: a URL that answers 2xx.
        log: a regular expression that a line of the node's output matches. If it has a group
            `ready`, that has to be in the last of such lines: a node may say that it no longer is.
        command: a command that exits with 0.
    """

    http: str = ""
    log: str = ""
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if sum(map(bool, (self.http, self.log, self.command))) != 1:
            raise ValueError("give one of http, log and command")
        _regular_expression(self.log)


class Leader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to ask a node who leads: a URL or a command that answers JSON, or its output.

    Attributes:
        http: the URL.
        body: what is posted to it; without it, it is a GET.
        command: the command.
        log: a regular expression; the last line of the node's output that matches is the answer,
            and the names of its groups are the paths in it. If it has no group of `leads`, that
            node has no role (yet).
        leader: path of the leader in the answer, as this node knows it: its id or an address.
        id: path of the id that the group itself has given to this node, if it gives them; `leader`
            may be one, and is left out of an answer, or null, while none leads.
        leads: path of what is true if this node leads.
        term: path of the term, a whole number that rises with each leader.
        committed: path of the index up to which the node has committed.
        end: path of the last index of its log.
    """

    http: str = ""
    body: str = ""
    command: tuple[str, ...] = ()
    log: str = ""
    leader: str = ""
    id: str = ""
    leads: str = ""
    term: str = ""
    committed: str = ""
    end: str = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.http, self.command, self.log))) != 1:
            raise ValueError("give one of http, command and log")
        if self.body and not self.http:
            raise ValueError("body is posted to http")
        if not (self.leader or self.leads):
            raise ValueError("give the path of leader, or of leads")
        if self.log:
            self._check_groups(_regular_expression(self.log))

    def _check_groups(self, log: re.Pattern[str]) -> None:
        """Check that what is taken from a line is a group of its expression."""
        for path in (self.leader, self.id, self.leads, self.term, self.committed, self.end):
            if path and path not in log.groupindex:
                raise ValueError(f"log has no group (?P<{printable(path)}>...)")


class Commands(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What does to a group that runs already what faults need. Each runs on this machine.

    Each may be run where there is nothing left to do, and then exits with 0 as well.

    Attributes:
        kill: ends a node's process at once.
        stop: ends it gracefully.
        start: starts it again.
        pause: stops its process for a while (SIGSTOP).
        resume: lets it go on.
        cut: drops what one node sends to another.
        heal: ends that.
        dropped: prints how many bytes or packets of that link `cut` has dropped.
    """

    kill: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    pause: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    heal: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, others in NEEDED_BY.items():
            if lacking := [each for each in others if getattr(self, name) and not self.of(each)]:
                raise ValueError(f"commands.{name} needs commands.{lacking[0]} as well")
        for name in msgspec.structs.asdict(self):
            known = OF_A_LINK if name in OF_LINKS else OF_A_RUNNING_NODE
            for text in self.of(name):
                _check_placeholders(f"commands.{name}", text, known)

    def of(self, name: str) -> tuple[str, ...]:
        """Return the command for an action; () if there is none."""
        command: tuple[str, ...] = getattr(self, name)
        return command


NO_LEVEL: Final = "none"
"""In place of an isolation level: transactions have none."""


def level_of(isolation: str) -> str:
    """Return the level that a table names; "" for none."""
    return "" if isolation == NO_LEVEL else isolation


def _check_level(isolation: str) -> None:
    if isolation not in ("", NO_LEVEL, *LEVELS):
        raise ValueError(f"isolation: {unknown_name('level', isolation, (*LEVELS, NO_LEVEL))}")


OF_LINKS: Final = ("cut", "heal", "dropped")
"""The commands for a link; the others are for a node."""
NEEDED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "kill": ("start",),
    "stop": ("start",),
    "pause": ("resume",),
    "cut": ("heal", "dropped"),
}
"""A command -> what undoes it and shows its effect."""


class PromisesTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the target promises (`harness.contracts.promises.Promises`).

    Attributes:
        durable_under: faults, or families of faults, that acknowledged writes survive.
        linearizable: operations that are linearizable together, for each key.
        excludes: further anomalies that never occur (docs/anomalies.md).
        note: a sentence for the report.
        documented: what its documentation says of what it does not promise, with the source.
        isolation: the level that all transactions have (docs/checking.md); by default
            strict-serializable, or none if its clients have no transactions; "none" for none.
    """

    durable_under: frozenset[str] = frozenset({"process", "network"})
    linearizable: frozenset[str] | None = None
    excludes: frozenset[str] = frozenset()
    note: str = ""
    documented: str = ""
    isolation: str = ""

    def __post_init__(self) -> None:
        _check_level(self.isolation)
        known = BUILT_IN_FAULTS | set(FAMILIES)
        if unknown := sorted(self.durable_under - known):
            raise ValueError(f"durable_under knows no {unknown[0]!r} (there are: {_list(known)})")

    @property
    def faults(self) -> frozenset[str]:
        """The faults that acknowledged writes survive, families expanded."""
        return frozenset().union(*(FAMILIES.get(name, {name}) for name in self.durable_under))


class Weaker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left of the promises if an option has some value.

    Attributes:
        durable_under: of the faults that acknowledged writes survive, those that are left.
        linearizable: of the linearizable operations, those that are left.
        isolation: the level that is left; "none" for none.
        note: a further sentence for the report.
    """

    durable_under: frozenset[str] | None = None
    linearizable: frozenset[str] | None = None
    isolation: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        _check_level(self.isolation)
        if self.durable_under is not None:
            PromisesTable(durable_under=self.durable_under)  # raises if it names no fault


class TargetTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One target.

    Attributes:
        client: the file with the client's functions, relative to this file.
        start: the command that starts a node, in the foreground.
        setup: a command that is run once for each node, before its first start, to fill its empty
            data folder; like `start`, it runs in the node's folder.
        arguments: further arguments of `start`, for a target that extends another.
        others: further arguments of all nodes but n0: of the replicas of a fixed primary.
        nodes: in place of `start`, for a group that runs already: where clients reach its nodes,
            each as host:port.
        commands: for a group that runs already: what faults need.
        hosts: the other machines that its nodes are started on.
        summary: what the target is, in one sentence.
        env: further environment variables of a node.
        ready: when a node is ready.
        leader: how to ask a node who leads; without it, faults that need a leader are refused.
        promises: what it promises.
        workload: its default workload; without it, the first that the functions serve.
        peer_format: a peer in `{peers}` and `{members}`.
        peer_separator: what separates them.
        one_address: nodes tell their peers one address, the same for all (as etcd's do).
        one_port: nodes listen for clients and peers at the same port (as Redis' do).
        own_addresses: nodes tell each other where they listen (as Galera's do), so that links can
            be cut in world netns alone.
        further_ports: what else nodes listen for, each at a port of its own (as Kafka's do for
            their controllers); with `one_address` or `own_addresses`, and on this machine alone.
        size: how many nodes the group has; 0: as many as the campaign says.
        disk: "volatile": nodes keep their data on a file system that loses what was not synced, so
            that they can lose power, and their disks can fail; without it, in plain folders.
        campaign: values of campaigns that give none (`PACE`): of a system that needs longer to come
            back than ours.
        options: what the functions find in their node's `options`, and texts and numbers also as
            placeholders: what `--option NAME=VALUE` can replace.
        choices: the values that an option can have, if not any.
        promises_with: option -> value -> what that value takes from the promises.
    """

    further_placeholders: ClassVar[tuple[str, ...]] = ()
    """Placeholders that a kind of target has besides."""

    client: str
    start: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    commands: Commands = Commands()
    hosts: Hosts | None = None
    summary: str = ""
    env: Mapping[str, str] = {}
    ready: Ready | None = None
    leader: Leader | None = None
    promises: PromisesTable = PromisesTable()
    workload: str = ""
    peer_format: str = "{id}={address}"
    peer_separator: str = ","
    one_address: bool = False
    one_port: bool = False
    own_addresses: bool = False
    further_ports: tuple[str, ...] = ()
    size: Annotated[int, msgspec.Meta(ge=0, le=SIZE_MAX)] = 0
    disk: Literal["volatile", ""] = ""
    campaign: Mapping[str, float] = {}
    options: Mapping[str, Any] = {}
    choices: Mapping[str, tuple[str, ...]] = {}
    promises_with: Mapping[str, Mapping[str, Weaker]] = {}

    def __post_init__(self) -> None:
        if bool(self.start) == bool(self.nodes):
            raise ValueError("give start (a node's command), or nodes (where they already run)")
        known = OF_A_RUNNING_NODE if self.nodes else OF_A_NODE
        for key, text in self._templates():
            is_there = self.hosts is not None and key.partition(".")[0] in RUN_THERE
            places = OF_A_NODE_ELSEWHERE if is_there else known
            further = (*self.of_further_ports, *self.option_texts, *self.further_placeholders)
            _check_placeholders(key, text, (*places, *further))
        self._check_options()
        for key in self.campaign:
            if key not in PACE:
                raise ValueError(f"campaign: {unknown_name('key', key, PACE)}")
        if self.further_ports and not (self.one_address or self.own_addresses):
            raise ValueError("further_ports needs one_address or own_addresses = true as well")
        _check_placeholders("peer_format", self.peer_format, OF_A_PEER)
        if self.hosts is not None:
            self._check_elsewhere()
        if self.nodes:
            self._check_running()
        elif self.commands != Commands():
            raise ValueError("commands are for a group that runs already: it has nodes, no start")

    @property
    def option_texts(self) -> dict[str, str]:
        """The options that are texts or numbers, as texts: they are placeholders, too."""
        return {
            name: str(value)
            for name, value in self.options.items()
            if isinstance(value, str | int) and not isinstance(value, bool)
        }

    @property
    def of_further_ports(self) -> tuple[str, ...]:
        """The placeholders of `further_ports`."""
        return tuple(each.format(name) for name in self.further_ports for each in OF_A_FURTHER_PORT)

    def _check_options(self) -> None:
        """Check that nothing hides a placeholder, and that what is said of options is of one."""
        for name in self.further_ports:
            if re.fullmatch("[a-z]+", name) is None:
                raise ValueError(
                    f"further_ports: {printable(name)!r} is no name (lower-case letters alone)"
                )
        if len(set(self.further_ports)) < len(self.further_ports):
            raise ValueError("further_ports: one of them is named twice")
        own = (*OF_A_NODE, *self.further_placeholders)
        for key, names in (
            ("further_ports", self.of_further_ports), ("options", self.option_texts)
        ):  # fmt: skip
            for name in names:
                if name in own:
                    raise ValueError(f"{key}: {name} is a placeholder of its own; rename it")
            own = (*own, *names)
        for key, named in (("choices", self.choices), ("promises_with", self.promises_with)):
            if unknown := sorted(named.keys() - self.options.keys()):
                raise ValueError(f"{key}: {unknown_name('option', unknown[0], self.options)}")
        for name, values in self.choices.items():
            if str(self.options[name]) not in values:
                raise ValueError(f"choices.{name} does not have what options.{name} is")

    def _check_elsewhere(self) -> None:
        """Check what nodes on other machines cannot have."""
        if self.nodes:
            raise ValueError("hosts: nodes that run already are not started; leave one of them out")
        assert self.hosts is not None
        for option in self.hosts.options:
            _check_placeholders("hosts.options", option, ("here",))
        for key, program in zip(
            ("start", "setup"), (*self.start[:1], *self.setup[:1]), strict=False
        ):
            if "/" in program and not program.startswith("/"):
                raise ValueError(
                    f"{key}: {printable(program)!r} is on the hosts: give an absolute path"
                )
        if self.ready is not None and self.ready.log:
            raise ValueError("ready.log: nodes' output is on their hosts; use http or command")
        if self.leader is not None and self.leader.log:
            raise ValueError("leader.log: nodes' output is on their hosts; use http or command")
        for key in ("disk", "further_ports"):
            if getattr(self, key):
                raise ValueError(f"{key} is for nodes on this machine; leave it out, or hosts")

    def _check_running(self) -> None:
        """Check what only a group that runs already may have, and what it cannot have."""
        for node in self.nodes:
            found = ADDRESS.fullmatch(node)
            if found is None or not 0 < int(found[3]) <= PORT_MAX:
                raise ValueError(f"nodes: {printable(node)!r} is not host:port")
        if len(set(self.nodes)) < len(self.nodes):
            raise ValueError("nodes: two of them have the same address")
        for name in OF_STARTED:
            if getattr(self, name):
                raise ValueError(f"{name} is for nodes that shaketable starts")
        if self.ready is not None and self.ready.log:
            raise ValueError("ready.log: the output of nodes that run already is not known")
        if self.leader is not None and self.leader.log:
            raise ValueError("leader.log: the output of nodes that run already is not known")
        if self.commands.pause and self.ready is None:
            raise ValueError(
                "commands.pause needs ready.http or ready.command: the kernel accepts connections"
                " for a paused process"
            )

    def _templates(self) -> Iterator[tuple[str, str]]:
        yield from (("start", text) for text in self.start)
        yield from (("setup", text) for text in self.setup)
        yield from (("arguments", text) for text in self.arguments)
        yield from (("others", text) for text in self.others)
        yield from ((f"env.{name}", text) for name, text in self.env.items())
        if self.ready is not None:
            yield "ready.http", self.ready.http
            yield from (("ready.command", text) for text in self.ready.command)
        if self.leader is not None:
            yield "leader.http", self.leader.http
            yield "leader.body", self.leader.body
            yield from (("leader.command", text) for text in self.leader.command)


Table = TypeVar("Table", bound=TargetTable)


@overload
def read(path: Path) -> Mapping[str, TargetTable]: ...
@overload
def read(path: Path, kind: type[Table]) -> Mapping[str, Table]: ...
def read(path: Path, kind: type[TargetTable] = TargetTable) -> Mapping[str, TargetTable]:
    """Return the targets of a file by name; `kind` is what their tables are.

    Raises:
        UsageError: it cannot be read, is not TOML, or has an invalid value; one line says where.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot read {path}: {why}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    if other := sorted(given.keys() - {"targets"}):
        raise UsageError(f"{path}: unknown table {printable(other[0])!r} (there is: targets)")
    tables = given.get("targets", {})
    if not isinstance(tables, dict):
        raise UsageError(f"{path}: targets is a table: [targets.NAME]")
    return {name: _target(path, name, tables, kind) for name in tables}


def _target(
    path: Path, name: str, tables: Mapping[str, object], kind: type[TargetTable]
) -> TargetTable:
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{path}: targets: {printable(name)!r} is no name: use small letters, digits, hyphens"
        )
    table = _extended(tables, name, f"{path}: targets.{name}")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        key, where = place.strip("`."), f"targets.{name}{place.rstrip('`')}"
        value = table[key] if isinstance(table, dict) and key in CHOICES else None
        if isinstance(value, str):
            text = unknown_name(key, value, CHOICES[key])
        raise UsageError(f"{path}: {where}: {printable(text)}") from error


def _extended(
    tables: Mapping[str, object], name: str, where: str, by: tuple[str, ...] = ()
) -> object:
    """Return a target's table with the keys of those that it extends. Raises UsageError."""
    table = tables[name]
    if not isinstance(table, dict) or EXTENDS not in table:
        return table
    base = table[EXTENDS]
    if not isinstance(base, str) or base not in tables:
        raise UsageError(f"{where}: {EXTENDS}: {unknown_name('target', str(base), tables)}")
    if base in (name, *by):
        raise UsageError(f"{where}: {EXTENDS}: {base} extends itself")
    inherited = _extended(tables, base, where, (name, *by))
    own = {key: value for key, value in table.items() if key != EXTENDS}
    return {**inherited, **own} if isinstance(inherited, dict) else own


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return a text with its placeholders replaced."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]], template)


def _regular_expression(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"log is no regular expression: {error}") from None


def _check_placeholders(key: str, template: str, known: tuple[str, ...]) -> None:
    for name in _PLACEHOLDER.findall(template):
        if name not in known:
            raise ValueError(
                f"{key} has an unknown placeholder {{{name}}} (there are: {_list(known)})"
            )


def _list(names: Any) -> str:
    return ", ".join(sorted(names))

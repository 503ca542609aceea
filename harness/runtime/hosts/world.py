"""The world of groups on other machines: nodes are started and ended there, by OpenSSH.

Faults are those of the world of groups that run already, by scripts of ours in place of the user's
commands. Their effect is seen on the host: processes that are gone or stopped, bytes that were
dropped.

What was started where is written down in the run's folder before that (hosts.json), and stays there
until every host is clean, so that `shaketable heal` can do what the run could not.

Source: jepsen.core `run!` on nodes that SSH reaches; jepsen.db (`setup!`, `teardown!`),
jepsen.control (`on-nodes`); docs/your-own-system.md.
"""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from time import monotonic_ns
from typing import Final

import msgspec
import trio

from shaketable.harness.campaigns.campaign import Campaign, faults_of, target_of
from shaketable.harness.contracts.abilities import Hosts, RunsOnHosts
from shaketable.harness.contracts.capabilities import Capability, Link
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import (
    UNTOUCHED,
    Address,
    Json,
    Launch,
    NodeLayout,
    NodeStatus,
    Target,
)
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.discovery import get
from shaketable.harness.history.run_folder import RunFolder, write_atomically
from shaketable.harness.run_markers import scratch_prefix
from shaketable.harness.runtime.clients.workers import plan_workers
from shaketable.harness.runtime.existing_world import (
    ExistingWorld,
    Strike,
    each_of,
    number_in,
    run_name,
)
from shaketable.harness.runtime.facts import wall_clock
from shaketable.harness.runtime.group_status import status_timeout_s
from shaketable.harness.runtime.hosts import scripts
from shaketable.harness.runtime.hosts.scripts import Place
from shaketable.harness.runtime.hosts.ssh import Host, UnreachableError
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import Observer
from shaketable.harness.runtime.processes.nodes import Exit
from shaketable.harness.runtime.rig import Rig, open_records

LOOK_AGAIN_AFTER_S: Final = 1.0
"""A host is asked so often at most what became of a node that does not answer."""
EXITS_KEPT_MAX: Final = 1_000
NO_TRACE: Final = "it is gone with its shell: killed there, or the host was started anew"


class HostsWorld(ExistingWorld):
    """Implements `contracts.plugins.World` by scripts on other machines.

    Args:
        group: the nodes, looked at and not started.
        folder: the run's folder.
        status_log: receives changes of role and term.
        observer: is notified of events.
        start_ns: the run's start on CLOCK_MONOTONIC.
    """

    sees_answers_only = False
    count_every_s = 0.05  # a short fault is over soon, and a script takes 0.1 s

    def __init__(
        self,
        group: HostGroup,
        folder: RunFolder,
        status_log: Lines,
        observer: Observer,
        start_ns: int,
    ) -> None:
        super().__init__(group, group.layouts, status_log, observer, start_ns)
        self._group, self._folder, self._start_ns = group, folder, start_ns
        self._last_lines = dict.fromkeys(self.nodes, "")
        self._looking: set[str] = set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the nodes, poll them until cancelled; at the end nothing of the run is left."""
        try:
            await self._group.start_all()
        except BaseException:  # also when cancelled: some may have been started
            with trio.CancelScope(shield=True):
                await self._at_end()
            raise
        await super().run(task_status=task_status)

    async def _at_end(self) -> None:
        """End what `stop_all` did not: the run was cut off, or a host could not be reached."""
        self.group_status.is_ending = True
        was_left = bool(self._group.left)
        await self._group.end(gently=False)
        for line in self.remarks():
            self._observer.note(line)
        if was_left and not self._group.left:
            self._observer.note("all hosts are clean now")

    async def stop_all(self) -> None:
        """Stop all nodes gracefully, then by SIGKILL; fetch their output, clean their hosts."""
        self.group_status.is_ending = True
        await self._group.end(gently=True)

    def last_line(self, node: str) -> str:
        """Return the last line of the node's output when its host was asked last."""
        return self._last_lines[node]

    def explain(self, ended: Exit) -> str:
        """Describe in one line how a node ended by itself, and where to read more."""
        return f"node {ended} (see nodes/{ended.node}/node.log when the run is over)"

    def remarks(self) -> tuple[str, ...]:
        """Return which nodes may still run on their hosts: `heal` ends them."""
        return tuple(
            f"{node} may still run on its host ({why}); end it by: {PROGRAM} heal"
            f" {self._folder.path}"
            for node, why in self._group.left.items()
        )

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        """Cut the power of nodes, at about the same time; see `LosesPower.lose_power`.

        No event of a node is seen here: it is cut once it has something that is not synced.
        """
        undo: Json = {"incarnations": {}, "lost_bytes": {}}

        async def strike(node: str) -> None:
            async with self._turns[node]:
                undo["incarnations"][node] = UNTOUCHED
                if node in self._down:
                    return
                undo["incarnations"][node] = self._incarnation[node]
                self._down[node] = Strike()
                self._ended.add(node)
                printed = await self._strike("power", node, self._down[node], self._start)
                undo["lost_bytes"][node] = number_in(printed)

        try:
            await each_of(nodes, strike)
        except BaseException:  # the others were cut
            with trio.CancelScope(shield=True):
                for node in undo["incarnations"]:
                    await self._tried(partial(self._in_turn, self._start, node))
            raise
        return undo

    async def _ask(self, node: str) -> NodeStatus | None:
        status = await super()._ask(node)
        if status is None and self._nursery is not None and node not in self._looking:
            self._nursery.start_soon(self._look_at, node)
        return status

    async def _look_at(self, node: str) -> None:
        """Find out on its host what became of a node that does not answer."""
        incarnation = self.incarnation(node)
        self._looking.add(node)
        try:
            state, _, last = (await self._group.act("state", node)).partition("\n")
        except UnreachableError:  # it was told; nothing is known of the node
            await trio.sleep(LOOK_AGAIN_AFTER_S)
        except HarnessError as error:
            self._observer.note(f"the state of {node} is not known: {error}")
            await trio.sleep(LOOK_AGAIN_AFTER_S)
        else:
            self._last_lines[node] = last.strip()
            is_struck = node in self._down or node in self._paused
            is_over = (
                is_struck or self.group_status.is_ending or incarnation != self.incarnation(node)
            )
            if not is_over and state not in ("running", "paused"):
                self._note_end(node, incarnation, state)
            await trio.sleep(LOOK_AGAIN_AFTER_S)
        finally:
            self._looking.discard(node)

    def _note_end(self, node: str, incarnation: int, state: str) -> None:
        """Record that a node has ended by itself; at the end of the faults it is started again."""
        self._down[node] = Strike(is_done=True, is_seen=True)
        self.group_status.learn(node, None)
        code = state.removeprefix("ended ")
        status = int(code) if code.isdecimal() else 128 + signal.SIGKILL
        last = self._last_lines[node] if code.isdecimal() else NO_TRACE
        ended = Exit(
            node=node,
            incarnation=incarnation,
            returncode=128 - status if status > 128 else status,  # as subprocess has it
            asked=False,
            last_line=last,
            at_ns=monotonic_ns() - self._start_ns,
        )
        if len(self.exits) < EXITS_KEPT_MAX:
            self.exits.append(ended)
            self._observer.note(self.explain(ended))

    async def _dropped_by(self, links: Sequence[Link]) -> dict[Link, int]:
        """Ask each host once what it has dropped."""
        dropped: dict[Link, int] = {}
        for to in sorted({to for _, to in links}):
            by_sender = await self._group.dropped(to)
            dropped |= {link: by_sender.get(link[0], 0) for link in links if link[1] == to}
        return dropped


async def build(
    campaign: Campaign, folder: RunFolder, observer: Observer, *, command: Sequence[str] = ()
) -> Rig:
    """Look at the hosts, and assemble a run on them; start nothing.

    Args: as for `rig.build`.

    Raises:
        UsageError: the campaign leaves no room for its faults, or none of them is available.
        HarnessError: a host cannot be used, or a file cannot be written.
    """
    target = target_of(campaign)
    assert isinstance(target, RunsOnHosts), "looked at when the campaign was resolved"
    start_ns = monotonic_ns()

    def now_ns() -> int:
        return monotonic_ns() - start_ns

    scratch = Path(tempfile.mkdtemp(prefix=scratch_prefix("ssh")))
    let_go = partial(shutil.rmtree, scratch, ignore_errors=True)
    try:
        run = run_name(folder, start_ns)
        needs = {need for fault in faults_of(campaign) for need in get("faults", fault).needs}
        group = HostGroup(
            run, target.hosts, folder, observer.note, scratch,
            may_lose_power=Capability.POWER in needs,
        )  # fmt: skip
        target.lacks.update(await group.check(target))
        records = open_records(campaign, target, folder, command, now_ns, start_ns, monotonic_ns)
    except BaseException:
        let_go()
        raise
    records.facts.update(clock=wall_clock(now_ns))
    world = HostsWorld(group, folder, records.status_log, observer, start_ns)
    clients = {node: layout.client_address for node, layout in group.layouts.items()}
    plans = plan_workers(campaign, folder, clients, start_ns)
    return records.rig(
        observer, world, plans, services=(group.keep_connected, world.run),
        let_go=let_go, restore_late=world.put_back,
    )  # fmt: skip


# The nodes of a run: looked at before, started, acted on, ended, left clean.

UNREACHABLE_MAX_S: Final = 15.0
"""An undo waits so long for a host that cannot be reached. Then it fails, and is tried again by
those that want it undone: the nemesis, the end of the run, `heal`."""
TRY_AGAIN_AFTER_S: Final = 0.5
UNDOES: Final = ("start", "resume", "heal")


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may have left on other machines: hosts.json.

    Attributes:
        run: the run's name there.
        hosts: the machines.
        cuts: the nodes on whose hosts links could be cut.
    """

    run: str
    hosts: Hosts
    cuts: tuple[str, ...] = ()


class HostGroup:
    """The nodes of one run, each on its host.

    Args:
        run: the run's name: letters and digits.
        hosts: the machines.
        folder: the run's folder here: gets the nodes' output.
        tell: is given lines for the user.
        scratch: an existing folder of ours for connections that are kept; None: none is.
        may_lose_power: whether each node's data shall lie on a file system of its own.
    """

    def __init__(
        self,
        run: str,
        hosts: Hosts,
        folder: RunFolder,
        tell: Callable[[str], None],
        scratch: Path | None = None,
        *,
        may_lose_power: bool = False,
    ) -> None:
        names = [f"n{number}" for number in range(len(hosts.ssh))]
        self.nodes = tuple(names)
        self.left: dict[str, str] = {}
        """Nodes that may be left on their hosts, each with the reason."""
        self.cuts: tuple[str, ...] = self.nodes
        """The nodes on whose hosts links can be cut."""
        self.layouts = _layouts(run, hosts)
        self._run, self._hosts, self._folder = run, hosts, folder
        self._tell = tell
        disk_gib = hosts.disk_gib if may_lose_power else 0
        self._places = {node: Place(hosts.folder, run, node, disk_gib) for node in names}
        self._at = {
            node: Host(node, name, (*hosts.options, *hosts.destination(number)), scratch, tell)
            for number, (node, name) in enumerate(zip(names, hosts.ssh, strict=True))
        }
        self._launches: Mapping[str, Launch] = {}
        self._sources: dict[str, list[str]] = {}  # the addresses that a node sends from
        self._clean: set[str] = set()
        self._target: Target | None = None

    # ---- before anything is started ------------------------------------------------------

    async def check(self, target: Target) -> dict[Capability, str]:
        """Look at every host, telling which is fit.

        Returns what cannot be done on one of them, and why.

        Raises:
            HarnessError: a host cannot be used; what, where, what to do.
        """
        self._target = target
        self._launches = {node: target.prepare(layout) for node, layout in self.layouts.items()}
        found: dict[str, str] = {}

        async def look(node: str) -> None:
            self._sources[node] = await trio.to_thread.run_sync(
                _resolved, self.layouts[node].peer_address.host, abandon_on_cancel=True
            )
            ports = (self._hosts.client_port, self._hosts.peer_port)
            program = self._launches[node].argv[0]
            found[node] = await self._at[node].run(
                scripts.check(self._places[node], program, ports)
            )
            self._tell(f"{self._at[node].name} is ready")

        await _for_each(self.nodes, look)
        facts = {
            node: dict(line.partition(" ")[::2] for line in text.splitlines())
            for node, text in found.items()
        }
        self.cuts = tuple(node for node, known in facts.items() if "links" not in known)
        lacks: dict[Capability, str] = {}
        for node, known in facts.items():
            for capability, fact in ((Capability.CUT, "links"), (Capability.POWER, "power")):
                if fact in known:
                    lacks.setdefault(capability, f"{self._at[node].name}: {known[fact]}")
            for ours, addresses in self._sources.items():
                if known["from"] in addresses:
                    why = f"this machine is the host of {ours}, as {self._at[node].name} sees it"
                    lacks.setdefault(Capability.CUT, f"{why}: a cut would cut it off too")
        if Capability.POWER in lacks:
            self._places = {
                node: replace(place, disk_gib=0) for node, place in self._places.items()
            }
        return lacks

    async def start_all(self) -> None:
        """Start all nodes. Raises HarnessError: one does not start."""
        traces = Traces(run=self._run, hosts=self._hosts, cuts=self.cuts)
        write_atomically(self._folder.hosts_json, msgspec.json.encode(traces))
        await _for_each(self.nodes, partial(self.act, "start"))

    async def keep_connected(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep a connection to each host until cancelled."""
        async with trio.open_nursery() as nursery:
            for host in self._at.values():
                nursery.start_soon(host.keep_connected)
            task_status.started()

    # ---- what faults need (contracts.abilities.RunsAlready.act) -----------------------------

    async def act(self, action: str, node: str, to: str = "") -> str:
        """Do something to a node, or to what it sends to another; return what was printed.

        What undoes a fault waits for a host that cannot be reached.

        Raises:
            UnreachableError: the host cannot be reached: whether it was done is not known.
            HarnessError: it could not be done.
        """
        where, script = (to or node), self._script(action, node, to)
        if action in UNDOES:
            return await self._when_back(where, script)
        return await self._at[where].run(script)

    def _script(self, action: str, node: str, to: str) -> str:
        place = self._places[to or node]
        match action:
            case "start":
                launch = self._launches[node]
                return scripts.start(place, launch.argv, launch.env)
            case "cut":
                return scripts.cut(place, {node: self._sources[node]})
            case "heal":
                return scripts.heal(place, node)
            case _:
                make = {"kill": scripts.kill, "stop": scripts.stop, "pause": scripts.pause}
                make |= {"resume": scripts.resume, "state": scripts.state, "power": scripts.power}
                return make[action](place)

    async def dropped(self, to: str) -> dict[str, int]:
        """Return how many bytes for a node are dropped, by sender. Raises as `act`."""
        listing = await self._at[to].run(scripts.dropped(self._places[to]))
        return scripts.bytes_dropped(listing)

    async def _when_back(self, node: str, script: str) -> str:
        """Run a script; if the host cannot be reached, again and again until it is back."""
        until = trio.current_time() + UNREACHABLE_MAX_S
        while True:
            try:
                return await self._at[node].run(script)
            except UnreachableError:
                if trio.current_time() >= until:
                    raise
            await trio.sleep(TRY_AGAIN_AFTER_S)

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        """Ask a node, from here; None if it does not answer."""
        assert self._target is not None, "looked at before"
        return await self._target.status(layout, timeout_s)

    @property
    def status_timeout_s(self) -> float:
        """How long a status may take, in seconds."""
        assert self._target is not None, "looked at before"
        return status_timeout_s(self._target)

    # ---- the end ----------------------------------------------------------------------------

    async def end(self, *, gently: bool) -> tuple[str, ...]:
        """End the nodes, fetch their output, remove all that the run has left on its hosts.

        Goes on where it was interrupted. Returns what was ended; what could not be is in `left`.
        """
        did: list[str] = []

        async def clean(node: str) -> None:
            self.left[node] = "it was not looked at in time"
            try:
                did.extend(await self._clean_up(node, gently=gently))
            except HarnessError as error:
                self.left[node] = str(error)
            else:
                self._clean.add(node)
                del self.left[node]

        await _for_each([node for node in self.nodes if node not in self._clean], clean)
        if not self.left:
            self._folder.hosts_json.unlink(missing_ok=True)
        return tuple(did)

    async def _clean_up(self, node: str, *, gently: bool) -> list[str]:
        place, host = self._places[node], self._at[node]
        ended = await self._when_back(
            node, scripts.end(place, gently=gently, with_links=node in self.cuts)
        )
        directory = self._folder.node(node)
        directory.mkdir(parents=True, exist_ok=True)
        await host.fetch(scripts.log(place), self._folder.node_log(node))
        if self._hosts.fetch_data:
            await host.fetch(scripts.data(place), directory / "data.tar")
        await host.run(scripts.remove(place))
        return [f"{host.name}: ended {what}" for what in ended.splitlines()]


async def clean_up_after(folder: RunFolder) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """End what a run whose harness was killed has left on other machines.

    Returns what was ended, and what could not be, a line each.

    Raises:
        HarnessError: what was started where cannot be read.
    """
    try:
        traces = msgspec.json.decode(folder.hosts_json.read_bytes(), type=Traces)
    except FileNotFoundError:
        return (), ()
    except (OSError, msgspec.DecodeError) as error:
        raise HarnessError(f"cannot read {folder.hosts_json}: {error}") from error
    group = HostGroup(traces.run, traces.hosts, folder, _ignore)
    group.cuts = traces.cuts
    did = await group.end(gently=False)
    return did, tuple(f"{node} may be left: {why}" for node, why in group.left.items())


def _layouts(run: str, hosts: Hosts) -> dict[str, NodeLayout]:
    """Return where the nodes are, on their hosts, and how each reaches the others: directly."""
    at = {f"n{number}": hosts.address(number) for number in range(len(hosts.ssh))}
    peers = {node: Address(host, hosts.peer_port) for node, host in at.items()}
    return {
        node: NodeLayout(
            node=node,
            directory=Path(Place(hosts.folder, run, node).directory),
            client_address=Address(host, hosts.client_port),
            peer_address=peers[node],
            peers={peer: there for peer, there in peers.items() if peer != node},
        )
        for node, host in at.items()
    }


def _resolved(name: str) -> list[str]:
    """Return the IP addresses of a name. Raises HarnessError if it has none."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise HarnessError(
            f"{name}: {error.strerror}; give hosts.addresses, where nodes reach each other"
        ) from error
    return sorted({str(ip_address(str(each[4][0]).partition("%")[0])) for each in found})


async def _for_each(nodes: Sequence[str], act: Callable[[str], Awaitable[object]]) -> None:
    """Do something for all nodes at the same time. Raises as the first that fails does."""
    try:
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(act, node)
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if isinstance(first, HarnessError):
            raise first from group
        raise


def _ignore(_line: str) -> None:
    """Ignore a line: what cannot be reached is returned."""

"""The command `up`: run a broker group to play with, until Ctrl-C.

Source: docker compose up for its behaviour; it replaces RocketMQ's fast-try.sh.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic_ns
from typing import Annotated, Final

import trio
from cyclopts import Parameter
from rich.markup import escape

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.run_markers import scratch_prefix
from shaketable.harness.runtime.processes import ports
from shaketable.harness.runtime.processes.nodes import NodeProcess
from shaketable.harness.targets.broker_site import (
    GROUPS_MAX,
    Mode,
    Site,
    SiteServer,
    lay_out,
    ports_needed,
)
from shaketable.harness.terminal import output

NODES: Final[Mapping[Mode, tuple[int, ...]]] = {
    "dledger": (3, 1, 5, 7),
    "async-replication": (2, 3, 4, 5),
    "sync-double-write": (2, 3, 4, 5),
    "multi-master": (1,),
}
"""The numbers of brokers that a group may have in each mode; the first is the default."""
GROUPS: Final[Mapping[Mode, int]] = {"multi-master": 2}
"""The default number of groups, if not one."""
WRITABLE_ROLE: Final[Mapping[Mode, str]] = {"dledger": "leader"}
"""The role of the broker that accepts a group's messages, if not master."""
NAME_SERVERS_MAX: Final = 5
READY_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.2
STOP_GRACE_S: Final = 10.0
LOG: Final = "output.log"


def up(
    *,
    mode: Mode = "dledger",
    nodes: Annotated[int | None, Parameter(show_default=False)] = None,
    groups: Annotated[int | None, Parameter(show_default=False)] = None,
    name_servers: int = 1,
    folder: Annotated[Path | None, Parameter(metavar="PATH", show_default=False)] = None,
) -> int:
    """Start brokers and name servers on this machine to try out; Ctrl-C stops all of them.

    Clients of RocketMQ connect to the name servers that are printed. Everything listens on
    127.0.0.1 alone.

    For example:
    ./shaketable up
    ./shaketable up --nodes 5 --groups 2 --name-servers 3
    ./shaketable up --mode sync-double-write

    Args:
        mode: How brokers replicate; dledger: each group has an elected leader, else one master
            and no replacement.
        nodes: Brokers of each group; dledger: 1, 3, 5 or 7, by default 3; the replicated modes:
            a master and its slaves, 2 to 5, by default 2; multi-master: 1.
        groups: Groups, over which topics are spread; default: 1, of multi-master 2.
        name_servers: Name servers; one that is alive suffices.
        folder: Where files and logs are kept; by default a new folder that is removed again.
    """
    nodes = NODES[mode][0] if nodes is None else nodes
    groups = GROUPS.get(mode, 1) if groups is None else groups
    if nodes not in NODES[mode]:
        expected = ", ".join(str(number) for number in sorted(NODES[mode]))
        raise UsageError(f"--nodes {nodes}: with --mode {mode} expected {expected}")
    if not 1 <= groups <= GROUPS_MAX:
        raise UsageError(f"--groups {groups}: expected 1 to {GROUPS_MAX}")
    if not 1 <= name_servers <= NAME_SERVERS_MAX:
        raise UsageError(f"--name-servers {name_servers}: expected 1 to {NAME_SERVERS_MAX}")
    with _folder(folder) as place:
        free = ports.find_free(ports_needed(nodes, groups, name_servers))
        try:
            site = lay_out(place, mode, nodes, groups, name_servers, free)
        except OSError as error:
            raise HarnessError(f"cannot write into {place}: {error.strerror or error}") from error
        return trio.run(
            _keep_up, site, place, WRITABLE_ROLE.get(mode, "master"), strict_exception_groups=True
        )


@contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    """Yield the given folder, created if missing; without one, a folder that is removed later."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix=scratch_prefix("up")) as name:
            yield Path(name)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--folder {folder}: cannot be made: {error.strerror or error}") from error
    if any(folder.iterdir()):
        raise UsageError(f"--folder {folder}: holds something already; name an empty one")
    yield folder.resolve()


async def _keep_up(site: Site, folder: Path, role: str) -> int:
    """Run all servers until a signal; return the exit code. `role` accepts a group's messages."""
    start_ns = monotonic_ns()
    running: list[NodeProcess] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        try:
            for server in site.servers:
                process = _process(server, start_ns)
                process.start()
                running.append(process)
            async with trio.open_nursery() as nursery:
                for process in running:
                    nursery.start_soon(_report_exit, process)
                nursery.start_soon(_report_leaders, site, folder, role)
                async for _ in signals:
                    break
                nursery.cancel_scope.cancel()
            output.out.print("\nstopping")
        finally:
            with trio.CancelScope(shield=True):
                failed = await _stop(running)
    if failed:
        raise HarnessError(f"{', '.join(failed)} had to be killed; their logs: {folder}")
    output.out.print("stopped; nothing is left running")
    return ExitCode.VALID


def _process(server: SiteServer, start_ns: int) -> NodeProcess:
    log = server.directory / LOG
    return NodeProcess(server.name, server.launch, server.directory, log, start_ns)


async def _report_exit(process: NodeProcess) -> None:
    """Print that a server exited by itself."""
    ended = await process.wait()
    output.out.print(escape(str(ended)))


async def _report_leaders(site: Site, folder: Path, role: str) -> None:
    """Print all addresses once each group has its leader, and then every change of a leader."""
    groups = sorted({server.group for server in site.brokers})
    servers = _count(len(site.name_servers), "name server")
    output.out.print(f"starting {servers} and {_count(len(site.brokers), 'broker')}")
    known: Mapping[str, str] = {}
    with trio.move_on_after(READY_SECONDS_MAX):
        while len(known) < len(groups):
            known = await site.leaders()
            await trio.sleep(POLL_SECONDS)
    if len(known) < len(groups):
        lacking = ", ".join(sorted(set(groups) - set(known)))
        output.out.print(f"no {role} of {lacking} after {READY_SECONDS_MAX:g} s; logs: {folder}")
    _print_site(site, known, folder, role)
    while True:
        await trio.sleep(POLL_SECONDS)
        now = await site.leaders()
        for group in groups:
            if now.get(group) != known.get(group):
                who = now.get(group)
                now_leads = f"{who} leads" if role == "leader" else f"{who} is back"
                output.out.print(f"{group}: {f'no {role}' if who is None else now_leads}")
        known = now


def _print_site(site: Site, leaders: Mapping[str, str], folder: Path, role: str) -> None:
    out = output.out
    out.print()
    for server in site.name_servers:
        out.print(f"  {server.name:<16} {server.address}", soft_wrap=True)
    for server in site.brokers:
        leads = f"  {role}" if leaders.get(server.group) == server.name else ""
        out.print(f"  {server.name:<16} {server.address}{leads}", soft_wrap=True)
    first = site.addresses
    out.print("\nconnect with RocketMQ's clients:", soft_wrap=True)
    out.print(f'  Java     producer.setNamesrvAddr("{first}");', soft_wrap=True)
    out.print(f"  mqadmin  clusterList -n '{first}'", soft_wrap=True)
    out.print(f'  Python   shaketable.system.client.Producer("{first}")', soft_wrap=True)
    out.print(f"\nfiles and logs: {folder}\nCtrl-C stops everything", soft_wrap=True)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


async def _stop(running: list[NodeProcess]) -> list[str]:
    """Stop all servers, brokers first; return those that had to be killed."""
    killed: list[str] = []

    async def stop(process: NodeProcess) -> None:
        if process.is_running:
            await process.stop(STOP_GRACE_S)
            if (await process.wait()).returncode == -signal.SIGKILL:
                killed.append(process.node)

    brokers = [process for process in running if process.node.startswith("broker-")]
    for some in (brokers, [process for process in running if process not in brokers]):
        async with trio.open_nursery() as nursery:
            for process in some:
                nursery.start_soon(stop, process)
    return killed

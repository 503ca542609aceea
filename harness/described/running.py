"""Targets whose nodes are elsewhere: a group that runs already, or nodes on other machines.

Of a group that runs already, commands act on its nodes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import msgspec
import trio

from shaketable.harness import run_markers
from shaketable.harness.contracts.abilities import Hosts
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Address, Launch, NodeLayout
from shaketable.harness.described.client import FunctionClient
from shaketable.harness.described.target import USUAL_FAULTS, DescribedTarget, TargetOnVolatileDisk
from shaketable.harness.described.target_file import ADDRESS, OF_LINKS, TargetTable, filled, read
from shaketable.harness.untrusted_text import printable

COMMAND_TIMEOUT_S: Final = 10.0
TERM_S: Final = 1.0
"""A late command gets SIGTERM, and SIGKILL so much later."""
COMMANDS_AT_ONCE_MAX: Final = 16
OUTPUT_BYTES_MAX: Final = 1 << 16
ERROR_CHARS_MAX: Final = 200
OF_CAPABILITIES: Final[Mapping[Capability, tuple[str, ...]]] = {
    Capability.KILL: ("kill", "start"),
    Capability.STOP: ("stop", "start"),
    Capability.PAUSE: ("pause", "resume"),
    Capability.CUT: ("cut", "heal", "dropped"),
}
"""The commands that a capability needs."""


class RunningTarget(DescribedTarget):
    """A target of `shaketable.toml` with `nodes`; see `contracts.abilities.RunsAlready`."""

    @cached_property
    def _at_once(self) -> trio.CapacityLimiter:
        return trio.CapacityLimiter(COMMANDS_AT_ONCE_MAX)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where clients reach its nodes."""
        return tuple(_address(node) for node in self._table.nodes)

    @property
    def default_faults(self) -> tuple[str, ...]:
        """Return kill, pause and partition, as far as there are commands for them."""
        return tuple(
            fault for fault, needed in USUAL_FAULTS.items() if self.why_not(needed) is None
        )

    def prepare(self, layout: NodeLayout) -> Launch:
        """Raise HarnessError: its nodes run already."""
        raise HarnessError(f"{self.name} runs already: {layout.node} is not started")

    def why_not(self, capability: Capability) -> str | None:
        """Return why its nodes cannot be given what a capability needs, or None."""
        needed = OF_CAPABILITIES.get(capability)
        if needed is None:
            return "its nodes run already, and no command of shaketable.toml is for this"
        if self._table.commands.of(needed[0]):
            return None
        names = ", ".join(needed)
        return f"[targets.{self.name}.commands] of {self.file.name} does not have {names}"

    async def act(self, action: str, node: str, to: str = "") -> str:
        """Run the command for an action on a node, or on the link from it to another.

        Returns what it printed. Raises HarnessError if it fails or does not end in time.
        """
        values = {"here": str(self.file.parent)} | (
            {
                "from": node,
                "from_host": self._at(node).host,
                "to": to,
                "to_host": self._at(to).host,
            }
            if action in OF_LINKS
            else self._of_node(node)
        )
        argv = [filled(word, values) for word in self._table.commands.of(action)]
        what = f"command {action} of {node}" + (f" to {to}" if to else "")
        with trio.move_on_after(COMMAND_TIMEOUT_S):
            async with self._at_once:
                return await self._output(argv, what)
        raise HarnessError(f"{what}: no end within {COMMAND_TIMEOUT_S:g} s")

    def client_of_run(
        self, addresses: Mapping[str, Address], timeout_s: float, run: str
    ) -> FunctionClient:
        """Return a client that uses keys of this run alone: the group has those of earlier runs."""
        client = self.client(addresses, timeout_s)
        client.key_prefix = f"{run}-"
        return client

    async def _output(self, argv: list[str], what: str) -> str:
        # Into files: a server that the command starts may keep its output open. In a session of
        # its own: Ctrl-C must end neither such a server nor a command that undoes something.
        environment = {
            name: text for name, text in os.environ.items() if name != run_markers.VARIABLE
        }
        with TemporaryFile() as output, TemporaryFile() as errors:
            try:
                process = await trio.lowlevel.open_process(
                    argv, stdin=DEVNULL, stdout=output, stderr=errors, cwd=self.file.parent,
                    env=environment, start_new_session=True,
                )  # fmt: skip
            except (OSError, ValueError) as error:  # ValueError: there is a null character
                why = getattr(error, "strerror", None) or error
                raise HarnessError(f"{what}: {printable(argv[0])}: {why}") from error
            status = await _ended(process)
            printed, said = _text(output), _text(errors)
        if status:
            last = printable((said or printed).strip().rpartition("\n")[2][:ERROR_CHARS_MAX])
            raise HarnessError(f"{what}: exit code {status}" + (last and f": {last}"))
        return printed

    def _at(self, node: str) -> Address:
        return self.addresses[int(node.removeprefix("n"))]

    def _of_node(self, node: str) -> dict[str, str]:
        at = self._at(node)
        return {
            "id": node,
            "number": node.removeprefix("n"),
            "client": str(at),
            "client_host": at.host,
            "client_port": str(at.port),
        }


def targets_of(file: Path) -> tuple[DescribedTarget, ...]:
    """Return the targets that a file describes. Raises UsageError if it is broken."""
    return tuple(_kind(table)(name, table, file) for name, table in read(file).items())


def _kind(table: TargetTable) -> type[DescribedTarget]:
    if table.hosts is not None:
        return TargetOnHosts
    if table.disk:
        return TargetOnVolatileDisk
    return RunningTarget if table.nodes else DescribedTarget


async def _ended(process: trio.Process) -> int:
    """Wait for a command; end it if cancelled, as far as that is allowed: sudo's is root's."""
    try:
        return await process.wait()
    except trio.Cancelled:
        for end in (process.terminate, process.kill):
            with suppress(OSError):
                end()
            with trio.move_on_after(TERM_S, shield=True):
                await process.wait()
                break
        raise


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(OUTPUT_BYTES_MAX).decode(errors="replace")


def _address(node: str) -> Address:
    found = ADDRESS.fullmatch(node)
    assert found is not None, "checked when the file was read"
    return Address(found[1] or found[2], int(found[3]))


# Nodes on other machines.

CAPABILITIES: Final = frozenset(
    {Capability.KILL, Capability.STOP, Capability.PAUSE, Capability.CUT, Capability.POWER}
)
"""What can be done to nodes on other machines, unless their hosts lack something."""


class TargetOnHosts(DescribedTarget):
    """A target of `shaketable.toml` with `hosts`; see `contracts.abilities.RunsOnHosts`."""

    def __init__(self, name: str, table: TargetTable, file: Path) -> None:
        super().__init__(name, table, file)
        self.lacks: dict[Capability, str] = {}

    @cached_property
    def hosts(self) -> Hosts:
        """Return the machines."""
        hosts = self._table.hosts
        assert hosts is not None, "it is what makes a table a target of this kind"
        here = {"here": str(self.file.parent)}
        return msgspec.structs.replace(
            hosts, options=tuple(filled(option, here) for option in hosts.options)
        )

    def prepare(self, layout: NodeLayout) -> Launch:
        """Say how to start a node on its host; touch nothing here."""
        return self._launch(layout)

    def why_not(self, capability: Capability) -> str | None:
        """Return why its nodes cannot be given what a capability needs, or None."""
        if capability not in CAPABILITIES:
            return "nothing is done for this by ssh"
        return self.lacks.get(capability)

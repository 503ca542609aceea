"""The system's programs on simulated machines, from their command lines and files.

`python -m shaketable.system.node -c broker.conf` is a node with that configuration, and `python -m
shaketable.system.node.name_server` a name server; both run the same code as real processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import trio

from shaketable.system.invariants.routes import watched
from shaketable.system.node import process
from shaketable.system.node.config import NodeConfig, parse
from shaketable.system.node.machine import Clock
from shaketable.system.node.name_server import NameServerNode
from shaketable.system.node.process import planted
from shaketable.system.sim.member import QUEUE_FILE_BYTES
from shaketable.system.sim.trio_world.clocks import CURRENT, HostClock, Process, ProcessClock
from shaketable.system.sim.trio_world.host import first_of

if TYPE_CHECKING:
    from shaketable.system.sim.trio_world.world import TrioWorld

CONF = "broker.conf"
NAME_SERVER = "shaketable.system.node.name_server"
SMALL_FILES: Mapping[str, int] = {
    "mappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 1000,
    "haTransferBatchSize": 200,
}
"""Keys added to each node's configuration: a simulated disk keeps its files in memory.

A master also sends so little at once that messages, and the blanks between files, arrive in pieces.
"""


def node_config(files: Mapping[str, str]) -> NodeConfig:
    """Return the configuration of a node that is started with these files."""
    conf = files[CONF] + "".join(f"{key}={value}\n" for key, value in SMALL_FILES.items())
    return parse(conf)


def exit_status(error: BaseException) -> int:
    """Return the exit status of the process of a node that raised this error, as a real one's."""
    return (
        process.EXIT_OTHER
        if isinstance(error, process.RESOURCE_ERRORS)
        else process.exit_status(error)
    )


def reason_of_end(error: BaseException) -> str:
    """Return one line that says why a node ended, as a real one's last line of output."""
    return process.reason(error)


class SimulatedNameServer:
    """A name server on a machine of its own, incarnation after incarnation.

    Attributes:
        incarnation: number of starts.
        failure: the error that ended it, if it ended by itself.
    """

    def __init__(self, world: TrioWorld, name: str, argv: Sequence[str]) -> None:
        """Create it from its command line; the address in `argv` is the machine's."""
        given = dict(pairwise(argv))
        assert given["-m"] == NAME_SERVER, "it is a name server's command"
        self.name = name
        self.host, self.port = given["--host"], int(given["--port"])
        registry = planted(given.get("--mutant", "")).registry
        self._registry_type = watched(registry, lambda found: world.violated(found, name))
        self.incarnation = 0
        self.failure: BaseException | None = None
        self._scope = trio.CancelScope()
        self._world = world
        self._clock = HostClock(world.clock)
        self._process: Process | None = None
        world.network.add_host(name, self.host)

    @property
    def is_up(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.is_alive

    @property
    def is_paused(self) -> bool:
        """Whether its process is paused."""
        return self._process is not None and self._process.is_paused

    def start(self) -> None:
        """Start it, if it does not run, with an empty registry. It ends with the world."""
        if self.is_up:
            return
        self.incarnation += 1
        process = self._process = Process(self.name, self.host, self.incarnation)
        scope = self._scope = trio.CancelScope()
        self._world.spawn(self._run, process, scope)

    def kill(self) -> None:
        """Kill its process; its machine stays, and closes the connections."""
        assert self._process is not None
        self._world.network.end_process(self._process, loses_power=False)
        self._process.end()
        self._scope.cancel()

    def pause(self) -> None:
        """Pause its process (SIGSTOP)."""
        if self._process is not None:
            self._process.is_paused = True

    def resume(self) -> None:
        """Resume its process with all that came meanwhile (SIGCONT)."""
        if self.is_paused and self._process is not None:
            self._process.resume()

    async def _run(self, process: Process, scope: trio.CancelScope) -> None:
        CURRENT.set(process)
        clock: Clock = ProcessClock(self._clock, process)
        error: BaseException | None = None
        try:
            with scope:  # within the try: it takes its own cancellation out of a group
                server = NameServerNode(
                    self.host, self.port, clock, registry_type=self._registry_type
                )
                await server.run()
        except* Exception as raised:
            error = first_of(raised)
        # An error of a process that was killed is ignored.
        if process.is_alive:
            self.failure = error
            self._world.network.end_process(process, loses_power=False)
            process.end()

"""The system's programs on simulated machines: what a command line and its files stand for.

`python -m shaketable.system.node -c broker.conf` is a node whose configuration the file says, and
`python -m shaketable.system.node.name_server` a name server; both are the ones that run as
processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import trio

from shaketable.system.node.clock import Clock
from shaketable.system.node.config import NodeConfig, parse
from shaketable.system.node.name_server import NameServerNode
from shaketable.system.node.planting import planted
from shaketable.system.sim.member import QUEUE_FILE_BYTES
from shaketable.system.sim.rules.route_invariants import watched
from shaketable.system.sim.trio_world.host import first_of
from shaketable.system.sim.trio_world.host_clock import HostClock, ProcessClock
from shaketable.system.sim.trio_world.process import CURRENT, Process

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
"""Keys of each node's configuration: a simulated disk holds its files in memory.

And a master sends so little at once that messages, and the blanks between files, come in pieces.
"""


def node_config(files: Mapping[str, str]) -> NodeConfig:
    """Return how the node is configured that is started with these files."""
    conf = files[CONF] + "".join(f"{key}={value}\n" for key, value in SMALL_FILES.items())
    return parse(conf)


class SimulatedNameServer:
    """A name server on a machine of its own, incarnation after incarnation.

    Attributes:
        incarnation: how often it was started.
        failure: what it ended of, if it ended by itself.
    """

    def __init__(self, world: TrioWorld, name: str, argv: Sequence[str]) -> None:
        """`argv` is the command; the address that it names is the machine's."""
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
        """Whether its process stands still."""
        return self._process is not None and self._process.is_paused

    def start(self) -> None:
        """Start it, if it does not run, without anything that it knew. It ends with the world."""
        if self.is_up:
            return
        self.incarnation += 1
        process = self._process = Process(self.name, self.host, self.incarnation)
        scope = self._scope = trio.CancelScope()
        self._world.spawn(self._run, process, scope)

    def kill(self) -> None:
        """End its process at once; its machine stays, and closes the connections."""
        assert self._process is not None
        self._world.network.end_process(self._process, loses_power=False)
        self._process.end()
        self._scope.cancel()

    def pause(self) -> None:
        """Let its process stand still (SIGSTOP)."""
        if self._process is not None:
            self._process.is_paused = True

    def resume(self) -> None:
        """Let it go on with all that came meanwhile (SIGCONT)."""
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
        # What a process that is gone still says concerns nobody.
        if process.is_alive:
            self.failure = error
            self._world.network.end_process(process, loses_power=False)
            process.end()

"""The system's programs on simulated machines: what a command line and its files stand for.

`python -m system.node -c broker.conf` is a node whose configuration the file says, and
`python -m system.node.name_server` a name server; both are the ones that run as processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import trio

from system.node.clock import Clock
from system.node.config import NodeConfig, parse
from system.node.name_server import NameServerNode
from system.node.planting import planted
from system.sim.member import QUEUE_FILE_BYTES
from system.sim.route_invariants import watched
from system.sim.trio_world.host import first_of
from system.sim.trio_world.host_clock import HostClock, ProcessClock
from system.sim.trio_world.process import CURRENT, Process

if TYPE_CHECKING:
    from system.sim.trio_world.world import TrioWorld

CONF = "broker.conf"
NAME_SERVER = "system.node.name_server"
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
    """A name server on a machine of its own. Nothing strikes it; it may end by itself.

    Attributes:
        failure: what it ended of.
    """

    def __init__(self, world: TrioWorld, name: str, argv: Sequence[str]) -> None:
        """`argv` is the command; the address that it names is the machine's."""
        given = dict(pairwise(argv))
        assert given["-m"] == NAME_SERVER, "it is a name server's command"
        self.name = name
        self.host, self.port = given["--host"], int(given["--port"])
        registry = planted(given.get("--mutant", "")).registry
        self._registry_type = watched(registry, lambda found: world.violated(found, name))
        self.failure: BaseException | None = None
        self._world = world
        self._clock = HostClock(world.clock)
        self._process: Process | None = None
        world.network.add_host(name, self.host)

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.is_alive

    def start(self) -> None:
        """Start it. It ends with the world at the latest."""
        assert not self.is_running
        self._process = Process(self.name, self.host, 1)
        self._world.spawn(self._run, self._process)

    async def _run(self, process: Process) -> None:
        CURRENT.set(process)
        clock: Clock = ProcessClock(self._clock, process)
        try:
            async with trio.open_nursery() as nursery:
                server = NameServerNode(
                    self.host, self.port, clock, registry_type=self._registry_type
                )
                nursery.start_soon(server.run)
        except* Exception as raised:
            self.failure = first_of(raised)
        finally:
            process.end()

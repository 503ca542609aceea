"""The system's own programs: how to start a broker and a name server, in any world.

A world of processes runs the command. A simulated world takes the same command and configuration,
and runs what they name on a simulated machine (`system.sim.trio_world.programs`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from shaketable.harness.contracts.plugins import Address, Launch

CONF = "broker.conf"
"""File name of a broker's configuration."""


def broker(
    directory: Path, lines: Mapping[str, object], files: Mapping[str, str] | None = None
) -> Launch:
    """Return how to start a broker with these lines of configuration.

    Args:
        directory: the node's folder.
        lines: keys and values of broker.conf.
        files: other files of the folder, by name.
    """
    conf = "".join(f"{key}={value}\n" for key, value in lines.items())
    argv = (sys.executable, "-m", "shaketable.system.node", "-c", str(directory / CONF))
    return Launch(argv, files={CONF: conf, **(files or {})})


def name_server(address: Address, bug: str | None = None) -> Launch:
    """Return how to start a name server at `address`, with an optional planted bug."""
    argv = (
        "-m",
        "shaketable.system.node.name_server",
        "--host",
        address.host,
        "--port",
        str(address.port),
    )
    return Launch((sys.executable, *argv, *(() if bug is None else ("--mutant", bug))))

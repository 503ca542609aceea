"""The system's own programs: how a broker and a name server are started, in whatever world.

A world of processes runs the command; a simulated one takes the same command and configuration, and
runs what they name on a machine of its own (`system.sim.trio_world.programs`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from shaketable.harness.contracts.plugins import Address, Launch

CONF = "broker.conf"
"""What a broker's configuration is called in its folder."""


def broker(
    directory: Path, lines: Mapping[str, object], files: Mapping[str, str] | None = None
) -> Launch:
    """Say how to start a broker that has these lines of configuration.

    Args:
        directory: the node's folder.
        lines: keys of broker.conf, and their values.
        files: what else stands in the folder.
    """
    conf = "".join(f"{key}={value}\n" for key, value in lines.items())
    argv = (sys.executable, "-m", "shaketable.system.node", "-c", str(directory / CONF))
    return Launch(argv, files={CONF: conf, **(files or {})})


def name_server(address: Address, bug: str | None = None) -> Launch:
    """Say how to start a name server that listens there, perhaps with a planted bug."""
    argv = (
        "-m",
        "shaketable.system.node.name_server",
        "--host",
        address.host,
        "--port",
        str(address.port),
    )
    return Launch((sys.executable, *argv, *(() if bug is None else ("--mutant", bug))))

"""Apache's name server and broker as processes on loopback, with small files."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.foreign_java import Java, Program, servers

HOST = "127.0.0.1"
START_SECONDS_MAX = 90
SPREAD = 16
"""Ports that a broker may take around its own: two below (fast), one above (HA)."""


@dataclass(frozen=True)
class Apache:
    """What runs, and where."""

    name_server: str
    broker: Program | None
    broker_address: str
    store: Path = Path()


def start_name_server(java: Java) -> str:
    """Start Apache's name server; return its address."""
    port = _free_port()
    config = java.folder / f"namesrv-{port}.conf"
    config.write_text(f"listenPort={port}\nbindAddress={HOST}\n")
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    program = java.start(servers(), main, "-c", str(config))
    _until_listening(port, program)
    return f"{HOST}:{port}"


def start_broker(java: Java, name_server: str, *, name: str = "apache", more: str = "") -> Apache:
    """Start Apache's broker as a master of that name, registered with the name server."""
    port = _free_port()
    store = java.folder / f"store-{name}"
    config = java.folder / f"{name}.conf"
    config.write_text(
        f"brokerClusterName=DefaultCluster\nbrokerName={name}\nbrokerId=0\nbrokerIP1={HOST}\n"
        f"listenPort={port}\nnamesrvAddr={name_server}\nstorePathRootDir={store}\n"
        f"storePathCommitLog={store}/commitlog\nmappedFileSizeCommitLog=16777216\n"
        "mappedFileSizeConsumeQueue=600000\ntimerWheelEnable=false\n"
        f"sendMessageThreadPoolNums=4\n{more}"
    )
    main = "org.apache.rocketmq.broker.BrokerStartup"
    program = java.start(servers(), main, "-c", str(config), heap_mb=512)
    _until_listening(port, program)
    return Apache(name_server, program, f"{HOST}:{port}", store)


def _free_port() -> int:
    """Return a port with room around it."""
    while True:
        with socket.socket() as held:
            held.bind((HOST, 0))
            port = held.getsockname()[1]
        if port + SPREAD < 1 << 16 and all(_is_free(port + n) for n in (-2, 0, 1)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind((HOST, port))
        except OSError:
            return False
    return True


def _until_listening(port: int, program: Program) -> None:
    end = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < end:
        assert program.process.poll() is None, f"{program.name} ended: {program.lines[-5:]}"
        with socket.socket() as tried:
            if tried.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"{program.name} does not listen on {port}: {program.lines[-5:]}")

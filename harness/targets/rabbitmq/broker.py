"""Starts a node of the target rabbitmq: writes its configuration, and becomes its Erlang VM.

    broker.py INSTALLED ID CLIENT_HOST CLIENT_PORT PEER_HOST PEER_PORT MEMBERS DATA NAME=VALUE ...

It is run in the node's folder, and imports nothing of ours. Debian's scripts have absolute paths of
an installed system, so Erlang is called with the arguments that they would give, but for two: the
node finds its peers by a module of ours (shaketable_node.erl), and no process of it spins.

Source: rabbitmq-server's scripts rabbitmq-server and rabbitmq-env (3.10.8); Erlang's erl(1).
"""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path
from typing import Final

CONFIG: Final = Path("rabbitmq.conf")
MODULE: Final = Path(__file__).with_name("shaketable_node.erl")
LOOKUPS: Final = Path("inetrc")
LOOKUPS_TEXT: Final = '{lookup, [file]}.\n{host, {127,0,0,1}, ["localhost"]}.\n'
"""Names of listeners are looked up as a node starts: a network namespace may have no name server,
and then that takes ten seconds."""
HOST: Final = "localhost"
"""Of the nodes' names: where they are says the module."""
DISCOVERY: Final = "cluster_formation.classic_config"
SETTINGS: Final = {
    "cluster_formation.peer_discovery_backend": "classic_config",
    # The first node to start waits for others, which wait for its lock: five seconds by default.
    "cluster_formation.discovery_retry_limit": "2",
    "log.console": "true",
    "log.console.level": "info",
    "log.file": "false",
    # Clients in a network namespace come from an address of their own.
    "loopback_users": "none",
}
LOADED: Final = (
    '{{ok, Module, Binary}} = compile:file("{module}", [binary, report]),'
    '{{module, _}} = code:load_binary(Module, "{module}", Binary),'
    "Options = #{{name_domain => shortnames, net_ticktime => {tick_s}}},"
    "{{ok, _}} = net_kernel:start('{name}', Options)."
)
"""Before RabbitMQ boots, which finds that the node has its name and starts no epmd."""


def main(
    installed: str, node: str, client_host: str, client_port: str, peer_host: str,
    peer_port: str, members: str, data: str, *settings: str,
) -> None:  # fmt: skip
    """Write rabbitmq.conf and run Erlang in place of this process."""
    names = [member.partition("=")[0] for member in members.split(",")]
    nodes = {f"{DISCOVERY}.nodes.{n}": f"{name}@{HOST}" for n, name in enumerate(names, 1)}
    given = dict(setting.partition("=")[::2] for setting in settings)
    tick_s = given.pop("net_tick_s")
    listener = {"listeners.tcp.1": f"{client_host}:{client_port}"}
    lines = {**SETTINGS, **listener, **nodes, **given}
    CONFIG.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
    LOOKUPS.write_text(LOOKUPS_TEXT)
    is_new = not any(Path(data).glob("*"))
    erlang = Path(installed, "usr/lib/erlang")
    programs = _only(erlang, "erts-*/bin")
    home = _only(Path(installed, "usr/lib/rabbitmq/lib"), "rabbitmq_server-*")
    os.environ.update(environment(erlang, programs, home, f"{node}@{HOST}", data))
    address = ",".join(map(str, ipaddress.IPv4Address(peer_host).packed))
    argv = [
        "erl", "-noinput", "-boot", "start_sasl", "+W", "w",
        # Schedulers that wait for work sleep: several nodes share a machine of few cores.
        "+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none",
        "-start_epmd", "false", "-erl_epmd_port", peer_port, "-epmd_module", MODULE.stem,
        "-peers", members, "-setcookie", "shaketable",
        "-kernel", "inet_dist_use_interface", f"{{{address}}}",
        "-kernel", "prevent_overlapping_partitions", "false",
        "-syslog", "logger", "[]", "-syslog", "syslog_error_logger", "false",
        "-eval", LOADED.format(module=MODULE, name=f"{node}@{HOST}", tick_s=tick_s),
        "-s", "rabbit", "boot",
        "-s", MODULE.stem, "sync_when_joined" if is_new else "say_when_joined",
    ]  # fmt: skip
    os.execv(programs / "erlexec", argv)  # noqa: S606 - the node is this process


def environment(erlang: Path, programs: Path, home: Path, name: str, data: str) -> dict[str, str]:
    """Return the variables of Erlang and RabbitMQ: files are in the cache or the node's folder."""
    here = Path.cwd()
    return {
        "ROOTDIR": str(erlang), "BINDIR": str(programs), "EMU": "beam", "PROGNAME": "erl",
        "ERL_LIBS": str(home / "plugins"), "HOME": str(here), "LC_ALL": "C.UTF-8",
        "ERL_INETRC": str(here / LOOKUPS),
        "RABBITMQ_HOME": str(home), "RABBITMQ_NODENAME": name, "RABBITMQ_MNESIA_BASE": data,
        "RABBITMQ_LOG_BASE": str(here), "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONF_ENV_FILE": os.devnull, "RABBITMQ_CONFIG_FILE": str(here / CONFIG),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "enabled_plugins"),
        "RABBITMQ_PLUGINS_DIR": str(home / "plugins"),
        "RABBITMQ_FEATURE_FLAGS_FILE": str(Path(data, "feature_flags")),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(here / "config"),
        "RABBITMQ_PID_FILE": str(here / "rabbitmq.pid"),
    }  # fmt: skip


def _only(folder: Path, pattern: str) -> Path:
    """Return what there is one of. Exits with one line if it is not there."""
    found = sorted(folder.glob(pattern))
    if not found:
        sys.exit(f"no {folder / pattern}: install rabbitmq again")
    return found[0]


if __name__ == "__main__":
    main(*sys.argv[1:])

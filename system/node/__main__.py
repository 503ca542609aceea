"""`python -m shaketable.system.node -c broker.conf [KEY=VALUE ...]`: one member of a broker group.

A KEY=VALUE on the command line overrides the file's; the file may be left out.

Ends with 0 on SIGTERM or SIGINT, 1 when the operating system refused it a resource, 2 for a bad
configuration, a port or a store folder in use, 65 when the log is damaged, 70 when a rule of its
own is broken or its code met an unexpected error, 71 when a thread ran out of memory, 74 when the
disk failed (`system.node.process`). Each of these says why in its last line on standard error.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom

import trio

from shaketable.system.node.assembly import assemble
from shaketable.system.node.config import ConfigError, NodeConfig, load
from shaketable.system.node.connections.link import PortInUseError, end_on_signal, flatten
from shaketable.system.node.disks.real_disk import (
    DiskThreads,
    RealDisk,
    StoreInUseError,
    lock_store,
)
from shaketable.system.node.disks.volatile_disk import VolatileDisk
from shaketable.system.node.machine import Clock, Machine, SystemClock
from shaketable.system.node.node import Node
from shaketable.system.node.process import (
    EXIT_USAGE,
    INVARIANT_ERRORS,
    client_limit,
    exit_status,
    exit_when_out_of_memory,
    is_unexpected,
    raise_open_file_limit,
    reason,
    tune_malloc,
)
from shaketable.system.node.steered.steering import Steering
from shaketable.system.raft.protocol import InvariantError
from shaketable.system.store.disk import Disk, StoreError

SWITCH_INTERVAL_S = 0.001
"""How long a thread that saves a checkpoint may hold the interpreter lock while the node's thread
waits for it. Python's default of 5 ms would be added to every reply."""

log = logging.getLogger("shaketable.node")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a node until it is stopped by a signal or an error; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m shaketable.system.node", description=__doc__)
    parser.add_argument("-c", "--config", type=Path, help="broker.conf to read")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="overrides the file's")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.config is None and not arguments.settings:
        parser.error("nothing is configured: give -c broker.conf, or settings KEY=VALUE")
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d level=%(levelname)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    try:
        config = _within_file_limit(load(arguments.config, arguments.settings))
        lock_store(config.store_root)
        steering = _steering(config)
        node = assemble(config, _machine(config, steering))
    except (ConfigError, StoreInUseError) as error:
        return _fail(EXIT_USAGE, error)
    except (StoreError, OSError, InvariantError, AssertionError) as error:
        return _fail(exit_status(error), error)
    except Exception as error:
        if not is_unexpected(error):
            raise
        traceback.print_exception(error)
        return _fail(exit_status(error), error)
    if config.unused:
        log.info("event=keys_without_meaning_yet keys=%s", ",".join(sorted(config.unused)))
    return _serve(node, steering)


def _serve(node: Node, steering: Steering | None) -> int:
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 50)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    tune_malloc()
    exit_when_out_of_memory()
    code = 0
    try:
        trio.run(_run, node, steering)
    except* PortInUseError as group:
        code = _fail(EXIT_USAGE, next(iter(flatten(group))))
    except* (StoreError, InvariantError, AssertionError) as group:
        # Report a broken invariant rather than a disk error: it may be the cause, never the effect.
        first = min(flatten(group), key=lambda error: not isinstance(error, INVARIANT_ERRORS))
        code = _fail(exit_status(first), first)
    except* Exception as group:
        # Print Python's traceback first: the last line must be the one-line reason.
        first = max(flatten(group), key=is_unexpected)
        if code or not is_unexpected(first):
            raise
        traceback.print_exception(group)
        code = _fail(exit_status(first), first)
    return code


async def _run(node: Node, steering: Steering | None) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_on_signal, node.request_shutdown, nursery.cancel_scope, log)
        if steering is not None:
            nursery.start_soon(steering.steer)
        await node.run()
        nursery.cancel_scope.cancel()
    await node.stop()


def _within_file_limit(config: NodeConfig) -> NodeConfig:
    """Limit client connections so that enough file descriptors remain for the store."""
    open_files = raise_open_file_limit()
    clients_max = client_limit(open_files, config.client_connections_max)
    if clients_max < config.client_connections_max:
        log.warning("event=few_open_files limit=%d clients_max=%d", open_files, clients_max)
    return replace(config, client_connections_max=clients_max)


def _steering(config: NodeConfig) -> Steering | None:
    """Start following the orders in the steering folder, if set. Raises ConfigError, OSError."""
    if config.steering is None:
        return None
    try:
        steering = Steering(config.steering)
    except ValueError as error:
        raise ConfigError(f"shaketableSteering {config.steering}: {error}") from None
    steering.start()
    return steering


def _machine(config: NodeConfig, steering: Steering | None) -> Machine:
    on_unsynced = None if steering is None else steering.set_unsynced
    real = RealDisk(_log_folder(config) if config.ack_policy == "fsync" else None)
    volatile = VolatileDisk(real, on_unsynced) if config.disk == "volatile" else None
    disk: Disk = volatile or real
    clock: Clock = SystemClock()
    if steering is not None:
        disk, clock = steering.disk(disk), steering.clock

    def rng(purpose: str) -> Random:
        """Return a generator, seeded if the configuration has a seed, so that tests repeat."""
        return Random(f"{config.seed}/{purpose}") if config.seed else SystemRandom()

    on_message = None if steering is None else steering.on_message
    machine = Machine(disk, clock, rng, DiskThreads(), on_message=on_message)
    return machine if volatile is None else replace(machine, unsynced=volatile.unsynced_from)


def _log_folder(config: NodeConfig) -> str:
    """Return the folder that holds the log's data files."""
    if config.master_slave is not None:
        return str(config.master_slave.log_folder)
    return f"{config.store_root}/dledger-{config.self_id}/data"


def _fail(code: int, error: BaseException) -> int:
    """Log the reason as the last line and return `code`."""
    if isinstance(error, AssertionError):
        traceback.print_exception(error)
    log.error("event=stopped error=%s", reason(error))
    return code


if __name__ == "__main__":
    sys.exit(main())

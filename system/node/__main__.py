"""`python -m system.node -c broker.conf`: one member of a broker group.

Ends with 0 on SIGTERM or SIGINT, 2 for a bad configuration or a port in use, 70 when an
invariant of the protocol is broken, 74 when the disk failed or the log is damaged. Each
of these says why in one line on standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random, SystemRandom

import trio

from system import mutants
from system.broker.broker import Broker
from system.broker.limits import BrokerConfig
from system.node.clock import SystemClock
from system.node.config import ConfigError, NodeConfig, load
from system.node.node import Node, PortInUseError, flat
from system.node.real_disk import RealDisk
from system.node.volatile_disk import VolatileDisk
from system.raft.core import RaftCore
from system.raft.log_view import LogView
from system.raft.protocol import InvariantError
from system.store.commit_log import CommitLog
from system.store.disk import Disk, StoreError
from system.store.message import host_bytes

EXIT_USAGE = 2
EXIT_INVARIANT = 70
EXIT_DISK = 74

log = logging.getLogger("shaketable.node")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a node until it is told to stop; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m system.node", description=__doc__)
    parser.add_argument("-c", "--config", type=Path, required=True, help="broker.conf to read")
    arguments = parser.parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d level=%(levelname)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    try:
        config = load(arguments.config)
        commit_log = _open_log(config)
        broker = _broker(config, commit_log)
    except ConfigError as error:
        return _fail(EXIT_USAGE, error)
    except StoreError as error:
        return _fail(EXIT_DISK, error)
    except InvariantError as error:
        return _fail(EXIT_INVARIANT, error)
    if config.unused:
        log.info("event=keys_without_meaning_yet keys=%s", ",".join(sorted(config.unused)))
    return _serve(config, broker, commit_log)


def _serve(config: NodeConfig, broker: Broker, commit_log: CommitLog) -> int:
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 50)
    code = 0
    try:
        trio.run(_run, Node(config, broker, commit_log, SystemClock()))
        commit_log.save_checkpoint(broker.core.ledger.checkpoint_index)
        commit_log.advance_mark()
        commit_log.close()
    except* PortInUseError as group:
        code = _fail(EXIT_USAGE, next(iter(flat(group))))
    except* StoreError as group:
        code = _fail(EXIT_DISK, next(iter(flat(group))))
    except* InvariantError as group:
        code = _fail(EXIT_INVARIANT, next(iter(flat(group))))
    return code


async def _run(node: Node) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
        await node.run()


async def _stop_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("event=stopping signal=%s", signal.Signals(number).name)
            scope.cancel()
            return


def _open_log(config: NodeConfig) -> CommitLog:
    disk: Disk = VolatileDisk(RealDisk()) if config.disk == "volatile" else RealDisk()
    commit_log = CommitLog.open(
        disk,
        str(config.store_root),
        config.self_id,
        config.data_file_bytes,
        config.index_file_bytes,
    )
    log.info(
        "event=recovered end_index=%d term=%d voted_for=%s torn_bytes=%d committed_index=%d",
        commit_log.end.index,
        commit_log.state.term,
        commit_log.state.voted_for or "-",
        commit_log.torn_bytes,
        commit_log.committed_index,
    )
    return commit_log


def _broker(config: NodeConfig, commit_log: CommitLog) -> Broker:
    core_type = RaftCore
    if config.mutant:
        with contextlib.suppress(KeyError):
            core_type = mutants.load(config.mutant).core
        if core_type is RaftCore:
            raise ConfigError(f"no mutant {config.mutant}; there are {', '.join(mutants.names())}")
        log.warning("event=mutant name=%s", config.mutant)
    view = LogView(
        commit_log,
        commit_log.spans,
        commit_log.end.index,
        commit_log.end.position,
    )
    core = core_type(
        config.self_id,
        [peer for peer in config.peers if peer != config.self_id],
        view,
        term=commit_log.state.term,
        voted_for=commit_log.state.voted_for,
        uniform_ms=_dice(config, commit_log).uniform,
        now_ms=SystemClock().now_ms(),
    )
    limits = BrokerConfig(
        data_file_bytes=config.data_file_bytes,
        store_host=host_bytes(config.host, config.listen_port),
    )
    return Broker(core, limits, applied_to=commit_log.committed_index)


def _dice(config: NodeConfig, commit_log: CommitLog) -> Random:
    """Seeded where the configuration has a seed, and other draws in each incarnation."""
    if not config.seed:
        return SystemRandom()
    return Random(f"{config.seed}/{config.self_id}/{commit_log.state}/{commit_log.end.index}")


def _fail(code: int, error: BaseException) -> int:
    log.error("event=stopped error=%s", error)
    return code


if __name__ == "__main__":
    sys.exit(main())

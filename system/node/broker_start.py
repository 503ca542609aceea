"""The initial state of a node's broker and core, as data, and the one place that builds them.

A node takes the state from its disk, a replay takes it from a recording; the code is the same. What
the broker reads from disk while it runs is not part of that state and goes through `Readers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.broker_state import ranges_of
from shaketable.system.broker.core import Dispatch
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.mode import DLEDGER
from shaketable.system.mutants import Mutant
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.machine import Machine
from shaketable.system.raft.ledger import LogView
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import EntryReader, LogEnd, RaftConfig, Snapshot
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint, CheckpointFiles
from shaketable.system.store.consume_queue_files import Queue
from shaketable.system.store.key_index import Sizes
from shaketable.system.store.message import host_bytes

UniformMs = Callable[[float, float], float]
"""Returns a random number between two bounds, in milliseconds."""


class BrokerStart(msgspec.Struct, frozen=True, kw_only=True):
    """The initial state of a group member. Times in milliseconds of its own clock."""

    member: str
    raft: RaftConfig
    limits: BrokerConfig
    bootstrap: Membership
    memberships: tuple[tuple[int, Membership], ...]
    snapshot: Snapshot | None
    term: int
    voted_for: str | None
    spans: tuple[tuple[int, int], ...]
    begin: LogEnd
    end_index: int
    end_position: int
    applied_to: int
    checkpoint: BrokerCheckpoint | None
    is_key_indexed: bool
    now_ms: float
    mutant: str = ""
    to_migrate: tuple[bytes, ...] = ()


class UnitReading(Protocol):
    """Reads units of consume queues (`system.broker.consume_queue.UnitReader`)."""

    def read_units(self, queue: Queue, offset: int, count: int) -> bytes:
        """Return `count` encoded units from `offset` on. Raises StoreError."""
        ...


class KeyReading(Protocol):
    """Finds messages by key (`system.broker.reading.key_items.KeyReader`)."""

    def candidates(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return positions of messages that may have the key, by hash. Raises StoreError."""
        ...


@dataclass(frozen=True, slots=True)
class Readers:
    """What the broker and its core read from disk while they run."""

    entries: EntryReader
    units: UnitReading
    keys: KeyReading


def build_broker(
    start: BrokerStart,
    parts: Mutant,
    readers: Readers,
    uniform_ms: UniformMs,
    plain_log: Callable[[], Iterable[Dispatch]] | None = None,
) -> Broker:
    """Build the core and the broker around it. Raises StoreError or InvariantError."""
    view = LogView(
        readers.entries,
        start.spans,
        start.end_index,
        start.end_position,
        start.raft.tail_bytes_max,
        start=start.begin,
    )
    core = parts.core(
        start.member,
        (),
        view,
        term=start.term,
        voted_for=start.voted_for,
        uniform_ms=uniform_ms,
        now_ms=start.now_ms,
        config=start.raft,
        membership=start.bootstrap,
        memberships=start.memberships,
        snapshot=start.snapshot,
    )
    return parts.broker(
        core,
        start.limits,
        applied_to=start.applied_to,
        checkpoint=start.checkpoint,
        reader=readers.units,
        key_reader=readers.keys if start.is_key_indexed else None,
        plain_log=plain_log,
        mode=replace(DLEDGER, to_migrate=start.to_migrate),
    )


# Limits and checkpoint files of any broker, from its configuration.

KEY_ITEMS_MAX = 100_000
"""How many messages with keys may wait for the next checkpoint; beyond that, applying waits."""


def limits_of(config: NodeConfig) -> BrokerConfig:
    """Return the broker's limits."""
    return BrokerConfig(
        data_file_bytes=config.data_file_bytes,
        store_host=host_bytes(config.host, config.listen_port),
        key_items_max=KEY_ITEMS_MAX if config.is_key_indexed else 0,
        pending_sends_max=config.pending_sends_max,
        expiry=config.expiry,
        slave_read_enable=config.slave_read_enable,
        long_polling=config.long_polling,
        short_polling_ms=float(config.short_polling_ms),
        delay_levels_ms=config.delay_levels_ms,
        auto_create_topics=config.auto_create_topics,
        queues_per_topic=config.default_topic_queues,
        topics_max=config.topics_max,
        group_members_max=config.group_members_max,
        properties=dict(config.properties),
    )


def checkpoint_files(config: NodeConfig, machine: Machine, folder: str) -> CheckpointFiles:
    """Return the broker's checkpoint files; `folder` is where their `appliedto` file is stored."""
    return CheckpointFiles(
        machine.disk,
        str(config.store_root),
        folder,
        ranges_of,
        queue_file_bytes=config.queue_file_bytes,
        key_sizes=Sizes(config.hash_slots, config.index_items_max),
    )

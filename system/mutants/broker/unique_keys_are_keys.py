"""A query for a unique key is answered as one for any key.

Messages that bear the text among their KEYS come as well: who looks for one is given others.

Source: RocketMQ's IndexService.buildKey, one index for UNIQ_KEY and KEYS, whose hits
QueryMessageProcessor did not compare with what was asked for
(https://github.com/apache/rocketmq/issues/3613).
"""

from __future__ import annotations

from dataclasses import replace

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.reading.queries import KeyQuery
from shaketable.system.broker.reading.reads import Read, Reads
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.remoting.command import Command


class _AnyKey(Reads):
    """Does not heed that a unique key is asked for."""

    def _read(self, connection: Connection, command: Command, now_ms: float) -> Read:
        read = super()._read(connection, command, now_ms)
        if isinstance(read.request, KeyQuery):
            return replace(read, request=replace(read.request, is_unique=False))
        return read


class UniqueKeysAreKeys(Broker):
    """A broker that answers queries so."""

    reads_type = _AnyKey


PLUGIN = Mutant(
    "unique-keys-are-keys", broker=UniqueKeysAreKeys, hunt=Hunt("queue-keys", ("transfer",))
)

"""The answer to a batch names the place of its first message for each of them.

Who looks a message up by its id finds another one, and sends that one back.

Source: https://github.com/apache/rocketmq/pull/2406 (DLedgerCommitLog: the position was not moved
on between the messages of a batch).
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.sends import Sends
from shaketable.system.mutants import Hunt, Mutant


class _OneId(Sends):
    """Does not move on."""

    def _told_ids(self, ids: list[bytes]) -> list[bytes]:
        return ids[:1] * len(ids)


class BatchHasOneId(Broker):
    """A broker that takes batches so."""

    sends_type = _OneId


PLUGIN = Mutant("batch-has-one-id", broker=BatchHasOneId, hunt=Hunt("queue-batches", ("transfer",)))

"""An offset that is set back is acknowledged, and the group goes on where it was.

Source: https://github.com/mxsm/rocketmq-rust/issues/9607 (a commit below the stored offset is
dropped, so that a reset has no effect); https://github.com/apache/rocketmq/issues/4206.
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.groups.group_requests import GroupRequests
from shaketable.system.broker.groups.offset_commits import OffsetCommits
from shaketable.system.mutants import Hunt, Mutant


class _NeverBack(OffsetCommits):
    """Puts the higher of what is known and what is said."""

    def _put(self, key: str, queue_id: int, offset: int, wall_ms: int) -> None:
        topic, _, group = key.rpartition("@")
        known = self.table.get(group, topic, queue_id)
        super()._put(key, queue_id, max(offset, known or 0), wall_ms)


class _Groups(GroupRequests):
    offsets_type = _NeverBack


class OffsetResetIgnored(Broker):
    """A broker that takes commits so."""

    groups_type = _Groups


PLUGIN = Mutant(
    "offset-reset-ignored", broker=OffsetResetIgnored, hunt=Hunt("queue-offsets", ("transfer",))
)

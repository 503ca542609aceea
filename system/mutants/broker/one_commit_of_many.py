"""Of the offsets that a group commits in several queues at once one is kept, all are acknowledged.

Source: https://github.com/apache/rocketmq/pull/1427 (two clients that commit different queues of
one group and topic make a map each, and one replaces the other's).
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.groups.group_requests import GroupRequests
from shaketable.system.broker.groups.offset_commits import OffsetCommits
from shaketable.system.mutants import Hunt, Mutant


class _OneOfAll(OffsetCommits):
    """Begins a new map for each commit of a turn."""

    def _put(self, key: str, queue_id: int, offset: int, wall_ms: int) -> None:
        self._turn.pop(key, None)
        super()._put(key, queue_id, offset, wall_ms)


class _Groups(GroupRequests):
    offsets_type = _OneOfAll


class OneCommitOfMany(Broker):
    """A broker that takes commits so."""

    groups_type = _Groups


PLUGIN = Mutant("one-commit-of-many", broker=OneCommitOfMany, hunt=Hunt("offsets", ("kill",)))

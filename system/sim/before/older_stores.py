"""What a run's members find on their disks: a log and a config/ from before the group.

What was there is there afterwards: every message at its offset, every topic, and where every
consumer group stood. Source: docs/upgrading.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shaketable.system.broker.event_log import body_bytes_max
from shaketable.system.broker.taken_over import bodies_of
from shaketable.system.sim.before.apache_log import ApacheLogs
from shaketable.system.sim.before.older_config import OlderConfig
from shaketable.system.sim.limits import broker_config
from shaketable.system.sim.violation import Violated
from shaketable.system.store.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shaketable.system.broker.broker import Broker
    from shaketable.system.sim.disk import SimDisk
    from shaketable.system.sim.draws import Draws
    from shaketable.system.sim.native_messages import NativeMessages, Queues
    from shaketable.system.sim.schedule import Settings


class OlderStores:
    """All of it, for the bootstrap members of one run.

    `committed_index` is the last entry that a majority had when the group was stopped, -1 where
    there was none.
    """

    def __init__(
        self,
        draws: Draws,
        settings: Settings,
        members: Sequence[str],
        native: NativeMessages,
        topic: bytes,
    ) -> None:
        self.config = OlderConfig(draws, is_there=settings.older_config)
        self._apache = ApacheLogs(
            draws, settings.apache_log, members, settings.data_file_bytes, topic
        )
        self.committed_index = self._apache.committed_index
        self._held = native.queues | self._apache.queues
        self._settings = settings
        self._members = frozenset(members)
        self._topic = topic

    def bring(self, disk: SimDisk, root: str, member: str) -> None:
        """Do what an operator does before a member's first start. Raises StoreError."""
        if member not in self._members:
            return
        self.config.write(disk, f"{root}/config")
        if self._settings.apache_log:
            sizes = self._settings.data_file_bytes, self._settings.index_file_bytes
            log = CommitLog.open(disk, root, member, *sizes)
            try:
                self._apache.import_into(log, disk, member)
            finally:
                log.close()

    def to_take_over(self, member: str) -> tuple[bytes, ...]:
        """Return the entries that a member which found the files has its group's log have."""
        if member not in self._members:
            return ()
        return bodies_of(self.config.state, body_bytes_max(broker_config(self._settings)))

    def newer(self, queues: Queues) -> list[bytes]:
        """Return the messages of the run's topic in `queues` that stand behind the older ones."""
        return [
            message
            for queue, messages in queues.items()
            if queue[0] == self._topic
            for message in messages[len(self._held.get(queue, ())) :]
        ]

    def check_serving(self, broker: Broker, name: str) -> None:
        """A member that had the files serves only once the tables hold what they say."""
        if name in self._members and broker.is_ready:
            self.config.check(broker, name)

    def check_kept(self, queues: Queues) -> None:
        """Raise Violated where something is missing of what was committed before the run."""
        for (topic, queue_id), held in self._held.items():
            if queues.get((topic, queue_id), [])[: len(held)] != held:
                of = f"{topic.decode()}/{queue_id}"
                raise Violated(
                    "older-log-stays", f"not all {len(held)} messages of {of} are there any more"
                )

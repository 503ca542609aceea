"""A pull that brings as many messages as it may says that the queue goes on one too far behind.

Whoever reads on from there never sees the message in between.

Source: our own, after "poll-skip" of jepsen.tests.kafka: nextBeginOffset counted, not looked up.
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.reading.pull import Pulled
from shaketable.system.broker.reading.reads import Read, Reads
from shaketable.system.mutants import Mutant
from shaketable.system.remoting.requests import PullMessage


class _OneTooFar(Reads):
    """Counts the message behind a full pull as delivered."""

    def _answer(self, read: Read, pulled: Pulled) -> None:
        asked = read.request
        if isinstance(asked, PullMessage) and 1 < asked.max_msg_nums <= len(pulled.places):
            pulled = pulled._replace(next_offset=pulled.next_offset + 1)
        super()._answer(read, pulled)


class FullPullSkipsOne(Broker):
    """A broker that answers pulls so."""

    reads_type = _OneTooFar


PLUGIN = Mutant("full-pull-skips-one", broker=FullPullSkipsOne)

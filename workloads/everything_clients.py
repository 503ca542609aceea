"""Everything that clients of a queue can do, at once.

Source: the workloads queue-* beside it.
"""

from __future__ import annotations

from shaketable.workloads.message_queue import QueueWorkload
from shaketable.workloads.queue_shape import BATCH_MAX, DELAYS_MS, HOLD_S, TAGS, Shape


class EverythingClients(QueueWorkload):
    """Delays, batches, tags, held polls, locks, resets, keys, misrequests: all at once."""

    name = "everything-clients"
    shape = Shape(
        delays_ms=DELAYS_MS,
        batch_max=BATCH_MAX,
        tags=TAGS,
        hold_s=HOLD_S,
        is_ordered=True,
        is_oneway=True,
        is_reset=True,
        deletes_topics=True,
        has_keys=True,
        has_misrequests=True,
    )


PLUGIN = EverythingClients()

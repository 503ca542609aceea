"""What simulated nodes write to their logs becomes part of the run's trace."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from system.sim.run_trace import Trace
from system.sim.trio_world.heap_clock import HeapClock
from system.sim.trio_world.process import CURRENT

_NODE_LOG = "shaketable.node"


class _TraceHandler(logging.Handler):
    def __init__(self, trace: Trace, clock: HeapClock) -> None:
        super().__init__()
        self._trace = trace
        self._clock = clock

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get(None)
        name = process.host if process is not None else "-"
        self._trace.line(self._clock.now_ms, name, f"log {record.getMessage()}")


@contextmanager
def node_log_to(trace: Trace, clock: HeapClock) -> Iterator[None]:
    """Send the nodes' log to the trace's lines, or nowhere; it is as it was afterwards."""
    log = logging.getLogger(_NODE_LOG)
    before = (log.level, log.propagate)
    handler = _TraceHandler(trace, clock)
    log.propagate = False
    if trace.write is None:
        log.setLevel(logging.CRITICAL + 1)
    else:
        log.setLevel(logging.INFO)
        log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before[1]
        log.setLevel(before[0])

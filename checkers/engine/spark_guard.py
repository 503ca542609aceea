"""Ends what a Spark session runs once the deadline of a check has passed."""

from __future__ import annotations

import logging
import secrets
import threading
from typing import Any

from shaketable.harness.plugins import CheckContext

GRACE_S = 0.4
"""How long after a deadline a job may go on: checkers end by themselves and tell what is open."""
STRIKE_AGAIN_S = 0.5
"""How soon a job that goes on all the same is cancelled again."""

_LOG = logging.getLogger(__name__)


class Guard:
    """Cancels what a session runs, inside `with`, once the deadline is GRACE_S ago."""

    def __init__(self, frames: Any, context: CheckContext) -> None:
        self.has_struck = False
        self._frames = frames
        self._context = context
        self._tag = f"shaketable-{secrets.token_hex(4)}"
        self._watch: threading.Thread | None = None
        self._is_over = threading.Event()

    def __enter__(self) -> None:
        """Start to watch."""
        deadline, clock = self._context.search.deadline_unix_s, self._context.clock_unix_s
        if deadline is None or clock is None:
            return
        self._frames.addTag(self._tag)
        self._is_over.clear()
        left_s = max(0.0, deadline - clock()) + GRACE_S
        self._watch = threading.Thread(target=self._strike, args=(left_s,), daemon=True)
        self._watch.start()

    def __exit__(self, *_raised: object) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._is_over.set()
            self._watch.join()
            self._watch = None
            self._frames.removeTag(self._tag)

    def _strike(self, after_s: float) -> None:
        """Interrupt until it is over: a job that is only just being made is not seen at first."""
        while not self._is_over.wait(after_s):
            self.has_struck = True
            try:
                if not self._frames.interruptTag(self._tag):
                    _cancel_all(self._frames)
            except Exception as error:  # it may have ended just now
                _LOG.debug("spark job not interrupted: error=%s", error)
            after_s = STRIKE_AGAIN_S


def _cancel_all(frames: Any) -> None:
    """Cancel every job of a session: the one that is watched may carry no tag, and runs alone."""
    if hasattr(frames, "_jsparkSession"):  # a driver of our own
        frames.sparkContext.cancelAllJobs()
    else:
        frames.interruptAll()

"""Record the operations of a test's clients, from any thread or task, and check them.

    history = Recorder()
    with history.call(process=0, f="write", value=3):
        client.write(3)
    with history.call(process=1, f="read") as call:
        call.ok(client.read())
    history.assert_linearizable("register")

It is the same for threads, and for tasks of asyncio and trio: nothing here waits.

Source: Jepsen's clients (an exception is `info` unless the operation certainly did not happen).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shaketable.harness.contracts.errors import DefiniteError

if TYPE_CHECKING:  # pytest loads this module at its start
    from shaketable.checkers.api import Event
    from shaketable.checkers.models.model import Model
    from shaketable.harness.contracts.verdict import Verdict

UNANSWERED = object()
"""Default for a call without an answer."""


class Recorder:
    """A history being recorded: events in the order in which they happened.

    `page` is where a failed check writes a page with the failing part, if given.
    """

    def __init__(
        self, clock_ns: Callable[[], int] = time.monotonic_ns, page: Path | None = None
    ) -> None:
        self.page = page
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._events: list[tuple[int, str, str, Any, str | int | None, int]] = []

    def __len__(self) -> int:
        return len(self._events)

    def call(
        self, process: int, f: str, value: Any = None, key: str | int | None = None
    ) -> RecordedCall:
        """Record an invoke and return it: a context manager around the client's call.

        Args:
            process: the client; it has one call at a time.
            f: the operation's name, as the model calls it.
            value: the argument: the value to write, `(old, new)` for a cas.
            key: the object, if there are several.
        """
        self.add(process, "invoke", f, value, key)
        return RecordedCall(self, process, f, value, key)

    def add(
        self, process: int, kind: str, f: str, value: Any = None, key: str | int | None = None
    ) -> None:
        """Record one event as it happens."""
        with self._lock:  # the order of the list is the order of its times
            self._events.append((process, kind, f, value, key, self._clock_ns()))

    def events(self) -> list[Event]:
        """Return all events so far."""
        from shaketable.checkers.api import Event  # noqa: PLC0415 - see the module's docstring

        with self._lock:
            recorded = list(self._events)
        return [
            Event(process, kind, f, value, key, time_ns)
            for process, kind, f, value, key, time_ns in recorded
        ]

    def check(self, model: str | Model | None = None, **how: Any) -> Verdict:
        """Check the recorded history; arguments as of `checkers.api.check`."""
        from shaketable.checkers.api import check  # noqa: PLC0415 - as above

        return check(self.events(), model, **how)

    def assert_linearizable(self, model: str | Model | None = None, **how: Any) -> Verdict:
        """Return the verdict if it is VALID and has at least one answered operation.

        Args:
            model: as for `checkers.api.check`.
            how: other arguments of `checkers.api.check`.

        Raises:
            NotLinearizableError: it is not; the message shows the failing part.
        """
        from shaketable.harness.testing.asserting import assert_linearizable  # noqa: PLC0415 - as above

        __tracebackhide__ = True  # pytest shows the test's own line

        return assert_linearizable(self.events(), model, page=self.page, **how)


class RecordedCall:
    """A call in progress: `ok`, `fail` or `info` ends it, at the latest the end of its `with`.

    Without one of them the end of `with` means ok without an answer. An exception leaves the
    outcome unknown, `DefiniteError` (it certainly did not happen) makes it fail; both propagate.
    """

    def __init__(
        self, history: Recorder, process: int, f: str, value: Any, key: str | int | None
    ) -> None:
        self._history = history
        self._process, self._f, self._key = process, f, key
        self._value = value
        self._is_over = False

    def ok(self, answer: Any = UNANSWERED) -> None:
        """End the call: it succeeded, with this answer."""
        __tracebackhide__ = True
        self._end("ok", self._value if answer is UNANSWERED else answer)

    def fail(self) -> None:
        """End the call: it certainly did not happen."""
        __tracebackhide__ = True
        self._end("fail", None)

    def info(self) -> None:
        """End the call with unknown outcome: it may have happened, or may happen later."""
        __tracebackhide__ = True
        self._end("info", None)

    def _end(self, kind: str, value: Any) -> None:
        __tracebackhide__ = True
        if self._is_over:
            raise RuntimeError(f"the {self._f} of process {self._process} has ended already")
        self._is_over = True
        self._history.add(self._process, kind, self._f, value, self._key)

    def __enter__(self) -> RecordedCall:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_over:
            return
        if error is None:
            self.ok()
        elif isinstance(error, DefiniteError):
            self.fail()
        else:
            self.info()

"""Record what clients and the nemesis do, as they do it, in one segment.

The invoke is written to the kernel before the operation is sent, so it survives a SIGKILL of the
worker: an operation that may have taken effect is always in the history.

Source: Jepsen's interpreter; jepsen.generator.interpreter for process ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Any

import msgspec

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history.run_folder import RunFolder, write_atomically
from shaketable.harness.history.segments import NEMESIS, Event, SegmentWriter

ERROR_CHARS_MAX = 500
"""Longer error texts are truncated to this many characters."""


def next_process(process: int, clients: int) -> int:
    """Return a client's process id after an `info` (Jepsen: process += concurrency)."""
    return process + clients


class Recorder:
    """Writes the events of one OS process to one segment, in time order.

    Args:
        path: the segment to create.
        start_ns: start of the run on CLOCK_MONOTONIC; recorded times count from it.
        clock_ns: the clock, for tests.

    Raises:
        HarnessError: the segment cannot be written.
    """

    def __init__(
        self, path: Path, start_ns: int, clock_ns: Callable[[], int] = monotonic_ns
    ) -> None:
        self._writer = SegmentWriter(path)
        self._start_ns = start_ns
        self._clock_ns = clock_ns
        self._last_ns = -1

    def invoke(
        self,
        process: int,
        f: str,
        key: str | None,
        *,
        value: int | None = None,
        offset: int | None = None,
        expected: int | None = None,
        request: str | None = None,
    ) -> None:
        """Record that `process` is about to do this. Call it before the operation is sent."""
        extra = None
        if request is not None:
            extra = msgspec.json.encode({"request": request}).decode()
        self._writer.write_one(
            Event(
                self._now_ns(),
                process,
                "invoke",
                f,
                key,
                value,
                None,
                offset,
                extra=extra,
                expected=expected,
            )
        )

    def complete(  # noqa: PLR0913 - an event has that many columns
        self,
        process: int,
        type: str,  # noqa: A002 - the event's column is named so
        f: str,
        key: str | None,
        *,
        output: int | Sequence[int] | Sequence[tuple[int, int]] | None = None,
        offset: int | None = None,
        error: str | None = None,
        node: str | None = None,
        attempts: Sequence[int] | None = None,
    ) -> None:
        """Record a completion: type ok, fail or info.

        `output` may be many: messages, (offset, value), or the elements of a set. `attempts`: how
        often each of the messages was delivered before.
        """
        text = None if error is None else _storable(error)
        extra = None
        if output is not None and not isinstance(output, int):
            fields: dict[str, Any] = {"output": output}
            if attempts is not None:
                fields["attempts"] = attempts
            extra = msgspec.json.encode(fields).decode()
            output = None
        self._writer.write_one(
            Event(self._now_ns(), process, type, f, key, None, output, offset, text, node, extra)
        )

    def nemesis(self, f: str, value: dict[str, Any]) -> None:
        """Record a nemesis event (info, process -1): at a fault's start and at its stop."""
        extra = msgspec.json.encode(value).decode()
        self._writer.write_one(Event(self._now_ns(), NEMESIS, "info", f, extra=extra))

    def recorded_ns(self) -> int:
        """Return a time before which nothing will be recorded any more: all that was is written.

        An event gets its time and is written in one go, so between two calls there is none that
        has its time and is not written.
        """
        return max(self._clock_ns() - self._start_ns, self._last_ns + 1)

    def close(self) -> int:
        """Write the closing record; return the number of events. Idempotent."""
        return self._writer.close()

    def _now_ns(self) -> int:
        """Return the time since the start, strictly increasing, so that order is time order."""
        self._last_ns = max(self._clock_ns() - self._start_ns, self._last_ns + 1)
        return self._last_ns


def _storable(text: str) -> str:
    """Truncate an error's text, and make it encodable."""
    return text[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode()


# The sizes of a running campaign's recordings, noted about twice a second.
#
# A killed harness leaves no event counts. The sizes noted last tell a recording that just ends with
# the kill from one that was truncated or lost afterwards.


def note(folder: RunFolder) -> None:
    """Write the sizes of all segments to recorded.json.

    Raises:
        HarnessError: it cannot be written.
    """
    sizes = {path.name: path.stat().st_size for path in sorted(folder.segments.glob("*.seg"))}
    write_atomically(folder.recorded_json, msgspec.json.encode(sizes))


def read(folder: RunFolder) -> dict[str, int] | None:
    """Return the sizes noted last, in bytes by file name; None if none were noted.

    Raises:
        HarnessError: they were noted, and cannot be read.
    """
    try:
        return msgspec.json.decode(folder.recorded_json.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise HarnessError(f"cannot read {folder.recorded_json}: {error}") from error

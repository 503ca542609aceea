"""The command `serve`: show a store in a browser on this machine."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

from cyclopts import Parameter

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.terminal import output

PORT_MAX: Final = 65_535
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


def serve(
    *,
    store: Annotated[Path, Parameter(metavar="FOLDER")] = Path("store"),
    port: Annotated[int, Parameter(metavar="PORT")] = 8080,
) -> int:
    """Show the runs of a store in a browser: search, reports, runs in progress, trends.

    Listens on 127.0.0.1 alone and changes nothing. Ctrl-C ends it.

    For example:
    ./shaketable serve
    ./shaketable serve --store store --port 0

    Args:
        store: Folder of the runs.
        port: Port to listen on; 0: a free one.
    """
    from shaketable.harness.serving.server import StoreServer  # noqa: PLC0415 - only where one is served

    if not 0 <= port <= PORT_MAX:
        raise UsageError(f"--port {port}: expected 0 to {PORT_MAX}")
    if not store.is_dir():
        why = "a file" if store.exists() else "there is no such folder"
        raise UsageError(f"--store {store}: {why}; {PROGRAM} run makes one")
    with StoreServer(store, port) as server, _ended_by_signals():
        output.out.print(f"{output.shown(store.resolve())} at {server.address}  (Ctrl-C ends it)")
        output.out.file.flush()
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return ExitCode.VALID


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

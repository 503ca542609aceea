"""A target whose nodes keep their data on a disk that loses what was not synced."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from shaketable.harness.contracts.abilities import DurableRange
from shaketable.harness.contracts.errors import IndefiniteError
from shaketable.harness.contracts.plugins import Launch, NodeLayout
from shaketable.harness.described.target import DATA, DescribedTarget, is_set_up

DISK: Final = "disk"
"""The folder of a node's disk, in its folder; its data is in a folder on it."""
ANSWER_POLL_S: Final = 0.1
CHUNK_BYTES: Final = 1 << 20


class TargetOnVolatileDisk(DescribedTarget):
    """A target of `shaketable.toml` with `disk = "volatile"`.

    See `contracts.abilities`: HasVolatileDisk, LosesDisks and StoresFiles.
    """

    def disk(self, layout: NodeLayout) -> Path:
        """Return the folder that is mounted."""
        return layout.directory / DISK

    def data(self, layout: NodeLayout) -> Path:
        """Return the folder for a node's data."""
        return self.disk(layout) / DATA

    def set_up(self, setup: Sequence[str], layout: NodeLayout) -> str:
        """Return a shell command that fills a node's folder, and syncs it: that was long ago."""
        data, disk = (shlex.quote(str(path)) for path in (self.data(layout), self.disk(layout)))
        return f"{super().set_up(setup, layout)} && find {data} -exec sync {{}} + && sync {disk}"

    # ---- the loss of a disk -----------------------------------------------------------------

    def why_no_disk_may_go(self, nodes: Sequence[str]) -> str | None:
        """Return None: what a group makes of it is seen by its clients."""
        return None

    def why_not_now(self, node: str, missing: Sequence[str]) -> str | None:
        """Return why not: another node is missing."""
        return f"{', '.join(missing)} is not back" if missing else None

    def store(self, layout: NodeLayout) -> Path:
        """Return the folder that is lost with the node's disk."""
        return self.data(layout)

    async def renew(
        self, layouts: Mapping[str, NodeLayout], node: str, lost: Mapping[str, int]
    ) -> Mapping[str, Launch]:
        """Let the node start as at first, with an empty folder; it is set up again."""
        await trio.lowlevel.checkpoint()
        is_set_up(layouts[node]).unlink(missing_ok=True)
        return {node: self.prepare(layouts[node])}

    async def readmit(
        self,
        layouts: Mapping[str, NodeLayout],
        node: str,
        lost: Mapping[str, int],
        timeout_s: float,
    ) -> None:
        """Wait until the node is ready: it is not known whether it has caught up.

        Raises:
            IndefiniteError: it is not, in time.
        """
        with trio.move_on_after(timeout_s):
            while await self.status(layouts[node], self.status_timeout_s) is None:  # noqa: ASYNC110 - no event
                await trio.sleep(ANSWER_POLL_S)
            return
        raise IndefiniteError(f"{node} was not ready {timeout_s:g} s after it got an empty disk")

    def stored_ranges(self, layout: NodeLayout) -> Sequence[DurableRange]:
        """Return all files up to their last byte that is not zero: nothing says what matters."""
        files = (path for path in sorted(self.data(layout).rglob("*")) if path.is_file())
        ranges = (DurableRange(path, 0, _used_bytes(path)) for path in files)
        return [each for each in ranges if each.end and not each.path.is_symlink()]


def _used_bytes(path: Path) -> int:
    """Return where the zeros at a file's end begin: they may never have been written."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - CHUNK_BYTES)
            file.seek(start)
            used = len(file.read(end - start).rstrip(b"\0"))
            if used:
                return start + used
            end = start
    return 0

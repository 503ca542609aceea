"""A real node process on a disk that is full while a file says so: `<store root>.full`.

As with a file system without a free block: what is allotted already can be written, no file can
be made or grow.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shaketable.system.node import __main__ as node_main
from shaketable.system.node.config import load
from shaketable.system.node.disks.real_disk import RealDisk, RealFile
from shaketable.system.store.disk import DiskFull


class FillingDisk(RealDisk):
    """RealDisk until `full` exists; half used, whatever the machine's own disk is."""

    __slots__ = ("full",)

    def __init__(self, full: Path, direct_folder: str | None) -> None:
        super().__init__(direct_folder)
        self.full = full

    def create(self, path: str, size: int, *, reserve: bool = True) -> RealFile:
        if self.full.exists():
            raise DiskFull(f"cannot create {path}: No space left on device")
        return super().create(path, size, reserve=reserve)

    def used_ratio(self, folder: str) -> float:
        return 0.5


def main() -> int:
    root = load(Path(sys.argv[2])).store_root

    def filling(direct_folder: str | None = None) -> FillingDisk:
        return FillingDisk(Path(f"{root}.full"), direct_folder)

    node_main.RealDisk = filling  # type: ignore[assignment, misc]
    return node_main.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

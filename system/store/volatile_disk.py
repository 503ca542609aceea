"""A Disk whose unsynced writes live in the process, so that SIGKILL is a power loss."""

from __future__ import annotations

from system.store.real_disk import RealDisk


class VolatileDisk:
    """Holds back unsynced writes and names (implements `system.store.disk.Disk`)."""

    def __init__(self, disk: RealDisk) -> None: ...

    @property
    def unsynced_bytes(self) -> int:
        """Bytes that a crash at this moment would lose."""
        raise NotImplementedError

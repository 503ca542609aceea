"""The Disk of a production node: pwritev, fdatasync, posix_fallocate."""

from __future__ import annotations


class RealDisk:
    """Files of the operating system (implements `system.store.disk.Disk`)."""

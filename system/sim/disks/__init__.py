"""Simulated disks: unsynced data is lost or torn, calls fail, bits rot."""

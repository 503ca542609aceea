"""Simulated disks: what was not synced is lost or torn, calls fail, bits rot."""

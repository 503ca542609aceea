"""Faults of disks: errors, full, slow, stalled, damaged, wiped, power loss, rollback."""

"""Faults of disks: slow, full, failing, damaged, emptied, without power, of yesterday."""

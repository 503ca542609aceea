"""Nodes as local processes: start, kill, resource limits, clocks and disks."""

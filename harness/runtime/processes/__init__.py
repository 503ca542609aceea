"""Nodes as processes of this machine: started, killed, starved, their clocks and disks."""

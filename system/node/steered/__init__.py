"""Fault injection inside a node, steered from outside: clocks, disk faults, kill points."""

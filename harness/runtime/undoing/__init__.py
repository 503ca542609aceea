"""Cleans up after a run whose harness was killed: its processes, and the faults in force."""

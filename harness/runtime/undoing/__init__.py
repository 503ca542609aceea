"""Undoes what a run left whose harness was killed: its processes, and the faults in force."""

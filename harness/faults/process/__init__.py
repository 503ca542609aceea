"""Faults of processes: killed, stopped, started again and again; leaders that hand over."""

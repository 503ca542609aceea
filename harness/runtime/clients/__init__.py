"""Clients in worker processes: the worker, the group of workers, the online check."""

"""Clients as processes: what a worker does, the workers, and what is seen of them meanwhile."""

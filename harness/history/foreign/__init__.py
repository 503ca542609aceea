"""Readers of histories recorded by other programs (or this one): any known format -> OPERATIONS."""

from shaketable.harness.history.foreign.history import History
from shaketable.harness.history.foreign.read import PartitionBy, read_history

__all__ = ["History", "PartitionBy", "read_history"]

"""Readers of histories that others recorded (or this program): any known format -> OPERATIONS."""

from shaketable.harness.history.foreign.history import History
from shaketable.harness.history.foreign.read import PartitionBy, read_history

__all__ = ["History", "PartitionBy", "read_history"]

"""Planted bugs in elections, replication and commitment (`system.raft`)."""

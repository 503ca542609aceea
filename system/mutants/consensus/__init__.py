"""Planted bugs of elections, replication and commitment (`system.raft`)."""

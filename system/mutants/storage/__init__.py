"""Planted bugs in the log's files, their recovery and their durability (`system.store`)."""

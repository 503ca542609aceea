"""Planted bugs of the log's files, their recovery and what counts as durable (`system.store`)."""

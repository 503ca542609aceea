"""Pulls and queries: answered from the consume queues and the log. Pure."""

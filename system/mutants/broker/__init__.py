"""Planted bugs in the broker's handling of requests and entries (`system.broker`)."""

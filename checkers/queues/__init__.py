"""Checkers of message queues and consumer groups: delivery, ownership, timing, refusals."""

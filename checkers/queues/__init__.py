"""Checkers of message queues and consumer groups: what comes, to whom, when, what is refused."""

"""Delayed messages, and retries of messages that consumers send back. Pure."""

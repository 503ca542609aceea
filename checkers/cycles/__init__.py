"""Checkers that look for cycles of dependencies in logs and transactions."""

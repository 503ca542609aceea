"""Checkers that find dependency cycles in logs and transactions."""

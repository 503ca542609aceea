"""Checkers that judge a history while it grows, in bounded memory (ADR 52)."""

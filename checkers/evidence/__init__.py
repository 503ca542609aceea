"""Closes operations of unknown outcome by what else is known of them, each with its evidence."""

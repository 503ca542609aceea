"""Starts on copies of a node's disk that are broken, as by a mistake or a fault."""

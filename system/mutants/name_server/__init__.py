"""Planted bugs in the name server (`system.nameserver`)."""

"""Planted bugs of the name server (`system.nameserver`)."""

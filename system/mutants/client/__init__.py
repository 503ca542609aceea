"""Planted bugs of the client (`system.client`)."""

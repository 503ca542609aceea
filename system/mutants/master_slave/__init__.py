"""Planted bugs in masters and slaves without a group (`system.native` and its shell)."""

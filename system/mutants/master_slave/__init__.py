"""Planted bugs of masters and slaves without a group (`system.native` and its shell)."""

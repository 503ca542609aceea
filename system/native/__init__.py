"""A broker without a group: its own commit log, and a master's copies on its slaves. Pure."""

"""A node that somebody outside steers: its clocks, its disk, and where it ends."""

"""Compare two runs: what differs, by how much, and how significant it is."""

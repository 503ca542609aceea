"""Two runs side by side: what differs, by how much, and how sure that is."""

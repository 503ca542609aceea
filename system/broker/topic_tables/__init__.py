"""Topics: their table, the rules for new ones, and those from before the group. Pure."""

"""Topics: what the log says of each, the rules for new ones, and those from before. Pure."""

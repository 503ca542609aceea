"""Consumer groups: members, offsets, locks, and the requests about them. Pure."""

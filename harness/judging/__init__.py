"""Judge recordings: with the checkers, and by the nodes' own invariants."""

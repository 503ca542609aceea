"""The CI gate: applies a policy to the facts of runs, and writes the rulings to files."""

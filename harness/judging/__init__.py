"""Judges what was recorded: by the checkers, and by the rules of the nodes themselves."""

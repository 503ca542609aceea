"""The commands `simulate`, `replay` and `shrink`."""

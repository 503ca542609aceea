"""Resolves indeterminate operations by other evidence, each with a citation."""

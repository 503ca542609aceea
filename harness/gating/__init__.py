"""Reads what a gate judges: policy files, and what is known of runs."""

"""The general linearizability search: its problem, its driver, and its answer."""

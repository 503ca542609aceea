"""Read the input of a gate: policy files, and the results of runs."""

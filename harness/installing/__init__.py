"""Systems that are not ours, installed on demand into a cache of our own (ADR 51)."""

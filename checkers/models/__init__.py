"""Sequential models: what an object may answer when calls come one at a time."""
